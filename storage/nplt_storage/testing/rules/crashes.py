"""What was acknowledged is there when the process, or the machine under it, was not."""

from __future__ import annotations

from nplt_storage.facts.entries import RenamedEntry
from nplt_storage.testing.expecting import expect_equal
from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.rules.searching import found
from nplt_storage.testing.writing import Writer, entries_of, ids_of, prompt, row_of

RULES = RuleBook()


@RULES.add_where("crash")
async def what_was_acknowledged_survives_a_crash(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    blob = await writer.record.keep_blob(b"beside")
    await writer.turns(1, 6)
    await writer.write(RenamedEntry(name="plans"))
    row = await row_of(store)
    store = await make.after_crash(store)
    expect_equal(await entries_of(store), list(writer.history.entries), "the entries")
    expect_equal(await row_of(store), row, "the row")
    expect_equal(await ids_of(store), ["s1"], "the list")
    expect_equal(await store.blob("s1", blob.blob_id, 0, 10), b"beside", "the blob")
    expect_equal(len(await found(store, "ask")), 6, "messages found")


@RULES.add_where("crash")
async def it_goes_on_after_every_crash(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    for number in range(1, 5):
        await writer.turns(number, number)
        store = await make.after_crash(store)
        opened = await store.open("s1")
        before = list(writer.history.entries)
        expect_equal(list(opened.history.entries), before, f"the history after crash {number}")
        writer = Writer.of(make, opened)
    await writer.turns(5, 5)


@RULES.add_where("crash")
async def what_was_deleted_or_redacted_stays_so(make: StoreMaker) -> None:
    store = await make.store()
    for session_id in ("s1", "s2"):
        writer = await Writer.create(make, store, session_id)
        await writer.write(prompt("t1", "sesame"))
    tombstone = await writer.record.redact(1, at=make.clock())
    await store.delete("s1")
    store = await make.after_crash(store)
    expect_equal(await ids_of(store), ["s2"], "the list")
    expect_equal(await entries_of(store, "s2"), [tombstone], "the entries")
    expect_equal(await found(store, "sesame"), [], "what is found")
