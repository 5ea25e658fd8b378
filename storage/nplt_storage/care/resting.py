"""A document on its way in, at rest: nothing in it goes on by itself, or decides for others.

Whoever wrote it may have left turns that had not ended, and decisions about tools that
hold for further calls. Here nobody asked for the ones nor made the others. So where there
are such, one more entry ends it, as a fork is begun by one; what only tells is as it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from nplt_storage.care.pairing import Pairing
from nplt_storage.copying import Source
from nplt_storage.facts.entries import ApprovalEntry, Entry, ForkedEntry
from nplt_storage.ids import new_entry_id
from nplt_storage.store import Origin


class AtRest:
    """A `Source` that is read once, from its beginning to its end."""

    def __init__(self, source: Source, *, new_id: Callable[[], str] = new_entry_id) -> None:
        self._source = source
        self._new_id = new_id
        self._pairing = Pairing()
        self._has_decisions = False

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        last: Entry | None = None
        async for batch in self._source.entries(session_id, after=after, through=through):
            for last in batch:
                self._note(last)
            yield batch
        if last is not None and (self._has_decisions or self._pairing.unfinished):
            yield [
                ForkedEntry(
                    seq=last.seq + 1,
                    id=self._new_id(),
                    timestamp=last.timestamp,  # lists shall have it where it was
                    from_session_id=session_id,
                    at_seq=last.seq,
                )
            ]

    async def origin(self, session_id: str) -> Origin:
        return await self._source.origin(session_id)

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        return await self._source.blob(session_id, blob_id, offset, length)

    def _note(self, entry: Entry) -> None:
        self._pairing.add(entry)
        match entry:
            case ApprovalEntry():
                self._has_decisions = True
            case ForkedEntry():
                self._has_decisions = False
            case _:
                pass
