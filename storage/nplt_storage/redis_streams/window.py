"""The end of a stream, as far back as the conversation's next turn needs.

Backward along what stands, jumping over what a rollback took back, until
`conversation.ends` says that it is enough. What holds until it is told anew, and
the epoch, are fetched by number; what was trimmed is in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

from nplt_storage.conversation.ends import Enough, Walk
from nplt_storage.conversation.landmarks import landmarks_of
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.facts.entries import Entry, EpochEntry
from nplt_storage.redis_streams.reading import StreamSource


def read_end(
    source: StreamSource, row: ConversationRow, *, enough: Enough | None = None
) -> list[Entry]:
    """In order; it may begin late and have gaps."""
    epoch = source.at(row.epoch_seq) if row.epoch_seq else None
    walk = Walk(
        enough or Enough(),
        unmet={seq for _, seq in row.unfinished},
        epoch=epoch if isinstance(epoch, EpochEntry) else None,
    )
    bytes_before = source.bytes_read
    for entry in _standing(source, row.hidden):
        walk.take(entry, source.bytes_read - bytes_before)
        bytes_before = source.bytes_read
        if walk.is_over:
            break
    entries = walk.entries[::-1]
    first_seq = entries[0].seq if entries else 0
    wanted = {*landmarks_of(row).values(), row.epoch_seq} - {0}
    far = [source.at(seq) for seq in sorted(wanted) if seq < first_seq]
    return [*(entry for entry in far if entry is not None), *entries]


def _standing(source: StreamSource, hidden: tuple[tuple[int, int], ...]) -> Iterator[Entry]:
    top = source.head_seq
    for first, last in (*reversed(hidden), (0, 0)):
        for entry in source.before(top + 1) if top > last else ():
            if entry.seq <= last:
                break
            yield entry
        top = first - 1
