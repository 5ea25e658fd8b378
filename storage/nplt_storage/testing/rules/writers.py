"""A conversation has one writer at a time, whoever else would like to be it."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from nplt_storage.conversation.paging import PageQuery
from nplt_storage.errors import (
    BadEntry,
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
)
from nplt_storage.store import ConversationStore
from nplt_storage.testing.expecting import RuleBroken, expect, expect_equal, refused
from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.writing import (
    HOSTILE_IDS,
    Writer,
    answer,
    entries_of,
    ids_of,
    prompt,
    row_of,
    without_gaps,
)

RULES = RuleBook()
_TRIES_MAX = 10_000


@RULES.add
async def a_conversation_is_open_once(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    with refused(ConversationReadOnly, what="opening it while it is open"):
        await store.open("s1")
    await writer.write(prompt("t1"))
    await writer.record.close()
    await store.open("s1")
    with refused(ConversationReadOnly, what="opening it a second time"):
        await store.open("s1")


@RULES.add
async def a_closed_record_writes_nothing(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.record.close()
    await writer.record.close()
    second = Writer.of(make, await store.open("s1"))
    with refused(ConversationReadOnly, what="appending to a closed record"):
        await writer.write(prompt("t1"))
    writer.record.say("t1", 0, "text", "nothing comes of it")
    await second.write(prompt("t2"))
    await writer.record.close()
    await second.write(answer("t2"))
    expect_equal(len(await entries_of(store)), 2, "entries")


@RULES.add
async def the_same_id_is_not_given_twice(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(prompt("t1"))
    with refused(ConversationExists, what="creating it again"):
        await store.create("s1", user="bob")
    expect_equal((await row_of(store)).user, "ada", "whose it is")
    await writer.write(answer("t1"))
    expect_equal(len(await entries_of(store)), 2, "entries")


@RULES.add
async def an_id_that_could_be_a_path_is_refused(make: StoreMaker) -> None:
    store = await make.store()
    for hostile in HOSTILE_IDS:
        with refused(ConversationNotFound, what=f"creating {hostile!r}"):
            await store.create(hostile, user="ada")
    expect_equal(await ids_of(store), [], "the list")


@RULES.add
async def what_is_not_there_is_not_found(make: StoreMaker) -> None:
    store = await make.store()
    await store.create("s1", user="ada")
    for unknown in ("s2", *HOSTILE_IDS):
        expect(await store.row(unknown) is None, f"there is a row of {unknown!r}")
        store.touch(unknown, make.clock())
        for what, ask in (
            ("open", lambda id_: store.open(id_)),
            ("page", lambda id_: store.page(id_, PageQuery())),
            ("text_of", lambda id_: store.text_of(id_, 1)),
            ("entries", lambda id_: entries_of(store, id_)),
            ("blob", lambda id_: store.blob(id_, "0" * 64, 0, 1)),
            ("origin", lambda id_: store.origin(id_)),
            ("delete", lambda id_: store.delete(id_)),
            ("undelete", lambda id_: store.undelete(id_)),
        ):
            with refused(ConversationNotFound, what=f"{what} of {unknown!r}"):
                await ask(unknown)
    expect_equal(await ids_of(store), ["s1"], "the list")


@RULES.add_where("share")
async def a_stale_writer_is_refused_and_changes_nothing(make: StoreMaker) -> None:
    first, second = await make.store(), await make.store()
    writer = await Writer.create(make, first)
    await writer.write(prompt("t1"))
    try:
        other = Writer.of(make, await second.open("s1"))
    except ConversationReadOnly:
        return  # it may only be open once, whoever asks: that will do
    await writer.write(answer("t1"))
    row = await row_of(first)
    for _ in range(2):
        with refused(BadEntry, ConversationReadOnly, what="the append of a stale writer"):
            await other.write(answer("t1", "another answer"))
    expect_equal(await entries_of(first), list(writer.history.entries), "the entries")
    expect_equal(await row_of(first), row, "the row")
    await other.record.close()
    again = Writer.of(make, await second.open("s1"))
    await again.write(prompt("t2"))
    expect_equal(len(await entries_of(first)), 3, "entries after it was opened again")


@RULES.add_where("share")
async def two_stores_that_contend_lose_and_mix_nothing(make: StoreMaker) -> None:
    first, second = await make.store(), await make.store()
    writer = await Writer.create(make, first)
    await writer.record.close()
    kept: list[str] = []

    async def contend(store: ConversationStore, name: str) -> None:
        for number in range(12):
            for _ in range(_TRIES_MAX):
                if await _one_turn(make, store, f"{name}{number}", kept):
                    break
                await anyio.lowlevel.checkpoint()
            else:
                raise RuleBroken(f"{name} never gets to write")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(contend, first, "a")
        tasks.start_soon(contend, second, "b")
    found = await entries_of(first)
    expect(without_gaps(found), "the numbers have gaps")
    expect_equal(sorted(entry.id for entry in found), sorted(kept), "what was acknowledged")
    expect_equal((await row_of(second)).head_seq, 24, "the head in the row")


async def _one_turn(
    make: StoreMaker, store: ConversationStore, turn_id: str, kept: list[str]
) -> bool:
    """Whether the prompt got in; each try sees what is there then."""
    try:
        writer = Writer.of(make, await store.open("s1"))
    except ConversationReadOnly:
        return False
    try:
        (entry,) = await writer.write(prompt(turn_id))
    except (BadEntry, ConversationReadOnly):
        return False
    else:
        kept.append(entry.id)
        return True
    finally:
        await writer.record.close()
