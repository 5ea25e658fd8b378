"""Going back: nothing is erased, and everything is as it was."""

from __future__ import annotations

import pytest
from tests.storage.conversations import (
    Pen,
    answer,
    answering,
    asking,
    call,
    clear,
    context_entries,
    fault,
    prompt,
)

from nplt_storage import BadEntry, ConversationHistory
from nplt_storage.active_entries import ActiveEntries
from nplt_storage.entries import (
    ArchivedEntry,
    CompactionEntry,
    Entry,
    EpochEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelSwitchedEntry,
    NotebookEntry,
    PinnedEntry,
    QuarantineEntry,
    RenamedEntry,
    RollbackEntry,
    SystemInstructionEntry,
)


@pytest.fixture
def pen() -> Pen:
    """Three turns: entries 1-2, 3-4, 5-6."""
    pen = Pen()
    for turn in ("t1", "t2", "t3"):
        pen.write_all([prompt(turn, f"ask {turn}"), answer(turn, f"say {turn}")])
    return pen


def back(pen: Pen, to_seq: int) -> RollbackEntry:
    entry = pen.write(pen.history.rollback_to(to_seq))
    assert isinstance(entry, RollbackEntry)
    return entry


def contents(history: ConversationHistory) -> list[str]:
    return [message.content for message in history.recent(99)]


def seqs(entries: list[Entry]) -> list[int]:
    return [entry.seq for entry in entries]


def test_what_came_after_is_taken_back_and_still_there(pen: Pen) -> None:
    rollback = back(pen, 2)
    assert (rollback.seq, rollback.to_seq) == (7, 2)
    assert contents(pen.history) == ["ask t1", "say t1"]
    assert seqs(list(pen.history.active)) == [1, 2]
    assert seqs(list(pen.history.entries)) == [1, 2, 3, 4, 5, 6, 7]
    assert pen.history.message_count == 2
    assert pen.history.turn_state("t2") is None
    assert seqs(context_entries(pen.history, "next")) == [1, 2]
    pen.write(prompt("t4"))
    assert seqs(context_entries(pen.history, "t4")) == [1, 2, 8]


def test_a_rollback_entry_has_the_counts_and_widgets_after_it(pen: Pen) -> None:
    pen.write_all([SystemInstructionEntry(content="a"), NotebookEntry(content="b")])
    pen.write_all([prompt("t4"), asking("t4", call()), answering("t4", call()), fault("t4")])
    assert pen.history.rollback_to(4) == RollbackEntry(
        to_seq=4, message_count=4, preview="say t2", system_seq=0, notebook_seq=0
    )
    assert pen.history.rollback_to(10) == RollbackEntry(
        to_seq=10, message_count=8, preview="hello", system_seq=7, notebook_seq=8
    )


def test_a_rollback_can_be_taken_back(pen: Pen) -> None:
    back(pen, 2)
    undo = back(pen, 6)
    assert undo.hidden == ()
    assert contents(pen.history) == ["ask t1", "say t1", "ask t2", "say t2", "ask t3", "say t3"]
    assert pen.history.hidden == ((7, 8),)
    redo = back(pen, 7)
    assert redo.hidden == ((3, 7),)
    assert contents(pen.history) == ["ask t1", "say t1"]
    assert ConversationHistory("s1", pen.history.entries).hidden == pen.history.hidden


def test_going_back_into_a_branch_that_was_left_shows_that_branch(pen: Pen) -> None:
    back(pen, 2)
    pen.write_all([prompt("t4", "other"), answer("t4", "way")])
    back(pen, 2)
    back(pen, 9)
    assert contents(pen.history) == ["ask t1", "say t1", "other", "way"]
    assert pen.history.hidden == ((3, 7), (10, 11))


def test_clears_quarantines_compactions_and_epochs_are_undone(pen: Pen) -> None:
    pen.write_all(
        [
            clear(),
            QuarantineEntry(target_seq=2, code="x", content="x"),
            CompactionEntry(content="x", from_seq=1, through_seq=4),
            EpochEntry(reason="budget"),
        ]
    )
    history = pen.history
    assert history.get_context() == []
    assert list(history.quarantined) == [2]
    assert [entry.seq for entry in history.compactions] == [9]
    assert history.epoch is not None
    back(pen, 6)
    assert len(history.get_context()) == 6
    assert not history.quarantined
    assert not history.compactions
    assert pen.history.epoch is None


def test_instruction_and_notebook_go_back_and_peoples_choices_stay(pen: Pen) -> None:
    pen.write_all([SystemInstructionEntry(content="old"), NotebookEntry(content="old")])
    pen.write_all([SystemInstructionEntry(content="new"), NotebookEntry(content="new")])
    pen.write_all([RenamedEntry(name="mine"), ModelSwitchedEntry(model="a/b")])
    pen.write_all([PinnedEntry(pinned=True), ArchivedEntry(archived=True)])
    back(pen, 8)
    history = pen.history
    assert (history.system_instruction, history.notebook) == ("old", "old")
    assert (history.name, history.model) == ("mine", "a/b")
    assert (history.pinned, history.archived) == (True, True)
    back(pen, 2)
    assert (history.system_instruction, history.notebook) == (None, None)


