"""Entries go in one after the other, and come out as they went in."""

from __future__ import annotations

from dataclasses import replace

from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import (
    ApprovalEntry,
    ArchivedEntry,
    AttachmentEntry,
    CheckpointEntry,
    ClearEntry,
    CompactionEntry,
    DebugEntry,
    Entry,
    EpochEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ModelSwitchedEntry,
    NotebookEntry,
    PinnedEntry,
    QuarantineEntry,
    RenamedEntry,
    SentContext,
    SystemInstructionEntry,
    WidgetEntry,
)
from nplt_storage.testing.expecting import expect, expect_equal, refused
from nplt_storage.testing.maker import START, StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.writing import (
    Writer,
    all_messages,
    answer,
    entries_of,
    fault,
    ids_of,
    numbers_in,
    prompt,
    row_of,
)

RULES = RuleBook()


@RULES.add
async def a_new_conversation_is_empty_and_listed(make: StoreMaker) -> None:
    store = await make.store()
    await store.create("s1", user="ada")
    row = await row_of(store)
    seen = (row.session_id, row.user, row.head_seq, row.message_count, row.damaged)
    expect_equal(seen, ("s1", "ada", 0, 0, False), "the row of a new conversation")
    expect_equal(await ids_of(store), ["s1"], "the list")
    expect_equal((await all_messages(store)).messages, (), "the messages of a new conversation")
    expect_equal(await entries_of(store), [], "the entries of a new conversation")


@RULES.add
async def entries_come_back_in_their_order(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 7)
    expect_equal(await entries_of(store), list(writer.history.entries), "the entries")
    await writer.record.close()
    opened = await store.open("s1")
    expect_equal(
        list(opened.history.entries), list(writer.history.entries), "the history when opened again"
    )


@RULES.add
async def what_was_acknowledged_is_seen_at_once(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    for number in range(1, 6):
        (entry,) = await writer.write(prompt(f"t{number}"))
        seen = (
            (await row_of(store)).head_seq,
            numbers_in(await all_messages(store))[-1],
            (await entries_of(store))[-1].seq,
        )
        expect_equal(seen, (entry.seq,) * 3, "the head in the row, the page and the entries")


def _one_of_each() -> list[Entry]:
    called = ModelInvocationDescriptor(provider="p", specification="s", model="m")
    return [
        ModelInputEntry(
            turn_id="t",
            content="q",
            message_id="m1",
            model="p/m",
            attachments=("f" * 32,),
            options={"temperature": 0.5, "deep": {"list": [1, None, "é"]}},
            metadata={"client": "kit"},
        ),
        ModelOutputEntry(
            turn_id="t",
            content="half",
            reasoning="because",
            invocation=called,
            usage={"input_tokens": 2**64 - 1},
            state="failed",
            error={"code": "cut"},
            sent=SentContext(tokens=9, budget_tokens=100, tools_digest="d"),
        ),
        prompt("t9"),
        fault("t9"),
        SystemInstructionEntry(content="be brief"),
        NotebookEntry(content="- milk"),
        WidgetEntry(widget="todo", state={"items": [{"text": "milk", "done": False}]}),
        EpochEntry(reason="budget", gist_through=1, summary_through=2, screen="- milk"),
        CompactionEntry(content="they talked", from_seq=1, through_seq=2),
        ClearEntry(),
        QuarantineEntry(target_seq=1, code="odd", content="why"),
        ForkedEntry(from_session_id="s0", at_seq=3),
        DebugEntry(category="kit", content="remark"),
        RenamedEntry(name="plans"),
        PinnedEntry(pinned=True),
        ArchivedEntry(archived=True),
        ModelSwitchedEntry(model="p/n", previous_model="p/m"),
        AttachmentEntry(file_id="f" * 32, filename="a.txt", size=3, sha256="0" * 64),
        ApprovalEntry(approval_id="a", tool_call_id="c", tool_name="t", state="asked"),
    ]


@RULES.add
async def every_kind_of_entry_comes_back_as_it_was(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 3)
    await writer.write(*_one_of_each())
    await writer.record.append(
        CheckpointEntry(
            seq=writer.history.head_seq + 1, id="c", timestamp=make.clock(), state={"any": [1]}
        )
    )
    found = await entries_of(store)
    expect_equal(found[:-1], list(writer.history.entries), "the entries")
    expect_equal(found[-1].kind, "checkpoint", "the kind of the last one")


@RULES.add
async def any_text_comes_back_as_it_was(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    texts = [
        "\x00",
        "\r\n\t\x1b[31m",
        "\u2028\u2029\ufeff",
        "漢字🎉e\u0301",
        '"\\',
        "x" * 300_000,
    ]
    for number, text in enumerate(texts):
        await writer.write(prompt(f"t{number}", f"a{text}"), answer(f"t{number}", f"b{text}"))
    found = await entries_of(store)
    expect(found == list(writer.history.entries), "a text came back changed")


@RULES.add
async def a_gap_is_refused(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.write(prompt("t1"))
    far = replace(writer.stamped(answer("t1")), seq=3)
    with refused(BadEntry, what="entry 3 after entry 1"):
        await writer.record.append(far)
    expect_equal(len(await entries_of(store)), 1, "entries after the refusal")


@RULES.add
async def a_number_that_is_taken_is_refused(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    first, second = await writer.write(prompt("t1"), answer("t1"))
    for again in (first, second, replace(second, id="other")):
        with refused(BadEntry, what=f"entry {again.seq} once more"):
            await writer.record.append(again)
    expect_equal(await entries_of(store), [first, second], "the entries")


@RULES.add
async def a_refused_entry_leaves_nothing(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    good = writer.stamped(prompt("t1", "good"))
    before = await row_of(store)
    half = ModelInputEntry(seq=1, id="e", timestamp=START, turn_id="t", content="\ud800")
    huge = ModelOutputEntry(seq=1, id="e", timestamp=START, content="x", usage={"n": 2**64})
    endless = ModelOutputEntry(
        seq=1, id="e", timestamp=START, content="x", usage={"n": float("nan")}
    )
    for bad in (half, huge, endless, prompt("t1")):
        with refused(BadEntry, what=f"{bad!r}"):
            await writer.record.append(bad)
    expect_equal(await row_of(store), before, "the row after refusals")
    expect_equal(await entries_of(store), [], "the entries after refusals")
    await writer.record.append(good)
    expect_equal(await entries_of(store), [good], "the entries after a good one")


@RULES.add
async def an_opened_conversation_can_be_continued(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 2)
    await writer.record.close()
    again = Writer.of(make, await store.open("s1"))
    await again.turns(3, 4)
    await again.record.close()
    opened = await store.open("s1")
    expect_equal(list(opened.history.entries), list(again.history.entries), "the history")
    expect_equal(opened.row, await row_of(store), "the row it was opened with")


@RULES.add_where("last")
async def what_one_store_wrote_is_there_for_the_next(make: StoreMaker) -> None:
    store = await make.store()
    writer = await Writer.create(make, store)
    await writer.turns(1, 4)
    row = await row_of(store)
    store = await make.reopened(store)
    expect_equal(await row_of(store), row, "the row")
    expect_equal(await entries_of(store), list(writer.history.entries), "the entries")
    await Writer.of(make, await store.open("s1")).turns(5, 6)
