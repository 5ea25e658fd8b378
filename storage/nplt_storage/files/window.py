"""The end of a conversation, as far back as its next turn needs.

The walk goes backward along what stands, jumping over what a rollback took back,
until `conversation.ends` says that it is enough. The instruction and the notebook
that hold are fetched by their numbers, wherever they stand.
"""

from __future__ import annotations

from collections.abc import Iterator

from nplt_storage.conversation.ends import Enough, Walk
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.facts.entries import Entry
from nplt_storage.facts.lines import decode_verified
from nplt_storage.files.reader import Line, LineReader, Read
from nplt_storage.files.recovery import Tail

__all__ = ["Enough", "read_end"]


def read_end(
    read: Read, tail: Tail, row: ConversationRow, *, enough: Enough | None = None
) -> list[Entry]:
    """In order; it may begin late, and has gaps where something does not stand."""
    lines = LineReader(read, first=tail.first, end=tail.end)
    walk = Walk(enough or Enough(), unmet={seq for _, seq in row.unfinished})
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
