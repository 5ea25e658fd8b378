"""A conversation opened at its end: what it holds it knows, and it knows what it doesn't."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.storage.conversations import (
    START,
    Pen,
    answer,
    answering,
    asking,
    call,
    chat,
    clear,
    context_entries,
    fault,
    prompt,
)

from nplt_storage import (
    BadEntry,
    ConversationHistory,
    ConversationRow,
    NotInReach,
    StorageError,
    decode_line,
    encode_line,
)
from nplt_storage.entries import (
    CheckpointEntry,
    CompactionEntry,
    Entry,
    ModelSwitchedEntry,
    NotebookEntry,
    PinnedEntry,
    RenamedEntry,
    RollbackEntry,
    SystemInstructionEntry,
    WidgetEntry,
)
from nplt_storage.rows import (
    Checkpoint,
    StateEntry,
    checkpoint_state,
    fold_all,
    new_row,
    read_checkpoint,
    row_from_entries,
)


def row_of(entries: list[Entry]) -> ConversationRow:
    return fold_all(new_row("s1", user="ada", created_at=START), entries)


def state_entries() -> list[Entry]:
    """Entries 1-4 say what holds, then ten turns of two entries each."""
    pen = Pen()
    pen.write_all([SystemInstructionEntry(content="be brief"), NotebookEntry(content="noted")])
    pen.write_all([RenamedEntry(name="mine"), ModelSwitchedEntry(model="a/b")])
    for number in range(10):
        pen.write_all(
            [prompt(f"t{number}", f"ask {number}"), answer(f"t{number}", f"say {number}")]
        )
    return list(pen.history.entries)


def window(entries: list[Entry], *seqs: int) -> ConversationHistory:
    held = [entry for entry in entries if entry.seq in seqs]
    return ConversationHistory("s1", held, row=row_of(entries))


def test_a_window_knows_from_the_row_what_came_before() -> None:
    entries = state_entries()
    history = window(entries, 1, 2, 21, 22, 23, 24)
    assert (history.head_seq, history.first_seq, history.message_count) == (24, 21, 20)
    assert (history.name, history.model, history.pinned) == ("mine", "a/b", False)
    assert (history.system_instruction, history.notebook) == ("be brief", "noted")
    assert [message.seq for message in history.recent(99)] == [21, 22, 23, 24]
    assert [entry.seq for entry in context_entries(history, "next")] == [21, 22, 23, 24]


def test_a_window_grows_as_the_whole_does() -> None:
    entries = state_entries()
    history = window(entries, 1, 2, 23, 24)
    pen = Pen(history=history)
    pen.write_all([prompt("t10"), answer("t10"), PinnedEntry(pinned=True)])
    assert (history.head_seq, history.message_count, history.pinned) == (27, 22, True)
    assert history.turn_state("t10") == "completed"


def test_the_first_prompt_gave_the_name_long_before_the_window() -> None:
    entries = chat(5)
    history = window(entries, *range(9, 13))
    assert history.name == "word 0"


def test_entries_missed_are_given_whole_or_not_at_all() -> None:
    history = window(state_entries(), 1, 2, 21, 22, 23, 24)
    assert history.entries_after(24) == []
    missed = history.entries_after(20)
    assert missed is not None
    assert [entry.seq for entry in missed] == [21, 22, 23, 24]
    assert history.entries_after(19) is None
    assert history.entries_after(0) is None
    whole = ConversationHistory("s1", state_entries())
    assert whole.entries_after(-5) == whole.entries_after(0) == list(whole.entries)


def test_a_window_goes_back_as_far_as_it_holds_everything() -> None:
    entries = state_entries()
    history, whole = window(entries, 1, 2, 21, 22, 23, 24), ConversationHistory("s1", entries)
    assert history.rollback_to(22) == whole.rollback_to(22)
    with pytest.raises(NotInReach) as caught:
        history.rollback_to(18)
    assert isinstance(caught.value, StorageError)
    with pytest.raises(NotInReach):
        Pen(history=history).write(RollbackEntry(to_seq=18))
    assert history.head_seq == 24
    with pytest.raises(BadEntry):
        history.rollback_to(24)


def test_words_before_the_window_are_not_guessed() -> None:
    history = window(state_entries(), 1, 2, 21, 22, 23, 24)
    with pytest.raises(NotInReach):
        history.rollback_to(20)  # everything after it is held, but not its last words


def test_an_instruction_before_the_window_is_not_guessed() -> None:
    pen = Pen(history=ConversationHistory("s1", state_entries()))
    pen.write_all([SystemInstructionEntry(content="be kind"), prompt("t10"), answer("t10")])
    entries = list(pen.history.entries)
    history = window(entries, 2, 23, 24, 25, 26, 27)
    assert history.system_instruction == "be kind"
    assert history.rollback_to(25).system_seq == 25
    with pytest.raises(NotInReach):
        history.rollback_to(24)


def test_a_window_leaves_out_what_was_taken_back() -> None:
    pen = Pen(history=ConversationHistory("s1", state_entries()))
    pen.write(pen.history.rollback_to(6))
    pen.write_all([prompt("t10"), answer("t10")])
    entries = list(pen.history.entries)
    history = window(entries, 1, 2, 3, 4, 5, 6, 26, 27)
    assert history.first_seq == 1
    assert history.message_count == 4
    assert [entry.seq for entry in context_entries(history, "next")] == [5, 6, 26, 27]
    assert history.rollback_to(26) == pen.history.rollback_to(26)
    assert history.rollback_to(3) == pen.history.rollback_to(3)
    with pytest.raises(NotInReach):
        history.rollback_to(24)  # hidden, and not held


def test_a_conversation_that_was_taken_back_to_before_the_window_is_as_its_row_says() -> None:
    pen = Pen(history=ConversationHistory("s1", state_entries()))
    pen.write(pen.history.rollback_to(8))
    entries = list(pen.history.entries)
    history = window(entries, 1, 2, 7, 8)
    assert (history.head_seq, history.message_count) == (25, 4)
    assert [message.content for message in history.recent(9)] == ["ask 1", "say 1"]
    entry = Pen(history=history).write(prompt("t10"))
    assert entry.seq == 26
    assert history.entries_after(25) == [entry]


def lost() -> tuple[Pen, ConversationHistory]:
    """The whole, and a window on its end, after going back to before the window."""
    whole = Pen(history=ConversationHistory("s1", state_entries()))
    history = window(state_entries(), 1, 2, 21, 22, 23, 24)
    assert history.is_in_reach
    history.add(whole.write(whole.history.rollback_to(8)))
    return whole, history


def test_a_rollback_to_before_the_window_leaves_what_needs_no_entries() -> None:
    whole, history = lost()
    assert (history.head_seq, history.message_count) == (25, 4)
    assert (history.name, history.model) == ("mine", "a/b")
    assert history.hidden == whole.history.hidden
    assert (history.system_instruction, history.notebook) == ("be brief", "noted")
    assert history.unfinished_turns() == []
    assert history.first_seq == 9


@pytest.mark.parametrize(
    "ask",
    [
        lambda history: history.active,
        lambda history: context_entries(history, "next"),
        lambda history: history.get_context(),
        lambda history: history.recent(3),
        lambda history: history.by_role("user"),
        lambda history: history.by_role("system"),
        lambda history: history.epoch,
        lambda history: history.compactions,
        lambda history: history.quarantined,
        lambda history: history.snapshot(),
        lambda history: history.rollback_to(8),
        lambda history: history.rollback_to(22),
    ],
)
def test_a_windowed_history_that_lost_its_place_raises_not_in_reach(
    ask: Callable[[ConversationHistory], object],
) -> None:
    whole, history = lost()
    for pen in (whole, Pen(history=history)):
        pen.write_all([NotebookEntry(content="later"), clear()])
    assert whole.history.is_in_reach
    assert not history.is_in_reach
    with pytest.raises(NotInReach):
        ask(history)


def test_a_window_that_could_not_follow_goes_on() -> None:
    whole, history = lost()
    later = Pen(history=history)
    for draft in (prompt("t10"), asking("t10", call()), answering("t10", call())):
        assert later.write(draft).seq == whole.write(draft).seq
    assert [entry.seq for entry in history.unfinished_turns()] == [26]
    for pen in (whole, later):
        pen.write_all([answer("t10", "so", call=1), SystemInstructionEntry(content="be kind")])
    assert history.turn_state("t10") == "completed"
    assert history.message_count == whole.history.message_count == 7
    assert history.system_instruction == "be kind"
    assert history.rollback_to(27) == whole.history.rollback_to(27)
    missed = history.entries_after(25)
    assert missed is not None
    assert [entry.seq for entry in missed] == [26, 27, 28, 29, 30]


def test_an_instruction_that_holds_again_and_is_not_held_is_not_guessed() -> None:
    whole = Pen(history=ConversationHistory("s1", state_entries()))
    whole.write_all([SystemInstructionEntry(content="be kind"), NotebookEntry(content="new")])
    history = window(list(whole.history.entries), 23, 24, 25, 26)
    history.add(whole.write(whole.history.rollback_to(24)))
    with pytest.raises(NotInReach):
        _ = history.system_instruction
    with pytest.raises(NotInReach):
        _ = history.notebook


def test_a_window_with_gaps_can_not_follow_to_what_is_missing_between() -> None:
    """Nothing is missing of what stands, until what was taken back stands again."""
    whole = Pen()
    whole.write_all([prompt("t1"), NotebookEntry(content="noted"), answer("t1")])
    whole.write(whole.history.rollback_to(1))
    history = window(list(whole.history.entries), 1)
    assert (history.is_in_reach, history.first_seq) == (True, 1)
    history.add(whole.write(whole.history.rollback_to(3)))
    assert (history.message_count, history.is_in_reach) == (2, False)
    for draft in (prompt("t2"), answer("t2")):
        history.add(whole.write(draft))
    history.add(whole.write(whole.history.rollback_to(3)))
    assert history.message_count == whole.history.message_count == 2
    with pytest.raises(NotInReach):
        _ = history.notebook


def test_words_from_long_before_are_not_taken_for_the_last_ones() -> None:
    history = window(state_entries(), 5, 6, 21, 22, 23, 24)
    with pytest.raises(NotInReach):
        history.rollback_to(20)


def test_turns_that_have_not_ended_are_found_in_a_window() -> None:
    pen = Pen(history=ConversationHistory("s1", state_entries()))
    pen.write_all([prompt("t10"), asking("t10", call())])
    entries = list(pen.history.entries)
    history = window(entries, 1, 2, 25, 26)
    assert [entry.seq for entry in history.unfinished_turns()] == [25]
    assert history.open_tool_calls("t10") == (call(),)
    Pen(history=history).write_all([answering("t10", call()), fault("t10")])
    assert history.turn_state("t10") == "interrupted"


def test_a_row_that_is_behind_catches_up() -> None:
    entries = state_entries()
    history = ConversationHistory("s1", entries[18:], row=row_of(entries[:20]))
    assert (history.head_seq, history.message_count) == (24, 20)


def test_entries_come_in_order() -> None:
    entries = chat(2)
    with pytest.raises(BadEntry, match="entry 1 can't follow entry 2"):
        ConversationHistory("s1", [entries[1], entries[0]])


# How many turns a model sees


def test_a_limit_counts_turns_that_ended_and_never_splits_one() -> None:
    pen = Pen(history=ConversationHistory("s1", chat(9), turns_max=2))
    history = pen.history
    assert [entry.turn_id for entry in context_entries(history, "next")] == ["t7"] * 2 + ["t8"] * 4
    pen.write(prompt("t9"))
    assert {entry.turn_id for entry in context_entries(history, "t9")} == {"t7", "t8", "t9"}
    assert {entry.turn_id for entry in context_entries(history, "t5")} == {"t3", "t4", "t5"}
    assert [message["turn_id"] for message in history.get_context(5)] == ["t7"] * 2 + ["t8"] * 3
    assert [message["turn_id"] for message in history.get_context(1)] == ["t8"] * 3
    assert history.message_count == len(history.recent(999)), "it is a view: nothing is gone"


def test_a_limit_and_a_clear_both_hold() -> None:
    pen = Pen(history=ConversationHistory("s1", chat(3), turns_max=2))
    pen.write_all([clear(), prompt("t9"), answer("t9")])
    assert {entry.turn_id for entry in context_entries(pen.history, "next")} == {"t9"}


# Trimmed conversations


def trimmed(*, first: int) -> tuple[list[Entry], ConversationHistory]:
    """The whole, and what is left of it: a checkpoint among the last entries."""
    pen = Pen(history=ConversationHistory("s1", state_entries()))
    history = pen.history
    row = row_of(list(history.entries))
    there = tuple(entry for entry in history.active if isinstance(entry, StateEntry))
    state = Checkpoint(row=row, state_entries=there)
    pen.write(CheckpointEntry(state=checkpoint_state(state)))
    pen.write_all([prompt("t10", "ask 10"), answer("t10", "say 10")])
    entries = list(history.entries)
    return entries, ConversationHistory("s1", entries[first - 1 :])


@pytest.mark.parametrize("first", [21, 25])
def test_a_checkpoint_stands_for_what_was_trimmed(first: int) -> None:
    entries, history = trimmed(first=first)
    assert (history.head_seq, history.first_seq, history.message_count) == (27, first, 22)
    assert (history.name, history.model) == ("mine", "a/b")
    assert (history.system_instruction, history.notebook) == ("be brief", "noted")
    assert row_from_entries(entries[first - 1 :]) == row_of(entries)


def test_a_trimmed_conversation_goes_back_to_before_its_checkpoint() -> None:
    _, history = trimmed(first=21)
    pen = Pen(history=history)
    pen.write(history.rollback_to(22))
    assert [message.content for message in history.recent(9)] == ["ask 8", "say 8"]
    assert history.system_instruction == "be brief"


def test_a_rollback_beyond_the_trimmed_window_is_refused() -> None:
    entries, _ = trimmed(first=21)
    row = replace(row_of(entries), first_seq=21)
    history = ConversationHistory("s1", entries[20:], row=row)
    with pytest.raises(BadEntry, match="entry 20 is no longer kept"):
        history.rollback_to(20)
    assert history.system_instruction == "be brief"


def test_what_a_checkpoint_quotes_outweighs_an_older_entry_that_is_held() -> None:
    pen = Pen()
    pen.write(SystemInstructionEntry(content="old"))
    pen.write(SystemInstructionEntry(content="new"))
    new = SystemInstructionEntry(seq=2, content="new")
    state = checkpoint_state(
        Checkpoint(row=row_of(list(pen.history.entries)), state_entries=(new,))
    )
    pen.write_all([prompt("t1"), answer("t1"), CheckpointEntry(state=state)])
    entries = list(pen.history.entries)
    history = ConversationHistory("s1", [entries[0], *entries[2:]], row=row_of(entries))
    assert history.system_instruction == "new"
    assert history.rollback_to(3).system_seq == 2


def test_a_checkpoint_comes_back_from_its_line() -> None:
    row = replace(row_of(state_entries()), hidden=((3, 5),), unfinished=(("t", 9),), pinned=True)
    row = replace(row, compaction_seq=4, widget_seqs=(("clock", 7), ("todo", 8)))
    told_state = (
        SystemInstructionEntry(seq=row.system_seq, content="be brief"),
        NotebookEntry(seq=row.notebook_seq, content="noted"),
        CompactionEntry(seq=4, content="they talked", from_seq=1, through_seq=3),
        WidgetEntry(seq=8, widget="todo", state={"items": ["milk"]}),
    )
    checkpoint = Checkpoint(row=row, state_entries=told_state)
    entry = CheckpointEntry(seq=25, id="e", timestamp=START, state=checkpoint_state(checkpoint))
    again = decode_line(encode_line(entry))
    assert isinstance(again, CheckpointEntry)
    assert read_checkpoint(again) == checkpoint


@pytest.mark.parametrize("state", [{}, {"row": None}, {"row": {"name": "x"}}, {"row": [1]}])
def test_an_unknown_checkpoint_is_ignored(state: dict[str, object]) -> None:
    entry = CheckpointEntry(seq=9, id="e", timestamp=START, state=state)  # type: ignore[arg-type]
    history = ConversationHistory("s1", [entry])
    assert (history.head_seq, history.message_count) == (9, 0)
