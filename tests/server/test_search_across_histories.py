"""Several histories side by side are searched as one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.services import Clock

from nplt_server.histories import Histories, HistoryProfile
from nplt_storage.entries import ModelInputEntry
from nplt_storage.history import ConversationHistory
from nplt_storage.memory import MemoryStore
from nplt_storage.search import SearchQuery

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


async def library_of(places: list[tuple[int, int]]) -> Histories:
    """A message in one of two stores, at some second, for each of them."""
    stores = (MemoryStore(Clock()), MemoryStore(Clock()))
    for number, (place, second) in enumerate(places):
        session_id = f"s{number}"
        record = await stores[place].create(session_id, user="ada")
        history = ConversationHistory(session_id)
        draft = ModelInputEntry(turn_id="t", content=f"ants {number}")
        when = BEGAN + timedelta(seconds=second)
        await record.append(history.stamp(draft, id=f"e{number}", timestamp=when))
    return Histories([HistoryProfile(id=f"h{i}", store=store) for i, store in enumerate(stores)])


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(0, 3)), max_size=8),
    st.integers(1, 3),
)
async def test_every_message_is_met_once_newest_first(
    places: list[tuple[int, int]], limit: int
) -> None:
    histories = await library_of(places)
    met: list[tuple[datetime, str]] = []
    cursor: str | None = None
    while True:
        page = await histories.search("ada", SearchQuery(text="ants", limit=limit, cursor=cursor))
        met += [(hit.timestamp, hit.session_id) for hit in page.hits]
        if (cursor := page.next_cursor) is None:
            break
    assert met == sorted(met, reverse=True)
    assert {session_id for _, session_id in met} == {f"s{i}" for i in range(len(places))}
    assert len(met) == len(places)
