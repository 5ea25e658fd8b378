"""What a running answer has said outlives its server, until the record knows better."""

from __future__ import annotations

from nplt_storage.facts.entries import Entry
from nplt_storage.store import ConversationStore, SaidSoFar
from nplt_storage.testing.expecting import expect, expect_equal
from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.writing import Writer, answer, asking, fault, looking, prompt

RULES = RuleBook()


async def _said(store: ConversationStore, writer: Writer) -> SaidSoFar | None:
    await writer.record.close()
    return (await store.open("s1")).said


@RULES.add
async def what_was_said_is_there_when_opened_again(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(prompt("t1"), asking("t1"), looking("t1"))
    writer.record.say("t1", 1, "reasoning", "hm, ")
    writer.record.say("t1", 1, "text", "It ")
    writer.record.say("t1", 1, "reasoning", "so\n")
    writer.record.say("t1", 1, "text", "was \x00漢")
    wanted = SaidSoFar(turn_id="t1", call=1, text="It was \x00漢", reasoning="hm, so\n")
    expect_equal(await _said(store, writer), wanted, "what was said so far")


@RULES.add
async def the_words_of_an_earlier_call_are_not_mixed_in(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(prompt("t1"))
    writer.record.say("t1", 0, "text", "first")
    await writer.write(asking("t1"), looking("t1"))
    writer.record.say("t1", 1, "text", "second")
    wanted = SaidSoFar(turn_id="t1", call=1, text="second")
    expect_equal(await _said(store, writer), wanted, "what was said so far")


@RULES.add
async def what_became_an_entry_is_forgotten(make: StoreMaker) -> None:
    store = await make.store()
    ends: list[Entry] = [answer("t1", "whole"), fault("t1"), asking("t1")]
    for number, end in enumerate(ends):
        writer = await Writer.create(make, store, f"s{number}")
        await writer.write(prompt("t1"))
        writer.record.say("t1", 0, "text", "who")
        await writer.write(end)
        await writer.record.close()
        opened = await store.open(f"s{number}")
        expect_equal(opened.said, None, f"what was said, after {end.kind}")


@RULES.add
async def the_end_of_another_turn_does_not_forget_it(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(prompt("t1"), prompt("t2"))
    writer.record.say("t1", 0, "text", "one ")
    await writer.write(fault("t2"))
    writer.record.say("t1", 0, "text", "two")
    wanted = SaidSoFar(turn_id="t1", call=0, text="one two")
    expect_equal(await _said(store, writer), wanted, "what was said so far")


@RULES.add
async def saying_never_fails(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    writer.record.say("nobody", 7, "text", "asked")
    writer.record.say("nobody", 7, "text", "half a pair: \ud800")
    await writer.write(prompt("t1"), answer("t1"))
    await writer.record.close()
    writer.record.say("t1", 1, "text", "too late")
    opened = await store.open("s1")
    expect_equal(opened.said, None, "what was said in a turn that is not there")


@RULES.add_where("crash")
async def after_a_crash_there_is_how_it_began(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(prompt("t1"))
    pieces = [f"piece {number}, " for number in range(50)]
    for piece in pieces:
        writer.record.say("t1", 0, "text", piece)
    store = await make.after_crash(store)
    said = (await store.open("s1")).said
    whole = "".join(pieces)
    expect(said is None or whole.startswith(said.text), f"{said} is not how it began")
