"""Pages, against a plain list: from memory and from a file's bytes alike."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.storage.conversations import (
    Pen,
    answer,
    answering,
    asking,
    call,
    chat,
    fault,
    file_bytes,
    prompt,
)

from nplt_storage import MessagePage, PageQuery, entry_as_json
from nplt_storage.entries import (
    DebugEntry,
    Entry,
    LevelOfDetailSections,
    SystemInstructionEntry,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.files.format import FileEntries
from nplt_storage.memory import EntryList, MemoryStore
from nplt_storage.messages import MessageEntry, chat_message
from nplt_storage.pages import EntrySource, read_page, size_as_json


def from_memory(entries: list[Entry]) -> EntrySource:
    return EntryList(list(entries))


def from_file(entries: list[Entry]) -> EntrySource:
    data = file_bytes(entries)
    first, end = data.index(b"\n") + 1, data.rindex(b"]")
    return FileEntries(
        lambda offset, length: data[offset : offset + length],
        first=first,
        end=end,
        head_seq=len(entries),
    )


SOURCES = [from_memory, from_file]


@st.composite
def conversations(draw: st.DrawFn) -> list[Entry]:
    """Turns that overlap, call tools, fail, or are still on their way."""
    pen = Pen()
    for number in range(draw(st.integers(0, 8))):
        turn = f"t{number}"
        pen.write(prompt(turn, draw(st.sampled_from(["hello", "x" * 400, "漢字" * 90]))))
        match draw(st.integers(0, 5)):
            case 0:
                pen.write(answer(turn, "y" * draw(st.integers(1, 500))))
            case 1:
                pen.write_all([asking(turn, call()), prompt(f"{turn}b", "meanwhile")])
                pen.write_all([answering(turn, call()), answer(turn, call=1)])
            case 2:
                pen.write_all([asking(turn, call()), fault(turn)])
            case 3:
                pen.write_all([asking(turn, call()), DebugEntry(category="x", content="x")])
            case 4:
                pen.write(SystemInstructionEntry(content="be brief"))
            case _:
                pass
    return list(pen.history.entries)


cursors = st.integers(-2, 40)
queries = st.builds(
    lambda cursor, **rest: PageQuery(**cursor, **rest),
    cursor=st.one_of(
        st.just({}),
        st.fixed_dictionaries({"before": cursors}),
        st.fixed_dictionaries({"after": cursors}),
        st.fixed_dictionaries({"around": cursors}),
    ),
    limit=st.integers(1, 12),
    bytes_max=st.sampled_from([1, 300, 900, 2500, 60_000]),
    roles=st.sampled_from([("user", "assistant"), ("user",), ("system",), ("user", "system")]),
    view=st.sampled_from(["messages", "entries"]),
)


def every_message(entries: list[Entry], query: PageQuery) -> list[dict[str, Any]]:
    """All that could be on a page, whole, by going through the list."""
    if query.view == "entries":
        return [entry_as_json(entry) for entry in entries]
    results = {(e.turn_id, e.call): e for e in entries if isinstance(e, ToolResultsEntry)}
    return [
        chat_message(entry, results).as_json()
        for entry in entries
        if isinstance(entry, MessageEntry) and entry.role in query.roles
    ]


def _nearest_first(messages: list[Any], query: PageQuery) -> list[Any]:
    if query.after is not None:
        return [m for m in messages if m["seq"] > query.after]
    if query.around is None:
        top = 10**9 if query.before is None else query.before
        return [m for m in reversed(messages) if m["seq"] < top]
    newer = [m for m in messages if m["seq"] >= query.around]
    older = [m for m in reversed(messages) if m["seq"] < query.around]
    mixed = []
    while newer or older:
        mixed += newer[:1] + older[:1]
        newer, older = newer[1:], older[1:]
    return mixed


def naive_page(entries: list[Entry], query: PageQuery) -> tuple[list[int], bool, bool, int, int]:
    messages = every_message(entries, query)
    taken: list[int] = []
    room = query.bytes_max
    for message in _nearest_first(messages, query)[: query.limit]:
        size = size_as_json(message) + 1
        if taken and size > room:
            break
        room -= min(size, room)
        taken.append(message["seq"])
    taken.sort()
    cursor = query.cursor or 0
    before, after = (taken[0], taken[-1]) if taken else (cursor, cursor)
    more_before = any(m["seq"] < before for m in messages)
    more_after = any(m["seq"] > after for m in messages)
    return taken, more_before, more_after, before, after


@pytest.mark.parametrize("source_of", SOURCES)
@given(entries=conversations(), query=queries)
def test_a_page_is_what_a_plain_list_would_give(
    source_of: Any, entries: list[Entry], query: PageQuery
) -> None:
    page = read_page(query, source_of(entries))
    seqs = [message["seq"] for message in page.messages]
    first_cut = 0
    if page.messages and page.messages[0].get("truncated"):
        first_cut = size_as_json(page.messages[0]) + 1
    expected = naive_page(entries, query)
    if not first_cut:
        found = (seqs, page.has_more_before, page.has_more_after, page.before, page.after)
        assert found == expected
    whole = {message["seq"]: message for message in every_message(entries, query)}
    for message in page.messages:
        if not message.get("truncated"):
            assert message == whole[message["seq"]]
    size = sum(size_as_json(message) + 1 for message in page.messages)
    assert size <= query.bytes_max or len(page.messages) == 1
    assert bool(page.messages) == bool(expected[0]), "never empty when there is something to show"


@given(entries=conversations(), query=queries)
def test_memory_and_file_give_the_same_page(entries: list[Entry], query: PageQuery) -> None:
    assert read_page(query, from_memory(entries)) == read_page(query, from_file(entries))


def _pages(
    query: PageQuery, grow: Iterator[list[Entry]], *, forward: bool
) -> Iterator[MessagePage]:
    """Walks on with what the page says, while the conversation grows."""
    before, after = None, 0 if forward else None
    while True:
        asked = replace(query, before=before, after=after, around=None, view="messages")
        page = read_page(asked, from_file(next(grow)))
        yield page
        if not (page.has_more_after if forward else page.has_more_before):
            return
        before, after = (None, page.after) if forward else (page.before, None)


@settings(max_examples=60)
@given(entries=conversations(), query=queries, data=st.data())
def test_walking_while_others_append_meets_every_message_once(
    entries: list[Entry], query: PageQuery, data: st.DataObject
) -> None:
    for forward in (True, False):
        length = data.draw(st.integers(0, len(entries)))
        seen_by_then: list[int] = []

        def growing(length: int = length, seen: list[int] = seen_by_then) -> Iterator[list[Entry]]:
            while True:
                seen.append(length)
                yield entries[:length]
                length = min(len(entries), length + data.draw(st.integers(0, 3)))

        pages = list(_pages(query, growing(), forward=forward))
        ordered = pages if forward else pages[::-1]
        walked = [message["seq"] for page in ordered for message in page.messages]
        through = seen_by_then[-1] if forward else seen_by_then[0]
        there = [
            entry.seq
            for entry in entries[:through]
            if isinstance(entry, MessageEntry) and entry.role in query.roles
        ]
        assert walked == there


@pytest.mark.parametrize("source_of", SOURCES)
def test_results_beyond_the_page_are_joined_in(source_of: Any) -> None:
    pen = Pen()
    pen.write_all([prompt("t1"), asking("t1", call()), prompt("t2"), prompt("t3")])
    pen.write_all([answering("t1", call()), answer("t1", call=1)])
    source = source_of(list(pen.history.entries))
    for query in (PageQuery(before=3), PageQuery(after=1, limit=1), PageQuery(around=2, limit=1)):
        asked = read_page(query, source).messages[-1]
        assert asked["seq"] == 2
        assert [tool_call["status"] for tool_call in asked["tool_calls"]] == ["success"]  # type: ignore[union-attr,index,call-overload]


def test_a_page_around_a_message_has_half_on_each_side() -> None:
    pen = Pen()
    pen.write_all([prompt(f"t{number}") for number in range(30)])
    source = from_memory(list(pen.history.entries))
    page = read_page(PageQuery(around=15, limit=5), source)
    assert [message["seq"] for message in page.messages] == [13, 14, 15, 16, 17]
    page = read_page(PageQuery(around=30, limit=5), source)
    assert [message["seq"] for message in page.messages] == [26, 27, 28, 29, 30]
    assert (page.has_more_before, page.has_more_after) == (True, False)


def test_a_message_larger_than_the_page_is_cut_and_says_so() -> None:
    pen = Pen()
    pen.write_all([prompt("t1"), answer("t1", "漢" * 5000)])
    page = read_page(PageQuery(bytes_max=1000), from_memory(list(pen.history.entries)))
    (message,) = page.messages
    assert message["truncated"] is True
    assert message["size"] == 5000
    assert 200 < len(str(message["content"])) < 334
    assert page.has_more_before


def test_an_empty_page_gives_the_cursor_back() -> None:
    source = from_memory(chat(1))
    page = read_page(PageQuery(after=2), source)
    assert (page.messages, page.before, page.after) == ((), 2, 2)
    assert (page.has_more_before, page.has_more_after) == (True, False)
    empty = read_page(PageQuery(), from_memory([]))
    assert (empty.before, empty.after, empty.has_more_before) == (0, 0, False)


@pytest.mark.parametrize(
    "wrong", [{"before": 1, "after": 2}, {"after": 1, "around": 2}, {"limit": 0}]
)
def test_a_page_has_one_cursor_and_room_for_a_message(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a page"):
        PageQuery(**wrong)


def test_a_page_query_is_a_value_that_can_be_compared_hashed_and_printed() -> None:
    one, same = (PageQuery(before=3, detail="gist", bracket_bytes=6) for _ in range(2))
    assert (one, hash(one), repr(one)) == (same, hash(same), repr(same))
    assert "<function" not in repr(one)


async def test_a_store_makes_the_levels_of_detail_that_the_record_lacks() -> None:
    def levels(content: str | ToolCallResult) -> LevelOfDetailSections:
        assert isinstance(content, str)
        return LevelOfDetailSections(gist=(("", f"gist of {content}"),))

    store = MemoryStore(lambda: datetime(2026, 1, 1, tzinfo=UTC), levels=levels)
    record = await store.create("s1", user="local")
    pen = Pen()
    pen.write(prompt("t1", "a question"))
    await record.append(pen.history.entries[0])
    for detail, content in (("live", "a question"), ("gist", "gist of a question")):
        page = await store.page("s1", PageQuery(detail=detail))  # type: ignore[arg-type]
        assert [message["content"] for message in page.messages] == [content]
