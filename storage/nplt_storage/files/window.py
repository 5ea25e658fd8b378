"""The end of a conversation, as far back as its next turn needs.

The walk goes backward along what stands, jumping over what a rollback took back,
until `conversation.ends` says that it is enough. What holds until it is told anew
(`conversation.landmarks`) is fetched by its number, wherever it stands; so is the
epoch, which says how far back one needs to go.
"""

from __future__ import annotations

from collections.abc import Iterator

from nplt_storage.conversation.ends import Enough, Walk
from nplt_storage.conversation.landmarks import landmarks_of
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.facts.entries import Entry, EpochEntry
from nplt_storage.facts.lines import decode_verified
from nplt_storage.files.reader import Line, LineReader, Read
from nplt_storage.files.recovery import Tail

__all__ = ["Enough", "read_end"]


def read_end(
    read: Read, tail: Tail, row: ConversationRow, *, enough: Enough | None = None
) -> list[Entry]:
    """In order; it may begin late, and has gaps where something does not stand."""
    lines = LineReader(read, first=tail.first, end=tail.end)
    epoch = _entry(lines, row.epoch_seq) if row.epoch_seq else None
    walk = Walk(
        enough or Enough(),
        unmet={seq for _, seq in row.unfinished},
        epoch=epoch if isinstance(epoch, EpochEntry) else None,
    )
    for line in _standing(lines, tail, row.hidden):
        walk.take(decode_verified(line.data), len(line.data))
        if walk.is_over:
            break
    entries = walk.entries[::-1]
    first_seq = entries[0].seq if entries else 0
    wanted = {*landmarks_of(row).values(), row.epoch_seq} - {0}
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
