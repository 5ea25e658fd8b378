"""A stream that nobody sees yet: a conversation being built, or one written anew.

It goes by itself an hour after the last that was added, should the process die.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import CheckpointEntry, Entry
from nplt_storage.facts.lines import encode_line
from nplt_storage.ids import new_entry_id
from nplt_storage.redis_streams import scripts
from nplt_storage.redis_streams.connection import Argument, RedisConnection
from nplt_storage.redis_streams.keys import Keyspace, name_of, place_in_stream, stream_id

_KEPT_SECONDS: Final = 3600
_BYTES_AT_ONCE: Final = 1024 * 1024


class UnseenStream:
    """Blocking: used inside a worker thread."""

    def __init__(self, connection: RedisConnection, keyspace: Keyspace) -> None:
        self.keys = keyspace.being_made(new_entry_id())
        self.last_seq = 0
        self._connection = connection
        self._keyspace = keyspace

    def add(self, entries: Iterable[Entry]) -> None:
        commands: list[tuple[Argument, ...]] = []
        size = 0
        for command in self._commands(entries):
            commands.append(command)
            size += len(command[-1]) if isinstance(command[-1], bytes) else 0
            if size > _BYTES_AT_ONCE:
                self._send(commands)
                commands, size = [], 0
        self._send(commands)

    def add_checkpoint(self, checkpoint: CheckpointEntry) -> None:
        """The state before the first entry, where it is not the first there ever was."""
        self._send([("SET", self.keys.checkpoint, encode_line(checkpoint))])
        self.last_seq = checkpoint.seq

    def keep_blob(self, blob_id: str, data: bytes) -> None:
        self._send(
            [
                ("SET", self.keys.blob(blob_id), data, "EX", _KEPT_SECONDS),
                ("SADD", f"{self.keys.base}:blobs", blob_id),
            ]
        )

    def drop(self) -> None:
        self._connection.run(scripts.DROP, [self.keys.base, self._keyspace.prefix])

    def _commands(self, entries: Iterable[Entry]) -> Iterator[tuple[Argument, ...]]:
        for entry in entries:
            if entry.seq != self.last_seq + 1:
                raise BadEntry(f"entry {entry.seq} can't follow entry {self.last_seq}")
            yield ("XADD", self.keys.log, stream_id(entry.seq), "line", encode_line(entry))
            if name := name_of(entry):
                yield ("HSETNX", self.keys.prompts, name, place_in_stream(entry))
            self.last_seq = entry.seq

    def _send(self, commands: list[tuple[Argument, ...]]) -> None:
        keys = self.keys
        lasting = [keys.log, keys.checkpoint, keys.prompts, f"{keys.base}:blobs"]
        expiring = [("EXPIRE", key, _KEPT_SECONDS) for key in lasting]
        self._connection.call_many([*commands, *expiring])
