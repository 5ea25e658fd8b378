"""The end of a conversation, as far back as its next turn needs.

A conversation may be a gigabyte long; who goes on with it needs the last few
megabytes. The walk goes backward along what stands, jumping over what a
rollback took back, until there is enough of it, or a clear was met and some of
it (models see nothing older, but a prompt may be sent again, a rollback asked
for); and on from there until each turn met has its prompt, and each turn that
has not ended is there from its prompt on. The instruction and the notebook that hold are
fetched by their numbers, wherever they stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.facts.entries import ClearEntry, Entry, ModelInputEntry
from nplt_storage.facts.lines import decode_verified
from nplt_storage.files.reader import Line, LineReader, Read
from nplt_storage.files.recovery import Tail

_SOME: Final = 1 / 16
"""What is read beyond a clear, as a part of what is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    bytes: int = 8 * 1024 * 1024
    entries: int = 5_000


def read_end(
    read: Read, tail: Tail, row: ConversationRow, *, enough: Enough | None = None
) -> list[Entry]:
    """In order; it may begin late, and has gaps where something does not stand."""
    lines = LineReader(read, first=tail.first, end=tail.end)
    walk = _Walk(enough or Enough(), unmet={seq for _, seq in row.unfinished})
    for line in _standing(lines, tail, row.hidden):
        walk.take(decode_verified(line.data), len(line.data))
        if walk.is_over:
            break
    entries = walk.entries[::-1]
    first_seq = entries[0].seq if entries else 0
    wanted = {row.system_seq, row.notebook_seq} - {0}
    far = [_entry(lines, seq) for seq in sorted(wanted) if seq < first_seq]
    return [*far, *entries]


def _standing(lines: LineReader, tail: Tail, hidden: tuple[tuple[int, int], ...]) -> Iterator[Line]:
    end, top = tail.end, tail.closing.head_seq
    for first, last in reversed(hidden):
        while top > last:
            for line in lines.backward(end):
                yield line
                end, top = line.start, line.seq - 1
                if top == last:
                    break
        end, top = lines.find(first), first - 1
    if top:
        yield from lines.backward(end)


def _entry(lines: LineReader, seq: int) -> Entry:
    return decode_verified(next(lines.forward(lines.find(seq))).data)


@dataclass(slots=True)
class _Walk:
    """What was met on the way back, newest first, and whether one may stop."""

    enough: Enough
    unmet: set[int]
    """Prompts of turns that have not ended, by number."""
    entries: list[Entry] = field(default_factory=list)
    _bytes: int = 0
    _met_clear: bool = False
    _prompted: set[str] = field(default_factory=set)
    _headless: set[str] = field(default_factory=set)
    """Turns met from behind, whose prompt is still to come."""

    def take(self, entry: Entry, size: int) -> None:
        self.entries.append(entry)
        self._bytes += size
        self.unmet.discard(entry.seq)
        if isinstance(entry, ClearEntry):
            self._met_clear = True
        elif isinstance(entry, ModelInputEntry) and entry.turn_id is not None:
            self._prompted.add(entry.turn_id)
            self._headless.discard(entry.turn_id)
        elif entry.turn_id is not None and entry.turn_id not in self._prompted:
            self._headless.add(entry.turn_id)

    @property
    def is_over(self) -> bool:
        if self.unmet or not self._has(_SOME if self._met_clear else 1):
            return False
        # A turn without any prompt (another program wrote it) must not lead
        # back to the very beginning.
        return not self._headless or self._has(2)

    def _has(self, times: float) -> bool:
        return (
            self._bytes >= times * self.enough.bytes
            or len(self.entries) >= times * self.enough.entries
        )
