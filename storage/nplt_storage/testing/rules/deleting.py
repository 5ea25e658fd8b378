"""Deleting: gone wherever one looks, and back whole if someone thinks better of it."""

from __future__ import annotations

from nplt_storage.conversation.paging import PageQuery
from nplt_storage.errors import (
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
    StorageError,
)
from nplt_storage.facts.entries import PinnedEntry
from nplt_storage.testing.expecting import expect, expect_equal, refused
from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.rules.searching import found
from nplt_storage.testing.writing import Writer, entries_of, ids_of, prompt, row_of

RULES = RuleBook()


@RULES.add
async def a_deleted_conversation_is_gone(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 2)
    await store.delete("s1")
    expect_equal(await ids_of(store), [], "the list")
    expect_equal(await store.count("ada"), 0, "the count")
    expect(await store.row("s1") is None, "there is still a row")
    expect_equal(await found(store, "ask"), [], "what is found")
    with refused(ConversationNotFound, what="opening it"):
        await store.open("s1")
    with refused(ConversationNotFound, what="a page of it"):
        await store.page("s1", PageQuery())
    with refused(ConversationNotFound, what="deleting it again"):
        await store.delete("s1")


@RULES.add
async def the_writer_of_a_deleted_conversation_writes_nothing(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(prompt("t1"))
    await store.delete("s1")
    with refused(ConversationReadOnly, ConversationNotFound, what="appending to it"):
        await writer.write(prompt("t2"))
    new = await Writer.create(make, store, user="bob")
    with refused(StorageError, what="appending to the one that was deleted"):
        await writer.write(prompt("t3"))
    await writer.record.close()
    await new.write(prompt("t4"))
    expect_equal([e.turn_id for e in await entries_of(store)], ["t4"], "the new one's turns")
    with refused(ConversationReadOnly, what="opening it while it is open"):
        await store.open("s1")


@RULES.add
async def an_undeleted_conversation_is_as_it_was(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    blob = await writer.record.keep_blob(b"beside")
    await writer.turns(1, 3)
    await writer.write(PinnedEntry(pinned=True))
    row, entries = await row_of(store), await entries_of(store)
    await store.delete("s1")
    await store.undelete("s1")
    expect_equal(await row_of(store), row, "the row")
    expect_equal(await entries_of(store), entries, "the entries")
    expect_equal(await store.blob("s1", blob.blob_id, 0, 10), b"beside", "its blob")
    expect_equal(await ids_of(store), ["s1"], "the list")
    expect_equal(len(await found(store, "ask")), 3, "messages found")
    await Writer.of(make, await store.open("s1")).turns(4, 4)


@RULES.add
async def only_ones_own_is_brought_back(make: StoreMaker) -> None:
    store = await make.store()
    await (await Writer.create(make, store)).write(prompt("t1"))
    await store.delete("s1")
    with refused(ConversationNotFound, what="undeleting another user's"):
        await store.undelete("s1", user="eve")
    expect_equal(await ids_of(store), [], "the list")
    await store.undelete("s1", user="ada")
    expect_equal(await ids_of(store), ["s1"], "the list after undeleting")


@RULES.add
async def it_is_told_whether_another_may_bring_it_back(make: StoreMaker) -> None:
    store = await make.store()
    await (await Writer.create(make, store)).write(prompt("t1"))
    asked = [("s1", "eve"), ("s1", "ada"), ("s2", "eve")]
    for told in (False, True, False):
        answers = [await store.is_trash_of_another(*each) for each in asked]
        expect_equal(answers, [told, False, False], "is it another's")
        await (store.undelete("s1") if told else store.delete("s1"))


@RULES.add
async def undeleting_replaces_nothing(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    with refused(ConversationNotFound, what="undeleting what was not deleted"):
        await store.undelete("s2")
    await writer.write(prompt("t1", "old"))
    await store.delete("s1")
    new = await Writer.create(make, store)
    await new.write(prompt("t1", "new"))
    with refused(ConversationExists, what="undeleting under an id that is taken"):
        await store.undelete("s1")
    expect_equal(await store.text_of("s1", 1), "new", "what is there")


@RULES.add_where("last")
async def what_was_deleted_stays_so_for_the_next_store(make: StoreMaker) -> None:
    store = await make.store()
    for session_id in ("s1", "s2"):
        await (await Writer.create(make, store, session_id)).write(prompt("t1"))
    await store.delete("s1")
    store = await make.reopened(store)
    expect_equal(await ids_of(store), ["s2"], "the list")
    await store.undelete("s1")
    store = await make.reopened(store)
    expect_equal(sorted(await ids_of(store)), ["s1", "s2"], "the list after undeleting")
