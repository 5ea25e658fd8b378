"""Reads the Redis stream of one conversation, and builds a new stream.

A new stream is built under temporary keys and then replaces the conversation's keys in one
script. The temporary keys expire an hour after the last write, in case the process dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from nplt_storage.codec import BadLine, decode_line, decode_verified, encode_line, verify_line
from nplt_storage.entries import BlobReference, CheckpointEntry, Entry, ModelInputEntry
from nplt_storage.errors import BadEntry, ConversationDamaged, ConversationNotFound
from nplt_storage.ids import new_entry_id
from nplt_storage.redis.connection import Argument, RedisConnection, in_worker_thread
from nplt_storage.rows import ConversationRow, fold, read_checkpoint, row_from_bytes

_LINES_AT_FIRST: Final = 24
_LINES_MAX: Final = 1000
_BYTES_AT_ONCE: Final = 1024 * 1024
_EXPIRES_SECONDS: Final = 3600


def message_id_of(entry: Entry) -> str:
    """The message id of a prompt, or "" for any other entry."""
    return (entry.message_id or "") if isinstance(entry, ModelInputEntry) else ""


def place_in_stream(entry: Entry) -> bytes:
    """The value that the hash `prompts` has for the message id of a prompt in the stream, as JSON:
    `[seq]`. `trimming` replaces it by `[seq, turn_id, state]` once the line is trimmed."""
    return b"[%d]" % entry.seq


class StreamSource:
    """Reads the entries of one conversation up to `head_seq` from Redis, as far as they are asked
    for. Missing and damaged lines raise `ConversationDamaged`."""

    def __init__(self, connection: RedisConnection, session_id: str, head_seq: int) -> None:
        self.head_seq = head_seq
        self.bytes_read = 0
        self._connection = connection
        self._session_id = session_id
        self._log = connection.keyspace.of(session_id).log

    def before(self, seq: int) -> Iterator[Entry]:
        lines = self._walk("XREVRANGE", min(seq - 1, self.head_seq), -1)
        return map(self._decoded, lines)

    def after(self, seq: int, begun: Any | None = None) -> Iterator[Entry]:
        """`begun`: the reply to `first_command_after`, if that was sent already."""
        return map(self._decoded, self._walk("XRANGE", max(seq, 0) + 1, 1, begun))

    def lines_after(self, seq: int) -> Iterator[bytes]:
        return self._walk("XRANGE", max(seq, 0) + 1, 1)

    def first_command_after(self, seq: int) -> tuple[Argument, ...]:
        """The command that reads the first lines, for a pipeline with those of other sources."""
        return self._command("XRANGE", seq + 1, self.head_seq, _LINES_AT_FIRST)

    def at(self, seq: int) -> Entry | None:
        if not 1 <= seq <= self.head_seq:
            return None
        lines = self._read("XRANGE", seq, seq, 1)
        return self._decoded(lines[0][1]) if lines else None

    def _walk(
        self, command: str, start: int, step: int, begun: Any | None = None
    ) -> Iterator[bytes]:
        """Yields the lines from `start`. A missing line below the head is damage, even if all lines
        are missing, because Redis may have evicted them."""
        last = 1 if step < 0 else self.head_seq
        expected = start
        count = _LINES_AT_FIRST
        while (last - expected) * step >= 0:
            if begun is None:
                lines = self._read(command, expected, last, count)
            else:
                lines, begun = self._verified(begun), None
            for seq, line in lines:
                if seq != expected:
                    self._check_missing(expected, seq - step)
                yield line
                expected = seq + step
            if len(lines) < count:
                if (last - expected) * step >= 0:
                    self._check_missing(expected, last)
                return
            mean = sum(len(line) for _, line in lines) // len(lines)
            count = max(1, min(_LINES_MAX, _BYTES_AT_ONCE // max(mean, 1)))

    def _check_missing(self, *ends: int) -> None:
        """Reads the row again, and raises `ConversationDamaged` if an entry between `ends` is
        missing. Entries that were trimmed or discarded since the row was read are no damage. Raises
        `ConversationNotFound` if the conversation was deleted."""
        meta = self._connection.keyspace.of(self._session_id).meta
        head, row = self._connection.ask("HMGET", meta, "head", "row")
        if row is None:
            raise ConversationNotFound(self._session_id)
        first = max(min(ends), row_from_bytes(row).first_seq)
        if first <= min(max(ends), int(head)):
            raise self._damaged(f"entry {first} is missing")

    def _read(self, command: str, start: int, last: int, count: int) -> list[tuple[int, bytes]]:
        replies = self._connection.ask(*self._command(command, start, last, count))
        return self._verified(replies)

    def _command(self, command: str, start: int, last: int, count: int) -> tuple[Argument, ...]:
        return (command, self._log, start, last, "COUNT", count)

    def _verified(self, replies: Any) -> list[tuple[int, bytes]]:
        lines: list[tuple[int, bytes]] = []
        for entry_id, fields in replies:
            seq, line = int(entry_id.partition(b"-")[0]), bytes(fields.get(b"line", b""))
            try:
                numbered = verify_line(line)
            except BadLine as error:
                raise self._damaged(f"entry {seq}: {error}") from error
            if numbered != seq:
                raise self._damaged(f"entry {seq} says it is entry {numbered}")
            self.bytes_read += len(line)
            lines.append((seq, line))
        return lines

    def _decoded(self, line: bytes) -> Entry:
        try:
            return decode_verified(line)
        except BadLine as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, reason: str) -> ConversationDamaged:
        return ConversationDamaged(self._session_id, reason)


def decode_checkpoint(session_id: str, line: bytes | None) -> CheckpointEntry | None:
    if not line:
        return None
    try:
        entry = decode_line(line)
    except BadLine as error:
        raise ConversationDamaged(session_id, f"its checkpoint: {error}") from error
    if not isinstance(entry, CheckpointEntry):
        raise ConversationDamaged(session_id, "its checkpoint is an entry of another kind")
    return entry


class NewStream:
    """Builds the stream of a whole conversation under temporary keys."""

    def __init__(self, connection: RedisConnection, row: ConversationRow) -> None:
        self.row = row
        """The row after the entries written so far."""
        self.checkpoint_line = b""
        """The encoded checkpoint, if earlier entries were trimmed."""
        self.keys = connection.keyspace.of(row.session_id, f"@new:{new_entry_id()}:")
        self._connection = connection

    @in_worker_thread
    def add(self, entries: Sequence[Entry]) -> None:
        row, first = self.row, entries[0] if entries else None
        if row.head_seq == 0 and isinstance(first, CheckpointEntry) and first.seq > 1:
            # A copy of a trimmed conversation begins with a checkpoint that stands for the trimmed
            # entries.
            state = read_checkpoint(first)
            if state is None:
                raise BadEntry(f"entry {first.seq} can't be the first: its state can't be read")
            self.checkpoint_line = encode_line(first)
            identity = {
                "session_id": row.session_id,
                "user": row.user,
                "created_at": row.created_at,
            }
            self.row = replace(fold(state.row, first), first_seq=first.seq + 1, **identity)
            entries = entries[1:]
        self.write(entries)

    @in_worker_thread
    def keep_blob(self, data: bytes) -> BlobReference:
        blob = BlobReference.of(data)
        self._send(("HSET", self.keys.blobs, blob.blob_id, data))
        return blob

    # The caller must be in a worker thread

    def write(self, entries: Iterable[Entry]) -> None:
        commands: list[tuple[Argument, ...]] = []
        size = 0
        for entry in entries:
            if entry.seq != self.row.head_seq + 1:
                raise BadEntry(f"entry {entry.seq} can't follow entry {self.row.head_seq}")
            line = encode_line(entry)
            commands.append(("XADD", self.keys.log, f"{entry.seq}-0", "line", line))
            if message_id := message_id_of(entry):
                commands.append(("HSETNX", self.keys.prompts, message_id, place_in_stream(entry)))
            self.row = fold(self.row, entry)
            size += len(line)
            if size > _BYTES_AT_ONCE:
                self._send(*commands)
                commands, size = [], 0
        self._send(*commands)

    def drop(self) -> None:
        self._connection.call("DEL", *self.keys)

    def _send(self, *commands: tuple[Argument, ...]) -> None:
        expiring = [("EXPIRE", key, _EXPIRES_SECONDS) for key in self.keys]
        self._connection.call_many([*commands, *expiring])
