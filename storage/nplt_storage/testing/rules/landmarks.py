"""What was told long ago still holds, and what was billed stays billed."""

from __future__ import annotations

from dataclasses import replace

from nplt_storage.facts.entries import (
    ClearEntry,
    CompactionEntry,
    DebugEntry,
    EpochEntry,
    ModelInvocationDescriptor,
    WidgetEntry,
)
from nplt_storage.testing.expecting import expect_equal
from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.writing import Writer, answer, prompt, row_of

RULES = RuleBook()

_MUCH = "x" * 600_000
"""More than anyone reads beyond a clear to go on with a conversation."""


@RULES.add
async def what_was_told_far_from_the_end_still_holds(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 1)
    todo = WidgetEntry(widget="todo", state={"items": ["milk"]})
    shown = EpochEntry(reason="budget", gist_through=1, summary_through=1, screen="- milk")
    summary = CompactionEntry(content="they talked", from_seq=1, through_seq=2)
    await writer.write(WidgetEntry(widget="todo", state={}), todo, summary, shown)
    await writer.write(WidgetEntry(widget="clock", state={"zone": "UTC"}))
    await writer.write(DebugEntry(category="kit", content=_MUCH), ClearEntry())
    await writer.turns(2, 2)
    await writer.record.close()
    opened = await store.open("s1")
    history = opened.history
    told = {"clock": {"zone": "UTC"}, "todo": {"items": ["milk"]}}
    expect_equal(history.widget_states, told, "the widgets")
    expect_equal(history.compactions, (), "summaries that a clear came after")
    expect_equal(history.epoch, writer.history.epoch, "the epoch")


@RULES.add
async def a_summary_far_from_the_end_still_holds(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 1)
    summary = CompactionEntry(content="they talked", from_seq=1, through_seq=2)
    await writer.write(summary, DebugEntry(category="kit", content=_MUCH))
    await writer.turns(2, 2)
    await writer.write(
        EpochEntry(reason="budget", omitted_through=4, gist_through=4, summary_through=4)
    )
    await writer.turns(3, 3)
    await writer.record.close()
    history = (await store.open("s1")).history
    expect_equal([entry.content for entry in history.compactions], ["they talked"], "the summary")


@RULES.add
async def what_was_billed_is_in_the_row(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    called = ModelInvocationDescriptor(provider="p", specification="chat", model="m")
    usage = {"input_tokens": 20, "output_tokens": 3, "cached_tokens": 15}
    for turn_id in ("t1", "t2"):
        billed = replace(answer(turn_id), invocation=called, usage=dict(usage))
        await writer.write(prompt(turn_id), billed)
    await writer.write(writer.history.rollback_to(2))
    await writer.record.close()
    again = Writer.of(make, await store.open("s1"))
    await again.write(prompt("t3"), replace(answer("t3"), usage={"input_tokens": 5}))
    wanted = (("p/m", 2, 40, 6, 30), ("", 1, 5, 0, 0))
    expect_equal((await row_of(store)).billed, wanted, "what was billed")