def test_a_prompt_that_was_taken_back_does_not_run_again_when_it_is_resent(pen: Pen) -> None:
    sent = pen.write(ModelInputEntry(turn_id="t4", content="x", message_id="m4"))
    pen.write(fault("t4"))
    back(pen, 6)
    assert pen.history.prompt_by_message_id("m4") == sent


def test_a_turn_that_had_not_ended_there_is_over(pen: Pen) -> None:
    pen.write_all([prompt("t4"), asking("t4", call()), answering("t4", call()), fault("t4")])
    for to_seq in (7, 8, 9):
        back(pen, to_seq)
        assert pen.history.unfinished_turns() == []
        assert pen.history.turn_state("t4") == "interrupted"
        assert pen.history.open_tool_calls("t4") == ()
        assert seqs(context_entries(pen.history, "next")) == [1, 2, 3, 4, 5, 6]
        with pytest.raises(BadEntry, match="turn t4 has ended"):
            pen.write(answer("t4", call=9))
    assert pen.history.message_count == 8, "it still shows"


def test_the_very_first_turn_can_be_taken_back_and_brought_back(pen: Pen) -> None:
    stood = list(pen.history.active)
    back(pen, 0)
    assert (pen.history.message_count, list(pen.history.active)) == (0, [])
    pen.write(prompt("t9", "anew"))
    pen.write(answer("t9"))
    assert seqs(context_entries(pen.history, "next")) == [8, 9]
    back(pen, 6)
    assert list(pen.history.active) == stood


@pytest.mark.parametrize("to_seq", [-1, 6, 7, 100])
def test_only_what_is_there_can_be_gone_back_to(pen: Pen, to_seq: int) -> None:
    with pytest.raises(BadEntry):
        pen.history.rollback_to(to_seq)
    with pytest.raises(BadEntry):
        pen.stamped(RollbackEntry(to_seq=to_seq))
    assert pen.history.head_seq == 6


def test_nothing_is_taken_back_while_a_turn_runs(pen: Pen) -> None:
    pen.write(prompt("t4"))
    with pytest.raises(BadEntry, match="still running"):
        pen.history.rollback_to(2)


def test_a_rollback_can_be_drafted_from_the_history_alone(pen: Pen) -> None:
    wrong = RollbackEntry(to_seq=4, message_count=1, preview="x", hidden=((1, 2),))
    entry = pen.write(wrong)
    assert isinstance(entry, RollbackEntry)
    assert (entry.message_count, entry.preview, entry.hidden) == (4, "say t2", None)


@pytest.mark.parametrize(
    "wrong",
    [
        CompactionEntry(content="x", from_seq=1, through_seq=7),
        QuarantineEntry(target_seq=7, code="x", content="x"),
        ForkedEntry(from_session_id="s0", at_seq=7),
    ],
)
def test_a_fact_is_about_what_is_there(pen: Pen, wrong: Entry) -> None:
    with pytest.raises(BadEntry, match="there are 1 to 6"):
        pen.write(wrong)


def test_a_fork_leaves_the_turns_that_were_under_way() -> None:
    pen = Pen()
    pen.write_all([prompt("t1"), answer("t1"), prompt("t2"), asking("t2", call()), prompt("t3")])
    pen.write(ForkedEntry(from_session_id="s0", at_seq=5))
    assert pen.history.unfinished_turns() == []
    assert seqs(context_entries(pen.history, "next")) == [1, 2]
    assert pen.history.message_count == 5, "they still show"
    pen.write_all([prompt("t4"), answer("t4")])
    assert seqs(context_entries(pen.history, "next")) == [1, 2, 7, 8]


def test_replaying_gives_the_conversation_as_it_was_at_any_number(pen: Pen) -> None:
    back(pen, 2)
    pen.write_all([RenamedEntry(name="late"), prompt("t4")])
    entries = list(pen.history.entries)
    assert contents(ConversationHistory.replay("s1", entries, 4)) == contents(
        ConversationHistory("s1", entries[:4])
    )
    then = ConversationHistory.replay("s1", iter(entries), 7)
    assert (then.head_seq, then.message_count, then.name) == (7, 2, "ask t1")
    assert ConversationHistory.replay("s1", entries, 0).head_seq == 0
    with pytest.raises(BadEntry, match="there is no entry 10"):
        ConversationHistory.replay("s1", entries, 10)


def test_a_snapshot_stays_as_it_was(pen: Pen) -> None:
    before = pen.history.snapshot()
    pen.write_all([RenamedEntry(name="later"), SystemInstructionEntry(content="later")])
    back(pen, 2)
    pen.write(prompt("t4"))
    assert seqs(list(before.entries)) == [1, 2, 3, 4, 5, 6]
    assert (before.head_seq, before.message_count, before.name) == (6, 6, "ask t1")
    assert (before.system_instruction, before.notebook, before.model) == (None, None, None)
    after = pen.history.snapshot()
    assert seqs(list(after.entries)) == [1, 2, 10]
    with pytest.raises(AttributeError):
        after.name = "x"  # type: ignore[misc]


