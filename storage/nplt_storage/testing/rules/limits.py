"""Stores that keep only so much: whole turns, and all of a conversation or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nplt_storage.conversation.paging import PageQuery
from nplt_storage.errors import BadEntry, ConversationNotFound, StorageError
from nplt_storage.facts.entries import (
    CheckpointEntry,
    CompactionEntry,
    Entry,
    EpochEntry,
    ModelSwitchedEntry,
    NotebookEntry,
    SystemInstructionEntry,
    WidgetEntry,
)
from nplt_storage.store import ConversationStore
from nplt_storage.testing.expecting import expect, expect_equal, refused
from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import RuleBook
from nplt_storage.testing.writing import (
    Writer,
    all_messages,
    answer,
    asking,
    entries_of,
    fault,
    ids_of,
    looking,
    messages_among,
    numbers_in,
    prompt,
    row_of,
)

RULES = RuleBook()

_TOLD = ("system_instruction", "notebook", "widget_states")


def _turns_in(entries: Iterable[Entry]) -> dict[str, list[int]]:
    turns: dict[str, list[int]] = {}
    for entry in entries:
        if entry.turn_id is not None:
            turns.setdefault(entry.turn_id, []).append(entry.seq)
    return turns


async def _kept(store: ConversationStore) -> list[Entry]:
    """What is still there of what was written, the checkpoint apart."""
    found = await entries_of(store)
    return [entry for entry in found if not isinstance(entry, CheckpointEntry)]


@RULES.add_where("trim")
async def only_the_newest_turns_are_kept(make: StoreMaker) -> None:
    store = await make.store(max_turns=3)
    writer = await Writer.create(make, store)
    await writer.turns(1, 10)
    kept = await _kept(store)
    expect_equal(list(_turns_in(kept)), ["t8", "t9", "t10"], "the turns that are kept")
    whole = list(writer.history.entries)
    expect_equal(kept, whole[kept[0].seq - 1 :], "the entries that are kept")
    row = await row_of(store)
    expect_equal((row.first_seq, row.head_seq), (kept[0].seq, kept[-1].seq), "its ends in the row")
    wanted = messages_among(kept)
    expect_equal(numbers_in(await all_messages(store)), wanted, "the messages")
    page = await store.page("s1", PageQuery(before=wanted[2], limit=10))
    expect(not page.has_more_before, "there is more before the first that is kept")


@RULES.add_where("trim")
async def no_turn_is_ever_split(make: StoreMaker) -> None:
    store = await make.store(max_turns=2)
    writer = await Writer.create(make, store)
    for number in range(1, 13):
        ahead, behind = f"t{number + 1}", f"t{number}"
        drafts: list[Entry] = [prompt(behind)] if number % 4 == 1 else []
        drafts += [prompt(ahead)] if number % 4 else []
        if number % 3:
            drafts += [answer(behind)]
        else:
            drafts += [asking(behind), looking(behind), fault(behind)]
        for draft in drafts:
            await writer.write(draft)
            written = _turns_in(writer.history.entries)
            for turn_id, seqs in _turns_in(await _kept(store)).items():
                expect_equal(seqs, written[turn_id], f"what is kept of turn {turn_id}")
        kept = _turns_in(await _kept(store))
        unfinished = {turn.turn_id for turn in writer.history.unfinished_turns()}
        expect(unfinished <= set(kept), f"turns that have not ended were trimmed: {unfinished}")
        expect(len(set(kept) - unfinished) >= min(2, number), "fewer turns are kept than asked for")
    expect((await row_of(store)).first_seq > 1, "nothing was trimmed")


@RULES.add_where("trim")
async def what_was_trimmed_is_still_accounted_for(make: StoreMaker) -> None:
    store = await make.store(max_turns=2)
    writer = await Writer.create(make, store)
    await writer.write(SystemInstructionEntry(content="be brief"), NotebookEntry(content="- milk"))
    await writer.write(WidgetEntry(widget="todo", state={"items": ["milk"]}))
    await writer.write(prompt("t0"), replace(answer("t0"), usage={"input_tokens": 7}))
    await writer.write(CompactionEntry(content="they talked", from_seq=4, through_seq=5))
    await writer.write(EpochEntry(reason="compaction", summary_through=4))
    await writer.write(ModelSwitchedEntry(model="p/m"))
    await writer.turns(1, 7)
    for first in (8, 12):
        await writer.record.close()
        opened = await store.open("s1")
        history, whole = opened.history, writer.history
        for what in (*_TOLD, "model", "message_count", "head_seq"):
            expect_equal(getattr(history, what), getattr(whole, what), what)
        summaries = [(entry.seq, entry.content) for entry in history.compactions]
        expect_equal(summaries, [(6, "they talked")], "the compaction")
        expect_equal(opened.row.name, "hello", "the name")
        expect_equal(opened.row.billed, (("", 1, 7, 0, 0),), "what was billed")
        writer = Writer(opened.record, writer.history, make.clock)
        await writer.turns(first, first + 3)
    expect_equal(list(_turns_in(await _kept(store))), ["t14", "t15"], "the turns that are kept")


@RULES.add_where("trim")
async def what_was_told_right_before_the_cut_still_holds(make: StoreMaker) -> None:
    store = await make.store(max_turns=2)
    writer = await Writer.create(make, store)
    await writer.turns(1, 1)
    told: list[Entry] = [
        SystemInstructionEntry(content="be frank"),
        NotebookEntry(content="- eggs"),
        WidgetEntry(widget="todo", state={"items": ["eggs"]}),
    ]
    for first, draft in zip((2, 4, 6), told, strict=True):
        await writer.write(draft)
        await writer.turns(first, first + 1)
        await writer.record.close()
        opened = await store.open("s1")
        for what in _TOLD:
            expect_equal(getattr(opened.history, what), getattr(writer.history, what), what)
        writer = Writer(opened.record, writer.history, make.clock)


@RULES.add_where("trim")
async def a_trimmed_conversation_can_be_rolled_back_within_reach(make: StoreMaker) -> None:
    store = await make.store(max_turns=3)
    writer = await Writer.create(make, store)
    await writer.turns(1, 8)
    kept = _turns_in(await _kept(store))
    await writer.write(writer.history.rollback_to(kept["t7"][-1]))
    await writer.turns(9, 9)
    await writer.record.close()
    opened = await store.open("s1")
    standing = _turns_in(opened.history.standing)
    expect_equal(list(standing), ["t6", "t7", "t9"], "the turns that stand")
    expect_equal(opened.history.message_count, writer.history.message_count, "the count")


@RULES.add_where("trim")
async def nothing_leads_back_to_what_was_trimmed(make: StoreMaker) -> None:
    store = await make.store(max_turns=2)
    writer = await Writer.create(make, store)
    await writer.turns(1, 6)
    row, kept = await row_of(store), await _kept(store)
    with refused(BadEntry, what="a rollback to an entry that is no longer kept"):
        await writer.write(writer.history.rollback_to(2))
    expect_equal((await row_of(store), await _kept(store)), (row, kept), "row and entries")
    await writer.write(writer.history.rollback_to(kept[0].seq - 1))
    expect_equal((await all_messages(store)).messages, (), "messages that stand")


@RULES.add_where("expire")
async def a_conversation_nobody_uses_expires(make: StoreMaker) -> None:
    store = await make.store(ttl_seconds=100)
    writer = await Writer.create(make, store)
    await (await Writer.create(make, store, "s2")).write(prompt("t1"))
    blob = await writer.record.keep_blob(b"beside")
    await make.pass_time(60)
    await writer.write(prompt("t1", "sesame"))
    await make.pass_time(60)
    expect_equal(await store.count("ada"), 1, "the count when only s1 was used")
    expect_equal(await ids_of(store), ["s1"], "the list when only s1 was used")
    expect_equal(await store.blob("s1", blob.blob_id, 0, 10), b"beside", "its blob")
    await make.pass_time(60)
    expect_equal(await store.count("ada"), 0, "the count when nothing was used")
    expect_equal(await ids_of(store), [], "the list when nothing was used")
    expect(await store.row("s1") is None, "there is a row of what expired")
    with refused(ConversationNotFound, what="reading what expired"):
        await store.page("s1", PageQuery())
    with refused(StorageError, what="appending to what expired"):
        await writer.write(answer("t1"))
    await writer.record.close()
    await Writer.create(make, store)
    with refused(StorageError, what="the blob of one that expired"):
        await store.blob("s1", blob.blob_id, 0, 10)


@RULES.add_where("expire")
async def opening_and_touching_keep_it_alive(make: StoreMaker) -> None:
    store = await make.store(ttl_seconds=100)
    writer = await Writer.create(make, store)
    await writer.write(prompt("t1"))
    writer.record.say("t1", 0, "text", "so far")
    await writer.record.close()
    await make.pass_time(60)
    opened = await store.open("s1")
    await opened.record.close()
    await make.pass_time(60)
    store.touch("s1", make.clock())
    await store.close()
    await make.pass_time(60)
    store = await make.store(ttl_seconds=100)
    expect_equal(await ids_of(store), ["s1"], "the list")
    opened = await store.open("s1")
    expect_equal(opened.said and opened.said.text, "so far", "what was said")
    expect_equal(len(opened.history.entries), 1, "entries")
