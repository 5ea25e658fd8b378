"""Redaction: the words are gone wherever one looks, and all else is as it was."""

from __future__ import annotations

from nplt_storage.errors import BadEntry, ConversationReadOnly, StorageError
from nplt_storage.facts.entries import ClearEntry
from nplt_storage.testing.expecting import expect, expect_equal, refused
from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.rules.searching import found
from nplt_storage.testing.writing import (
    Writer,
    all_messages,
    answer,
    asking,
    entries_of,
    looking,
    prompt,
    row_of,
)

RULES = RuleBook()


@RULES.add
async def a_tombstone_stands_where_the_entry_was(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 4)
    before = list(writer.history.entries)
    at = make.clock()
    tombstone = await writer.record.redact(3, at=at)
    seen = (tombstone.seq, tombstone.id, tombstone.kind, tombstone.redacted_at)
    expect_equal(seen, (3, before[2].id, before[2].kind, at), "the tombstone")
    wanted = [*before[:2], tombstone, *before[3:]]
    expect_equal(await entries_of(store), wanted, "the entries")
    await writer.record.close()
    opened = await store.open("s1")
    expect_equal(list(opened.history.entries), wanted, "the history when opened again")


@RULES.add
async def redacted_words_are_nowhere(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(prompt("t1", "tell sesame to me"), answer("t1", "it is sesame"))
    await writer.write(prompt("t2", "and now"), answer("t2", "sesame again"))
    await writer.write(writer.history.rollback_to(2))
    for seq in (1, 2, 4):
        await writer.record.redact(seq, at=make.clock())
    row = await row_of(store)
    for what, seen in (
        ("the row", repr(row)),
        ("the messages", repr(await all_messages(store))),
        ("the entries", repr(await entries_of(store))),
        ("the texts", repr([await store.text_of("s1", seq) for seq in range(1, 6)])),
        ("what is found", repr(await found(store, "sesame")).replace("[]", "")),
    ):
        expect("sesame" not in seen, f"{what} still say it: {seen}")
    expect_equal(await found(store, "sesame"), [], "what is found")
    expect_equal((row.head_seq, row.message_count), (5, 2), "head and count of the row")


@RULES.add
async def a_redacted_result_takes_its_blob_along(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    alone = await writer.record.keep_blob(b"only here")
    shared = await writer.record.keep_blob(b"here and there")
    for number, blob in enumerate((alone, shared, shared)):
        turn_id = f"t{number}"
        await writer.write(prompt(turn_id), asking(turn_id), looking(turn_id, "x", blob))
        await writer.write(answer(turn_id, call=1))
    for seq in (3, 7):
        await writer.record.redact(seq, at=make.clock())
    with refused(StorageError, what="the blob of a redacted result"):
        await store.blob("s1", alone.blob_id, 0, 10)
    kept = await store.blob("s1", shared.blob_id, 0, 20)
    expect_equal(kept, b"here and there", "a blob that another result names")


@RULES.add
async def it_goes_on_after_a_redaction(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 2)
    await writer.record.redact(4, at=make.clock())
    await writer.turns(3, 4)
    await writer.record.close()
    again = Writer.of(make, await store.open("s1"))
    await again.turns(5, 5)
    expect_equal([e.seq for e in await entries_of(store)], list(range(1, 13)), "the numbers")


@RULES.add
async def what_can_not_be_redacted_is_refused(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(prompt("t1"), ClearEntry())
    before = await entries_of(store)
    for seq in (0, -1, 2, 3, 10**12):
        with refused(BadEntry, what=f"redacting entry {seq}"):
            await writer.record.redact(seq, at=make.clock())
    await writer.record.close()
    with refused(ConversationReadOnly, what="redacting through a closed record"):
        await writer.record.redact(1, at=make.clock())
    expect_equal(await entries_of(store), before, "the entries")
