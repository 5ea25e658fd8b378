"""A rollback is one more fact: pages show what stands, and nothing is erased."""

from __future__ import annotations

from nplt_storage.conversation.paging import PageQuery
from nplt_storage.facts.entries import SystemInstructionEntry
from nplt_storage.testing.expecting import expect_equal
from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.rules.pages import walk_back
from nplt_storage.testing.rules.searching import found
from nplt_storage.testing.writing import (
    Writer,
    all_messages,
    answer,
    entries_of,
    messages_among,
    numbers_in,
    prompt,
    row_of,
)

RULES = RuleBook()


@RULES.add
async def pages_show_what_stands(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 8)
    await writer.write(writer.history.rollback_to(4))
    await writer.turns(9, 10)
    wanted = messages_among(writer.history.standing)
    expect_equal(wanted[:4], [1, 2, 3, 4], "what stands")
    expect_equal(numbers_in(await all_messages(store)), wanted, "the messages")
    expect_equal(await walk_back(store, 2), wanted, "the messages by two")


@RULES.add
async def nothing_is_erased_by_a_rollback(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 4)
    await writer.write(writer.history.rollback_to(2))
    expect_equal(await entries_of(store), list(writer.history.entries), "the entries")
    raw = await store.page("s1", PageQuery(view="entries", limit=100))
    expect_equal(len(raw.messages), writer.history.head_seq, "lines in the entries view")
    expect_equal(await store.text_of("s1", 3), "ask 2", "the text of an entry taken back")


@RULES.add
async def rows_and_searches_follow_a_rollback(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(prompt("t1", "keep"), answer("t1", "kept words"))
    await writer.write(prompt("t2", "drop"), answer("t2", "dropped words"))
    await writer.write(writer.history.rollback_to(2))
    row = await row_of(store)
    seen = (row.message_count, row.preview, row.head_seq)
    expect_equal(seen, (2, "kept words", 5), "count, preview and head of the row")
    expect_equal(await found(store, "words"), [("s1", 2)], "what is found")


@RULES.add
async def everything_can_be_taken_back(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 2)
    await writer.write(writer.history.rollback_to(0))
    expect_equal(numbers_in(await all_messages(store)), [], "the messages")
    expect_equal((await row_of(store)).message_count, 0, "the count in the row")
    await writer.record.close()
    again = Writer.of(make, await store.open("s1"))
    expect_equal(list(again.history.standing), [], "what stands")
    await again.turns(3, 3)
    wanted = messages_among(again.history.standing)
    expect_equal(wanted[0], again.history.standing[0].seq, "the first that stands")
    expect_equal(numbers_in(await all_messages(store)), wanted, "the messages after it")


@RULES.add
async def it_is_opened_as_it_stands(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(SystemInstructionEntry(content="first"))
    await writer.turns(1, 3)
    await writer.write(SystemInstructionEntry(content="second"))
    await writer.turns(4, 5)
    await writer.write(writer.history.rollback_to(5))
    await writer.record.close()
    opened = await store.open("s1")
    history = opened.history
    expect_equal(list(history.standing), list(writer.history.standing), "what stands")
    expect_equal(history.system_instruction, "first", "the instruction")
    expect_equal(history.message_count, writer.history.message_count, "the count")
    again = Writer.of(make, opened)
    await again.turns(6, 6)
    await again.write(again.history.rollback_to(3))
    wanted = messages_among(again.history.standing)
    expect_equal(numbers_in(await all_messages(store)), wanted, "messages after the second")
