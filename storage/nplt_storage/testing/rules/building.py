"""Building a whole conversation: there in one step, or not at all."""

from __future__ import annotations

from nplt_storage.conversation.rows import fold_all, new_row
from nplt_storage.errors import BadEntry, ConversationExists, ConversationNotFound
from nplt_storage.store import Origin
from nplt_storage.testing.expecting import expect, expect_equal, refused
from nplt_storage.testing.maker import START, StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.rules.searching import found
from nplt_storage.testing.writing import (
    HOSTILE_IDS,
    Writer,
    drafted,
    entries_of,
    ids_of,
    prompt,
    row_of,
)

RULES = RuleBook()
ORIGIN = Origin(user="ada", created_at=START, extra={"title": "old", "list": [1, None]})


class _GivenUp(Exception):
    pass


@RULES.add
async def what_was_built_is_there_in_one_step(make: StoreMaker) -> None:
    store = await make.store()
    entries = drafted(make, 10)
    async with store.build("s1", ORIGIN) as builder:
        await builder.add(entries[:7])
        expect_equal(await ids_of(store), [], "the list while it is built")
        expect(await store.row("s1") is None, "there is a row while it is built")
        await builder.add(entries[7:])
        blob = await builder.keep_blob(b"whole")
    expect_equal(await entries_of(store), entries, "the entries")
    wanted = fold_all(new_row("s1", user="ada", created_at=START), entries)
    expect_equal(await row_of(store), wanted, "the row")
    expect_equal(await ids_of(store), ["s1"], "the list")
    expect_equal(await store.origin("s1"), ORIGIN, "the origin")
    expect_equal(await store.blob("s1", blob.blob_id, 0, 10), b"whole", "the blob")
    expect_equal(len(await found(store, "ask")), 10, "messages found")
    await Writer.of(make, await store.open("s1")).write(prompt("new"))


@RULES.add
async def what_was_given_up_leaves_nothing(make: StoreMaker) -> None:
    store = await make.store()
    try:
        async with store.build("s1", ORIGIN) as builder:
            await builder.add(drafted(make, 5))
            await builder.keep_blob(b"half")
            raise _GivenUp
    except _GivenUp:
        pass
    expect_equal(await ids_of(store), [], "the list")
    expect_equal(await found(store, "ask"), [], "what is found of it")
    with refused(ConversationNotFound, what="reading it"):
        await entries_of(store)
    await Writer.create(make, store)


@RULES.add
async def a_gap_in_what_is_built_is_refused(make: StoreMaker) -> None:
    store = await make.store()
    entries = drafted(make, 5)
    for batches in ([entries[1:]], [entries[:2], entries[3:]], [entries[:2], entries[1:]]):
        with refused(BadEntry, what="a gap, or a number twice"):
            async with store.build("s1", ORIGIN) as builder:
                for batch in batches:
                    await builder.add(batch)
    expect_equal(await ids_of(store), [], "the list")


@RULES.add
async def an_empty_one_can_be_built(make: StoreMaker) -> None:
    store = await make.store()
    async with store.build("s1", ORIGIN):
        pass
    expect_equal((await row_of(store)).head_seq, 0, "the head")
    await Writer.of(make, await store.open("s1")).write(prompt("t1"))


@RULES.add
async def building_replaces_nothing(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(prompt("t1"))
    with refused(ConversationExists, what="building under an id that is taken"):
        async with store.build("s1", ORIGIN) as builder:
            await builder.add(drafted(make, 2))
    expect_equal(await entries_of(store), list(writer.history.entries), "the entries")
    for hostile in HOSTILE_IDS:
        with refused(ConversationNotFound, what=f"building {hostile!r}"):
            async with store.build(hostile, ORIGIN):
                pass


@RULES.add
async def an_id_taken_meanwhile_is_not_taken_away(make: StoreMaker) -> None:
    store = await make.store()
    with refused(ConversationExists, what="an id that was taken while it was built"):
        async with store.build("s1", ORIGIN) as builder:
            await builder.add(drafted(make, 2))
            writer = await Writer.create(make, store, user="bob")
    await writer.write(prompt("t1"))
    expect_equal((await row_of(store)).user, "bob", "whose it is")
    expect_equal(len(await entries_of(store)), 1, "entries")


@RULES.add
async def the_origin_of_a_created_one_is_known(make: StoreMaker) -> None:
    store = await make.store()
    await store.create("s1", user="ada")
    row = await row_of(store)
    expect_equal(await store.origin("s1"), Origin(user="ada", created_at=row.created_at), "origin")