def test_messages_handed_out_are_copies() -> None:
    pen = Pen()
    pen.write(ModelInputEntry(turn_id="t1", content="x", metadata={"deep": {"a": [1]}}))
    message = pen.history.recent(1)[0]
    message.metadata["deep"]["a"].append(2)  # type: ignore[call-overload,index,union-attr]
    assert pen.history.by_role("user")[0].metadata == {"deep": {"a": [1]}}


def test_reading_a_record_with_many_rollbacks_adds_each_active_entry_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pen = Pen()
    pen.write_all([prompt("t0"), answer("t0")])
    for number in range(1, 50):
        pen.write_all([prompt(f"t{number}"), answer(f"t{number}")])
        back(pen, pen.history.head_seq - 2)
    looked_at: list[int] = []
    add = ActiveEntries.add

    def counted(standing: ActiveEntries, entry: Entry) -> None:
        looked_at.append(entry.seq)
        add(standing, entry)

    monkeypatch.setattr(ActiveEntries, "add", counted)
    assert ConversationHistory("s1", pen.history.entries).message_count == 2
    assert looked_at == [1, 2]


# Turns


@pytest.fixture
def queued() -> Pen:
    """A second prompt came while the first was answered."""
    pen = Pen()
    pen.write_all([prompt("t1", "one"), prompt("t2", "two")])
    pen.write_all([answer("t1", "first"), answer("t2", "second")])
    return pen


def test_undo_takes_exactly_its_turn(queued: Pen) -> None:
    rollback = queued.write(queued.history.rollback_turns(["t2"]))
    assert isinstance(rollback, RollbackEntry)
    assert (rollback.turns, rollback.hidden, rollback.to_seq) == (("t2",), ((2, 2), (4, 4)), 4)
    assert (rollback.message_count, rollback.preview) == (2, "first")
    assert seqs(list(queued.history.active)) == [1, 3]
    assert seqs(context_entries(queued.history, "next")) == [1, 3]
    assert ConversationHistory("s1", queued.history.entries).hidden == queued.history.hidden


def test_a_turn_that_nothing_followed_is_taken_back_by_one_number(pen: Pen) -> None:
    rollback = pen.write(pen.history.rollback_turns(["t3"]))
    assert isinstance(rollback, RollbackEntry)
    assert (rollback.to_seq, rollback.hidden, rollback.turns) == (4, None, ("t3",))
    assert pen.history.hidden == ((5, 7),)


def test_redo_brings_back_what_was_taken_last_and_then_what_was_taken_before(queued: Pen) -> None:
    history = queued.history
    everything = list(history.active)
    queued.write(history.rollback_turns(["t1"]))
    queued.write(history.rollback_turns(["t2"]))
    assert list(history.active) == []
    redo = queued.write(history.redo())
    assert isinstance(redo, RollbackEntry)
    assert redo.redo
    assert seqs(list(history.active)) == [2, 4]
    queued.write(history.redo())
    assert list(history.active) == everything
    with pytest.raises(BadEntry, match="nothing to bring back"):
        history.redo()


def test_a_redo_is_refused_after_new_messages(queued: Pen) -> None:
    queued.write(queued.history.rollback_turns(["t2"]))
    queued.write(RenamedEntry(name="another name"))
    assert queued.history.redo().to_seq == 4, "a name is not said"
    queued.write_all([prompt("t3"), answer("t3")])
    with pytest.raises(BadEntry, match="nothing to bring back"):
        queued.history.redo()


def test_a_turn_is_taken_back_once(queued: Pen) -> None:
    for turns in (["t9"], ["t1", "t9"]):
        with pytest.raises(BadEntry, match="no turn t9"):
            queued.history.rollback_turns(turns)
    queued.write(queued.history.rollback_turns(["t2"]))
    with pytest.raises(BadEntry, match="taken back before"):
        queued.history.rollback_turns(["t2"])


def test_a_summary_of_what_is_taken_back_goes_with_it_and_one_of_the_rest_stays(pen: Pen) -> None:
    pen.write(CompactionEntry(content="of the first", from_seq=1, through_seq=2))
    pen.write(CompactionEntry(content="of two", from_seq=1, through_seq=4))
    pen.write(SystemInstructionEntry(content="be brief"))
    pen.write(pen.history.rollback_turns(["t2"]))
    assert [entry.content for entry in pen.history.compactions] == ["of the first"]
    assert pen.history.system_instruction == "be brief"


def test_the_turns_from_a_prompt_on_are_those_after_it_in_the_order_of_prompts(queued: Pen) -> None:
    queued.write_all([prompt("t3"), answer("t3")])
    assert queued.history.turns_from(2) == ["t2", "t3"]
    assert queued.history.turns_from(3) == ["t1", "t2", "t3"], "the turn of that answer"
    assert queued.history.turns_from(5) == ["t3"]
    assert queued.history.turns_from(6) == ["t3"]
