"""A prompt sent twice is known, however long ago the first came, and runs once."""

from __future__ import annotations

from dataclasses import replace

from nplt_storage.conversation.sent_before import SentBefore
from nplt_storage.errors import ConversationNotFound
from nplt_storage.facts.entries import FaultEntry, ModelInputEntry
from nplt_storage.facts.redaction import REDACTED
from nplt_storage.store import ConversationStore
from nplt_storage.testing.expecting import expect_equal, refused
from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.rules.building import ORIGIN
from nplt_storage.testing.writing import (
    Writer,
    answer,
    asking,
    drafted,
    entries_of,
    fault,
    looking,
    prompt,
)

RULES = RuleBook()


def named(number: int) -> ModelInputEntry:
    return replace(prompt(f"t{number}", f"ask {number}"), message_id=f"m{number}")


async def _seen(
    store: ConversationStore, number: int, session_id: str = "s1"
) -> tuple[int, str, str, str | None] | None:
    found = await store.prompt_with(session_id, f"m{number}")
    return None if found is None else (found.seq, found.turn_id, found.state, found.text)


@RULES.add
async def a_prompt_that_was_sent_is_known_by_its_name(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    failed = FaultEntry(turn_id="t4", content="no", code="provider_refused", state="failed")
    await writer.write(named(1), answer("t1"), prompt("t2"), answer("t2"))
    # Three that came one upon the other, and ended in another order.
    await writer.write(named(3), named(4), named(5), asking("t3"), looking("t3"))
    await writer.write(fault("t5"), failed, answer("t3", call=1), named(6))
    expect_equal(await _seen(store, 1), (1, "t1", "completed", "ask 1"), "one that is answered")
    expect_equal(await _seen(store, 3), (5, "t3", "completed", "ask 3"), "one that used a tool")
    expect_equal(await _seen(store, 4), (6, "t4", "failed", "ask 4"), "one that failed")
    expect_equal(await _seen(store, 5), (7, "t5", "interrupted", "ask 5"), "one that was stopped")
    expect_equal(await _seen(store, 6), (13, "t6", "waiting", "ask 6"), "one that waits")
    expect_equal(await _seen(store, 2), None, "one without a name")
    with refused(ConversationNotFound, what="asking where nothing is"):
        await store.prompt_with("s2", "m1")


@RULES.add
async def what_was_taken_back_or_erased_was_still_sent(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(named(1), answer("t1"), named(2), answer("t2"))
    await writer.write(writer.history.rollback_to(2), named(3), answer("t3"))
    await writer.write(writer.history.rollback_to(6))
    expect_equal(await _seen(store, 2), (3, "t2", "completed", "ask 2"), "one taken back")
    wanted = (6, "t3", "interrupted", "ask 3")
    expect_equal(await _seen(store, 3), wanted, "one whose answer was taken back")
    await writer.record.redact(1, at=make.clock())
    expect_equal(await _seen(store, 1), (1, "t1", "completed", REDACTED), "one that was erased")
    await writer.record.close()
    await Writer.of(make, await store.open("s1")).write(named(4))
    expect_equal(await _seen(store, 4), (9, "t4", "waiting", "ask 4"), "one that came after")
    expect_equal((await _seen(store, 2) or (0,))[0], 3, "the one taken back")


@RULES.add
async def a_name_belongs_to_its_conversation(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(named(1), answer("t1"))
    async with store.build("s2", ORIGIN) as builder:
        await builder.add([*await entries_of(store)])
    async with store.build("s3", ORIGIN) as builder:
        await builder.add(drafted(make, 1))
    await writer.write(named(2))
    wanted = (1, "t1", "completed", "ask 1")
    expect_equal(await _seen(store, 1, "s2"), wanted, "what a copy was given")
    expect_equal(await _seen(store, 2, "s2"), None, "what was sent to the other later")
    expect_equal(await _seen(store, 1, "s3"), None, "what was sent to another")
    await store.delete("s1")
    with refused(ConversationNotFound, what="asking one that was deleted"):
        await store.prompt_with("s1", "m1")
    await (await Writer.create(make, store)).write(named(3))
    expect_equal(await _seen(store, 1), None, "what was sent to the one before")
    await store.delete("s1")
    await store.undelete("s1")
    expect_equal(await _seen(store, 3), (1, "t3", "waiting", "ask 3"), "after undeleting")


@RULES.add_where("last")
async def what_was_sent_is_known_to_the_next_store(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    for number in range(1, 9):
        await writer.write(named(number), answer(f"t{number}"))
    for _ in range(2):
        store = await make.reopened(store)
        found = [await _seen(store, number) for number in range(1, 10)]
        wanted = [(2 * n - 1, f"t{n}", "completed", f"ask {n}") for n in range(1, 9)]
        expect_equal(found, [*wanted, None], "what was sent")


@RULES.add_where("trim")
async def what_was_trimmed_was_still_sent(make: StoreMaker) -> None:
    store = await make.store(max_turns=2)
    writer = await Writer.create(make, store)
    await writer.write(named(1), fault("t1"))
    for number in range(2, 6):
        await writer.write(named(number), answer(f"t{number}"))
    expect_equal(
        [await store.prompt_with("s1", f"m{number}") for number in (1, 2, 4, 6)],
        [
            SentBefore(seq=1, turn_id="t1", state="interrupted", text=None),
            SentBefore(seq=3, turn_id="t2", state="completed", text=None),
            SentBefore(seq=7, turn_id="t4", state="completed", text="ask 4"),
            None,
        ],
        "what was sent",
    )
    await writer.record.redact(9, at=make.clock())
    expect_equal((await _seen(store, 1) or (0,))[0], 1, "the first, after an erasure")
