"""What a conversation can be asked, in examples a person can follow."""

from __future__ import annotations

import pytest
from tests.storage.conversations import (
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

from nplt_storage import ConversationHistory
from nplt_storage.entries import (
    Entry,
    ModelInputEntry,
    ModelSwitchedEntry,
    RenamedEntry,
    RollbackEntry,
    SystemInstructionEntry,
)


@pytest.fixture
def pen() -> Pen:
    return Pen()


def _seqs(entries: list[Entry]) -> list[int]:
    return [entry.seq for entry in entries]


def test_an_empty_conversation_has_an_answer_to_everything() -> None:
    history = ConversationHistory("s1")
    assert history.head_seq == 0
    assert list(history.entries) == []
    assert (history.name, history.model, history.system_instruction) == (None, None, None)
    assert history.message_count == 0
    assert history.prompt_by_message_id("m") is None
    assert history.turn_state("t") is None
    assert history.end_of_turn("t") is None
    assert history.unfinished_turns() == []
    assert history.open_tool_calls("t") == ()
    assert context_entries(history, "t") == []
    assert history.get_context() == []
    assert history.recent(3) == []
    assert history.by_role("user") == []


def test_the_latest_name_model_and_instruction_hold(pen: Pen) -> None:
    pen.write_all(
        [
            RenamedEntry(name="first"),
            ModelSwitchedEntry(model="a/b"),
            SystemInstructionEntry(content="be brief"),
            RenamedEntry(name="second"),
            ModelSwitchedEntry(model="c/d", previous_model="a/b"),
            SystemInstructionEntry(content="be kind"),
        ]
    )
    history = pen.history
    assert (history.name, history.model) == ("second", "c/d")
    assert history.system_instruction == "be kind"
    assert history.message_count == 0


def test_entries_asked_for_earlier_do_not_grow(pen: Pen) -> None:
    pen.write(prompt("t1"))
    before = pen.history.entries
    pen.write(answer("t1"))
    assert len(before) == 1
    assert len(pen.history.entries) == 2
    assert _seqs(list(before[-1:])) == [1]
    with pytest.raises(IndexError):
        before[1]
    with pytest.raises(TypeError):
        before[0] = before[0]  # type: ignore[index]


def test_a_turn_goes_from_waiting_over_running_to_its_end(pen: Pen) -> None:
    history = pen.history
    pen.write(prompt("t1"))
    assert history.turn_state("t1") == "waiting"
    pen.write(asking("t1", call()))
    assert history.turn_state("t1") == "running"
    assert history.open_tool_calls("t1") == (call(),)
    pen.write(answering("t1", call()))
    assert history.turn_state("t1") == "running"
    assert history.open_tool_calls("t1") == ()
    assert history.end_of_turn("t1") is None
    end = pen.write(answer("t1", call=1))
    assert history.turn_state("t1") == "completed"
    assert history.end_of_turn("t1") == end


def test_unfinished_turns_are_those_without_an_end_in_order(pen: Pen) -> None:
    pen.write_all([prompt("t1"), prompt("t2"), prompt("t3"), answer("t2")])
    assert [entry.turn_id for entry in pen.history.unfinished_turns()] == ["t1", "t3"]


def test_a_prompt_is_found_by_its_message_id(pen: Pen) -> None:
    entry = pen.write(ModelInputEntry(turn_id="t1", content="x", message_id="m1"))
    assert pen.history.prompt_by_message_id("m1") == entry


def test_a_waiting_prompt_is_invisible_to_the_turn_before_it(pen: Pen) -> None:
    pen.write_all([prompt("t1"), prompt("t2"), prompt("t3")])
    assert _seqs(context_entries(pen.history, "t1")) == [1]
    pen.write(answer("t1"))
    assert _seqs(context_entries(pen.history, "t2")) == [1, 4, 2]
    pen.write(answer("t2"))
    assert _seqs(context_entries(pen.history, "t3")) == [1, 4, 2, 5, 3]


def test_a_turn_sees_its_own_calls_and_results(pen: Pen) -> None:
    pen.write_all([prompt("t1"), asking("t1", call()), answering("t1", call())])
    assert _seqs(context_entries(pen.history, "t1")) == [1, 2, 3]


def test_a_turn_that_failed_before_stays_visible_without_its_fault(pen: Pen) -> None:
    pen.write_all([prompt("t1"), fault("t1"), prompt("t2")])
    assert _seqs(context_entries(pen.history, "t2")) == [1, 3]


def test_a_clear_hides_what_ended_before_it(pen: Pen) -> None:
    pen.write_all([prompt("t1"), answer("t1"), clear(), prompt("t2")])
    assert _seqs(context_entries(pen.history, "t2")) == [4]
    assert pen.history.get_context() == []


def test_a_prompt_that_waited_when_the_clear_came_stays_visible(pen: Pen) -> None:
    pen.write_all([prompt("t1"), answer("t1"), prompt("t2"), clear(), prompt("t3")])
    assert _seqs(context_entries(pen.history, "t2")) == [3]
    pen.write(answer("t2"))
    assert _seqs(context_entries(pen.history, "t3")) == [3, 6, 5]


def test_a_waiting_prompt_that_is_cancelled_does_not_slip_in_before_the_running_turn(
    pen: Pen,
) -> None:
    pen.write_all([prompt("t1"), answer("t1"), prompt("t2"), prompt("t3")])
    before = _seqs(context_entries(pen.history, "t2"))
    pen.write(fault("t3"))
    assert _seqs(context_entries(pen.history, "t2")) == before == [1, 2, 3]
    pen.write_all([answer("t2"), prompt("t4")])
    assert _seqs(context_entries(pen.history, "t4")) == [1, 2, 3, 6, 4, 7]


def test_a_clear_hides_what_was_cancelled_before_it_and_not_what_still_waits(pen: Pen) -> None:
    pen.write_all([prompt("t1"), prompt("t2"), prompt("t3"), fault("t3"), answer("t1"), clear()])
    assert _seqs(context_entries(pen.history, "t2")) == [2]
    pen.write(answer("t2"))
    assert _seqs(context_entries(pen.history, "next")) == [2, 7]


def test_shown_turns_stay_one_list_while_they_only_grow(pen: Pen) -> None:
    pen.write_all([prompt("t1"), answer("t1"), prompt("t2")])
    shown = pen.history.shown_turns
    pen.write_all([answer("t2"), prompt("t3"), prompt("t4"), fault("t4")])
    assert pen.history.shown_turns is shown
    assert [turn.number for turn in shown] == [1, 3, 6]
    assert shown[1] is pen.history.turn("t2")


@pytest.mark.parametrize("happened", [answer("t3"), clear(), RollbackEntry(to_seq=2)])
def test_shown_turns_are_another_list_once_anything_else_happened(
    pen: Pen, happened: Entry
) -> None:
    pen.write_all([prompt("t1"), answer("t1"), prompt("t3"), prompt("t4"), fault("t4")])
    shown = pen.history.shown_turns
    before = list(shown)
    if isinstance(happened, RollbackEntry):
        pen.write(fault("t3"))
    pen.write(happened)
    assert pen.history.shown_turns is not shown
    assert list(shown) == before


def test_a_turn_yet_to_come_would_see_all_that_ended(pen: Pen) -> None:
    pen.write_all([prompt("t1"), answer("t1"), prompt("t2")])
    assert _seqs(context_entries(pen.history, "not there")) == [1, 2]


def test_the_context_is_the_most_recent_ended_turns_as_messages() -> None:
    history = ConversationHistory("s1", chat(9))
    context = history.get_context(max_turns=2)
    assert [(message["role"], message["content"]) for message in context] == [
        ("user", "word 7"),
        ("assistant", "re 7"),
        ("user", "word 8"),
        ("assistant", ""),
        ("assistant", "so 8"),
    ]
    assert len(history.get_context()) == 5 * 2 + 2
    assert history.get_context(max_turns=0) == []


def test_the_context_can_be_the_last_messages_instead_of_turns() -> None:
    history = ConversationHistory("s1", chat(9))
    context = history.get_context(num_messages=3)
    assert [message["content"] for message in context] == ["word 8", "", "so 8"]
    assert history.get_context(num_messages=0) == []


def test_a_history_knows_its_messages_and_when_it_was_created_and_updated(pen: Pen) -> None:
    assert (pen.history.created_at, pen.history.updated_at) == (None, None)
    pen.write_all([prompt("t1"), answer("t1")])
    first, last = pen.history.entries
    assert [message.seq for message in pen.history.messages] == [1, 2]
    assert (pen.history.created_at, pen.history.updated_at) == (first.timestamp, last.timestamp)


def test_messages_begin_after_the_clear(pen: Pen) -> None:
    pen.write_all([prompt("t1"), answer("t1"), clear(), prompt("t2")])
    assert [message.seq for message in pen.history.messages] == [4]
    assert [message.seq for message in pen.history.by_role("user")] == [4]
    assert pen.history.by_role("assistant") == []
    assert pen.history.message_count == 3, "the record keeps all of them"


def test_messages_of_a_turn_that_ran_during_the_clear_stay(pen: Pen) -> None:
    pen.write_all([prompt("t1"), answer("t1"), prompt("t2"), clear(), answer("t2")])
    assert [message.seq for message in pen.history.messages] == [3, 5]
    assert [message.seq for message in pen.history.recent(1)] == [5]


def test_what_is_handed_out_can_be_changed_without_harm() -> None:
    history = ConversationHistory("s1", chat(3))
    context = history.get_context()
    context[-2]["tool_calls"].clear()  # type: ignore[union-attr]
    context.clear()
    history.recent(2).clear()
    context_entries(history, "t").clear()
    history.unfinished_turns().append(prompt("x"))
    assert history.get_context()[-2]["tool_calls"] != []
    assert len(history.recent(2)) == 2


def test_recent_messages_come_oldest_first() -> None:
    history = ConversationHistory("s1", chat(4))
    assert [message.content for message in history.recent(3)] == ["so 2", "word 3", "re 3"]
    assert len(history.recent(10_000)) == history.message_count == 9
    assert history.recent(0) == history.recent(-1) == []


def test_messages_can_be_asked_for_by_role(pen: Pen) -> None:
    pen.write_all([SystemInstructionEntry(content="be brief"), prompt("t1"), fault("t1")])
    pen.write_all([prompt("t2"), answer("t2")])
    history = pen.history
    assert [message.content for message in history.by_role("system")] == ["be brief", "gone"]
    assert [message.seq for message in history.by_role("user")] == [2, 4]
    assert [message.seq for message in history.by_role("assistant")] == [5]
