"""Searching what was said: the newest first, page by page, each user's own."""

from __future__ import annotations

from nplt_storage.conversation.searching import SearchQuery
from nplt_storage.facts.entries import NotebookEntry
from nplt_storage.store import ConversationStore
from nplt_storage.testing.expecting import expect, expect_equal
from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.writing import Writer, answer, prompt

RULES = RuleBook()


async def found(store: ConversationStore, text: str, user: str = "ada") -> list[tuple[str, int]]:
    page = await store.search(user, SearchQuery(text=text, limit=100))
    return [(hit.session_id, hit.seq) for hit in page.hits]


@RULES.add
async def what_was_said_is_found_the_newest_first(make: StoreMaker) -> None:
    store = await make.store()
    one = await Writer.create(make, store, "s1")
    two = await Writer.create(make, store, "s2")
    await one.write(prompt("t1", "Where is the Blue whale?"), answer("t1", "In the sea."))
    await two.write(prompt("t1", "A blue bird"), NotebookEntry(content="blue, unsaid"))
    await one.write(prompt("t2", "blues"))
    expect_equal(await found(store, "blue"), [("s1", 3), ("s2", 1), ("s1", 1)], "blue")
    expect_equal(await found(store, "BLUE whale"), [("s1", 1)], "two words")
    expect_equal(await found(store, "green"), [], "what nobody said")
    page = await store.search("ada", SearchQuery(text="sea"))
    expect("sea" in page.hits[0].snippet, "the snippet does not show what was found")
    expect_equal(page.hits[0].role, "assistant", "who said it")


@RULES.add
async def what_was_found_is_walked_page_by_page(make: StoreMaker) -> None:
    store = await make.store()
    for number in range(3):
        writer = await Writer.create(make, store, f"s{number}")
        for turn in range(3):
            await writer.write(prompt(f"t{turn}", f"needle {turn}"), answer(f"t{turn}", "hay"))
    whole = await found(store, "needle")
    expect_equal(len(whole), 9, "how many were found")
    walked: list[tuple[str, int]] = []
    cursor = None
    while True:
        page = await store.search("ada", SearchQuery(text="needle", limit=4, cursor=cursor))
        walked += [(hit.session_id, hit.seq) for hit in page.hits]
        expect(len(walked) <= len(whole), f"{len(whole)} messages have no end")
        if (cursor := page.next_cursor) is None:
            break
    expect_equal(walked, whole, "what was found, by four")


@RULES.add
async def nobody_finds_what_others_said(make: StoreMaker) -> None:
    store = await make.store()
    await (await Writer.create(make, store, "s1")).write(prompt("t1", "a secret"))
    await (await Writer.create(make, store, "b1", user="bob")).write(prompt("t1", "secret too"))
    expect_equal(await found(store, "secret"), [("s1", 1)], "what ada finds")
    expect_equal(await found(store, "secret", "bob"), [("b1", 1)], "what bob finds")
    expect_equal(await found(store, "secret", "eve"), [], "what a stranger finds")
