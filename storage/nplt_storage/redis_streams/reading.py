"""A stream walked both ways, a few lines at a time, each verified.

Blocking: used inside a worker thread. Lines may be a few bytes or many
megabytes, so how many are asked for at once follows from how long the last
ones were. What is trimmed or deleted while someone walks simply ends the walk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nplt_storage.errors import ConversationDamaged
from nplt_storage.facts.entries import CheckpointEntry, Entry
from nplt_storage.facts.lines import BadLine, decode_line, decode_verified, verify_line
from nplt_storage.redis_streams.connection import RedisConnection
from nplt_storage.redis_streams.keys import stream_id

_LINES_AT_FIRST: Final = 24
_LINES_MAX: Final = 1000
_BYTES_AT_ONCE: Final = 1024 * 1024


class StreamSource:
    """The lines up to `head_seq`, as they are in Redis when they are met."""

    def __init__(
        self, session_id: str, log: str, connection: RedisConnection, *, head_seq: int
    ) -> None:
        self.head_seq = head_seq
        self.bytes_read = 0
        self._session_id = session_id
        self._log = log
        self._connection = connection

    def before(self, seq: int) -> Iterator[Entry]:
        for line in self.lines_before(seq):
            yield self._decoded(line)

    def after(self, seq: int) -> Iterator[Entry]:
        for line in self.lines_after(seq):
            yield self._decoded(line)

    def at(self, seq: int) -> Entry | None:
        if not 1 <= seq <= self.head_seq:
            return None
        found = self._read("XRANGE", seq, seq, 1)
        return self._decoded(found[0][1]) if found else None

    def lines_before(self, seq: int) -> Iterator[bytes]:
        yield from self._walk("XREVRANGE", min(seq - 1, self.head_seq), -1)

    def lines_after(self, seq: int) -> Iterator[bytes]:
        yield from self._walk("XRANGE", max(seq, 0) + 1, 1)

    def _walk(self, command: str, start: int, step: int) -> Iterator[bytes]:
        last = 1 if step < 0 else self.head_seq
        expected: int | None = None
        count = _LINES_AT_FIRST
        while (last - start) * step >= 0:
            found = self._read(command, start, last, count)
            for seq, line in found:
                if expected is not None and seq != expected:
                    raise self._damaged(f"entry {expected} is missing")
                yield line
                expected = seq + step
            if len(found) < count or expected is None:
                return
            start = expected
            mean = sum(len(line) for _, line in found) // len(found)
            count = max(1, min(_LINES_MAX, _BYTES_AT_ONCE // max(mean, 1)))

    def _read(self, command: str, start: int, last: int, count: int) -> list[tuple[int, bytes]]:
        found = self._connection.ask(
            command, self._log, stream_id(start), stream_id(last), "COUNT", count
        )
        lines: list[tuple[int, bytes]] = []
        for entry_id, fields in found:
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
        raise ConversationDamaged(session_id, "its checkpoint is something else")
    return entry
