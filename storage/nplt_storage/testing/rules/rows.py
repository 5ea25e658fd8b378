"""Rows and lists: what the entries say, in one order, page by page, each user's own."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from nplt_storage.conversation.row_lists import BadCursor, RowPage, RowQuery
from nplt_storage.conversation.rows import fold_all, new_row
from nplt_storage.facts.entries import (
    ArchivedEntry,
    Entry,
    ModelSwitchedEntry,
    NotebookEntry,
    PinnedEntry,
    RenamedEntry,
    SystemInstructionEntry,
)
from nplt_storage.store import ConversationStore
from nplt_storage.testing.expecting import expect, expect_equal, refused
from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.writing import (
    Writer,
    answer,
    entries_of,
    fault,
    ids_of,
    prompt,
    row_of,
)

RULES = RuleBook()


async def _three(make: StoreMaker, store: ConversationStore) -> list[Writer]:
    writers = [await Writer.create(make, store, f"s{number}") for number in range(3)]
    for number, writer in enumerate(writers):
        await writer.write(prompt("t1", f"Topic {number}"))
    return writers


@RULES.add
async def rows_are_what_the_entries_say(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    created = await row_of(store)
    said: list[list[Entry]] = [
        [prompt("t1", "What now?\nLater."), answer("t1", "This.")],
        [SystemInstructionEntry(content="be brief"), NotebookEntry(content="- milk")],
        [RenamedEntry(name="plans"), ModelSwitchedEntry(model="p/m"), PinnedEntry(pinned=True)],
        [prompt("t2"), prompt("t3"), fault("t3"), ArchivedEntry(archived=True)],
    ]
    for drafts in said:
        await writer.write(*drafts)
        start = new_row("s1", user="ada", created_at=created.created_at)
        wanted = fold_all(start, await entries_of(store))
        expect_equal(await row_of(store), wanted, "the row")
    row = await row_of(store)
    expect_equal((row.name, row.preview, row.message_count), ("plans", "hello", 4), "the row")


@RULES.add
async def a_list_has_pinned_ones_on_top_then_the_newest(make: StoreMaker) -> None:
    store = await make.store()
    writers = await _three(make, store)
    expect_equal(await ids_of(store), ["s2", "s1", "s0"], "the list")
    await writers[0].write(answer("t1"))
    expect_equal(await ids_of(store), ["s0", "s2", "s1"], "the list after a word in s0")
    await writers[1].write(PinnedEntry(pinned=True))
    await writers[2].write(answer("t1"))
    expect_equal(await ids_of(store), ["s1", "s2", "s0"], "the list with s1 pinned")
    await writers[1].write(PinnedEntry(pinned=False))
    await writers[0].write(prompt("t2"))
    expect_equal(await ids_of(store), ["s0", "s1", "s2"], "the list with nothing pinned")


@RULES.add
async def a_list_is_walked_page_by_page(make: StoreMaker) -> None:
    store = await make.store()
    for number in range(11):
        writer = await Writer.create(make, store, f"s{number:02}")
        if number in (3, 7):
            await writer.write(PinnedEntry(pinned=True))
    whole = await ids_of(store)
    expect_equal(sorted(whole), [f"s{number:02}" for number in range(11)], "the whole list")
    expect_equal(sorted(whole[:2]), ["s03", "s07"], "the pinned ones")
    for limit in (1, 4, 11):
        found: list[str] = []
        cursor = None
        while True:
            page = await store.list("ada", RowQuery(limit=limit, cursor=cursor))
            expect(len(page.rows) <= limit, f"a page of {limit} has {len(page.rows)} rows")
            found += [row.session_id for row in page.rows]
            expect(len(found) <= len(whole), f"a list of {len(whole)} has no end")
            if (cursor := page.next_cursor) is None:
                break
        expect_equal(found, whole, f"the list by {limit}")


@RULES.add
async def a_list_can_be_walked_while_conversations_move(make: StoreMaker) -> None:
    store = await make.store()
    writers = {f"s{n}": await Writer.create(make, store, f"s{n}") for n in range(6)}
    first = await store.list("ada", RowQuery(limit=2))
    expect_equal([row.session_id for row in first.rows], ["s5", "s4"], "the first page")
    await writers["s1"].write(prompt("t1"))
    await writers["s5"].write(prompt("t1"))
    rest = await store.list("ada", RowQuery(limit=10, cursor=first.next_cursor))
    found = [row.session_id for row in rest.rows]
    expect_equal(found, ["s3", "s2", "s0"], "the rest: what moved is at the top now")


@RULES.add
async def a_list_can_be_narrowed(make: StoreMaker) -> None:
    store = await make.store()
    writers = await _three(make, store)
    await writers[0].write(answer("t1"), ArchivedEntry(archived=True))
    await writers[1].write(RenamedEntry(name="Straße nach Süden"))
    await writers[2].write(answer("t1"))

    async def found(query: RowQuery) -> list[str]:
        page: RowPage = await store.list("ada", query)
        return [row.session_id for row in page.rows]

    for query, wanted in (
        (RowQuery(archived=True), ["s0"]),
        (RowQuery(archived=False), ["s2", "s1"]),
        (RowQuery(name_has="STRASSE"), ["s1"]),
        (RowQuery(name_has="topic"), ["s2", "s0"]),
        (RowQuery(name_is="Topic 2"), ["s2"]),
        (RowQuery(name_is="topic 2"), []),
        (RowQuery(id_prefix="s1"), ["s1"]),
        (RowQuery(id_prefix="S"), []),
        (RowQuery(unfinished=True), ["s1"]),
        (RowQuery(archived=True, name_has="topic", id_prefix="s", limit=1), ["s0"]),
    ):
        expect_equal(await found(query), wanted, f"{query}")


@RULES.add
async def what_is_no_cursor_is_refused(make: StoreMaker) -> None:
    store = await make.store()
    await _three(make, store)
    for bad in ("", "x", "bm9uc2Vuc2U=", "é"):
        with refused(BadCursor, what=f"the cursor {bad!r}"):
            await store.list("ada", RowQuery(cursor=bad))


@RULES.add
async def users_see_their_own_only(make: StoreMaker) -> None:
    store = await make.store()
    await _three(make, store)
    await (await Writer.create(make, store, "b1", user="bob")).write(prompt("t1", "Topic of bob"))
    expect_equal(await ids_of(store), ["s2", "s1", "s0"], "the list of ada")
    expect_equal(await ids_of(store, "bob"), ["b1"], "the list of bob")
    expect_equal(await ids_of(store, "eve"), [], "the list of nobody")
    counts = [await store.count(user) for user in ("ada", "bob", "eve")]
    expect_equal(counts, [3, 1, 0], "how many they have")


@RULES.add
async def last_access_is_remembered(make: StoreMaker) -> None:
    store = await make.store()
    await store.create("s1", user="ada")
    row = await row_of(store)
    at = row.last_accessed + timedelta(days=1)
    store.touch("s1", at)
    store.touch("s1", at - timedelta(hours=1))
    expect_equal(await row_of(store), replace(row, last_accessed=at), "the row")


@RULES.add
async def it_says_what_it_is_and_what_it_promises(make: StoreMaker) -> None:
    store = await make.store()
    expect(store.description.backend, "the backend has no name")
    expect(store.description.promise, "the backend promises nothing")
