"""The end of a stream, as far back as the conversation's next turn needs.

Backward along what stands, jumping over what a rollback took back, until there
is enough or a clear was met; on from there until each turn met has its prompt
and each turn that has not ended is there. The instruction and the notebook that
hold are fetched by number; what was trimmed is in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.facts.entries import ClearEntry, Entry, ModelInputEntry
from nplt_storage.redis_streams.reading import StreamSource

BYTES_ENOUGH: Final = 8 * 1024 * 1024
ENTRIES_ENOUGH: Final = 5_000


def read_end(source: StreamSource, row: ConversationRow) -> list[Entry]:
    """In order; it may begin late and have gaps."""
    met: list[Entry] = []
    unmet = {seq for _, seq in row.unfinished}
    prompted: set[str] = set()
    headless: set[str] = set()
    cleared = False
    for entry in _standing(source, row.hidden):
        met.append(entry)
        unmet.discard(entry.seq)
        cleared = cleared or isinstance(entry, ClearEntry)
        if isinstance(entry, ModelInputEntry):
            prompted |= {entry.turn_id or ""}
            headless -= prompted
        elif entry.turn_id and entry.turn_id not in prompted:
            headless.add(entry.turn_id)
        times = min(1 + bool(headless), 2)  # a prompt that never was is not looked for for ever
        enough = source.bytes_read >= times * BYTES_ENOUGH or len(met) >= times * ENTRIES_ENOUGH
        if not unmet and (enough or (cleared and not headless)):
            break
    met.reverse()
    first = met[0].seq if met else 0
    wanted = sorted({row.system_seq, row.notebook_seq} - {0})
    far = [source.at(seq) for seq in wanted if seq < first]
    return [*(entry for entry in far if entry is not None), *met]


def _standing(source: StreamSource, hidden: tuple[tuple[int, int], ...]) -> Iterator[Entry]:
    top = source.head_seq
    for first, last in (*reversed(hidden), (0, 0)):
        for entry in source.before(top + 1) if top > last else ():
            if entry.seq <= last:
                break
            yield entry
        top = first - 1
