"""Pages: every message once, whichever way one walks and whoever writes meanwhile."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from nplt_storage.conversation.paging import PageQuery
from nplt_storage.facts.entries import ClearEntry
from nplt_storage.store import ConversationStore, Origin
from nplt_storage.testing.expecting import expect, expect_equal
from nplt_storage.testing.maker import START, StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.writing import (
    Writer,
    answer,
    drafted,
    entries_of,
    messages_among,
    numbers_in,
    prompt,
)

RULES = RuleBook()


async def walk_back(store: ConversationStore, limit: int) -> list[object]:
    page = await store.page("s1", PageQuery(limit=limit))
    found = numbers_in(page)
    while page.has_more_before:
        older = await store.page("s1", PageQuery(before=page.before, limit=limit))
        expect(older.messages and older.before < page.before, "a page leads nowhere")
        page = older
        found = numbers_in(page) + found
        await anyio.lowlevel.checkpoint()
    return found


async def _walk_on(store: ConversationStore, limit: int, *, through: int) -> list[object]:
    found: list[object] = []
    after = 0
    while after < through:
        page = await store.page("s1", PageQuery(after=after, limit=limit))
        expect(page.after > after, "a page leads nowhere")
        found += numbers_in(page)
        after = page.after
        await anyio.lowlevel.checkpoint()
    return found


@RULES.add
async def both_ways_meet_every_message_once(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 7)
    messages = messages_among(writer.history.entries)
    for limit in (1, 3, 100):
        expect_equal(await walk_back(store, limit), messages, f"walking back by {limit}")
        walked = await _walk_on(store, limit, through=messages[-1])
        expect_equal(walked, messages, f"walking on by {limit}")


@RULES.add
async def walking_while_it_grows_meets_every_message_once(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 4)
    is_done = anyio.Event()

    async def walk_all_back() -> None:
        while not is_done.is_set():
            found = await walk_back(store, 3)
            messages = messages_among(await entries_of(store))
            expect_equal(found, messages[: len(found)], "walking back while it grows")
            await anyio.lowlevel.checkpoint()

    async def walk_on(limit: int) -> None:
        found: list[object] = []
        after = 0
        while not is_done.is_set() or after < messages_among(writer.history.entries)[-1]:
            is_all_there = is_done.is_set()
            page = await store.page("s1", PageQuery(after=after, limit=limit))
            expect(page.messages or not is_all_there, "what was written last is not there")
            found += numbers_in(page)
            after = max(after, page.after)
            await anyio.lowlevel.checkpoint()
        expect_equal(found, messages_among(writer.history.entries), "walking on while it grows")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(walk_all_back)
        tasks.start_soon(walk_on, 1)
        tasks.start_soon(walk_on, 5)
        for number in range(5, 11):
            await writer.turns(number, number)
            await anyio.lowlevel.checkpoint()  # a store that never waits lets nobody else in
        is_done.set()


@RULES.add
async def a_page_around_a_message_holds_it_and_its_neighbours(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 7)
    messages = messages_among(writer.history.entries)
    middle = messages[len(messages) // 2]
    page = await store.page("s1", PageQuery(around=middle, limit=5))
    found = numbers_in(page)
    start = next((place for place, seq in enumerate(messages) if seq in found), 0)
    expect(middle in found, "the message itself is missing")
    expect_equal(found, messages[start : start + 5], "a page around a message")
    expect(page.has_more_before and page.has_more_after, "there is more on both sides")


@RULES.add
async def a_page_is_not_larger_than_asked_for_and_never_empty(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    for number in range(8):
        await writer.write(prompt(f"t{number}", "q" * 900), answer(f"t{number}", "a" * 900))
    query = PageQuery(max_bytes=3000)
    page = await store.page("s1", query)
    size = sum(query.size(message) for message in page.messages)
    expect(0 < size <= 3000, f"a page of 3000 bytes has {size}")
    expect_equal(numbers_in(page)[-1], 16, "the newest message")
    small = await store.page("s1", PageQuery(max_bytes=600, after=3))
    expect_equal(numbers_in(small), [4], "a page that has no room for a whole message")
    expect_equal(small.messages[0]["truncated"], True, "whether it says that it was cut")


@RULES.add
async def a_page_is_the_same_open_or_closed(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 6)
    await writer.write(ClearEntry())
    queries = [
        PageQuery(),
        PageQuery(before=11, limit=3),
        PageQuery(around=5, view="entries"),
        PageQuery(after=2, roles=("assistant",)),
    ]
    while_open = [await store.page("s1", query) for query in queries]
    await writer.record.close()
    expect_equal([await store.page("s1", q) for q in queries], while_open, "pages when closed")
    seen = numbers_in(await store.page("s1", PageQuery(view="entries", limit=100)))
    expect_equal(seen, [entry.seq for entry in writer.history.entries], "the entries view")


@RULES.add
async def tool_results_are_joined_to_their_calls(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(3, 3)
    page = await store.page("s1", PageQuery(before=3))
    calls = page.messages[-1]["tool_calls"]
    results = [call["result"] for call in calls if isinstance(call, dict)]  # type: ignore[union-attr]
    expect_equal(results, ["seen"], "the result of a call, told in a later entry")


@RULES.add
async def the_whole_text_of_one_entry_can_be_had(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    text = "漢\x00" * 100_000
    await writer.write(prompt("t1", text), answer("t1"), ClearEntry())
    expect(await store.text_of("s1", 1) == text, "a long text came back changed")
    expect_equal(await store.text_of("s1", 2), "hi", "a short text")
    for nothing in (3, 4, 0, -1, 10**20):
        expect_equal(await store.text_of("s1", nothing), None, f"the text of entry {nothing}")


@RULES.add
async def entries_can_be_had_in_part(make: StoreMaker) -> None:
    store = await make.store()
    whole = drafted(make, 40)
    async with store.build("s1", Origin(user="ada", created_at=START)) as builder:
        await builder.add(whole)
    for after, through in ((0, None), (5, None), (0, 7), (3, 4), (4, 4), (len(whole), None)):
        found = await entries_of(store, after=after, through=through)
        what = f"entries after {after} through {through}"
        expect_equal(found, whole[after : len(whole) if through is None else through], what)
    async for batch in store.entries("s1"):
        expect(batch, "a batch is empty")
