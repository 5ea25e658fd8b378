"""What may follow what in a conversation, rule by rule."""

from __future__ import annotations

import pytest
from tests.storage.conversations import (
    START,
    Pen,
    answer,
    answer_to,
    answering,
    asking,
    call,
    fault,
    prompt,
)

from nplt_storage import BadEntry, ConversationHistory
from nplt_storage.entries import (
    ClearEntry,
    DebugEntry,
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    NotebookEntry,
    RenamedEntry,
    ToolResultsEntry,
    UnknownEntry,
)


@pytest.fixture
def pen() -> Pen:
    return Pen()


def test_stamping_gives_number_id_and_time_and_adds_nothing(pen: Pen) -> None:
    entry = pen.history.stamp(prompt("t1"), id="e1", timestamp=START)
    assert (entry.seq, entry.id, entry.timestamp) == (1, "e1", START)
    assert pen.history.head_seq == 0


def test_an_entry_without_an_id_is_not_stamped(pen: Pen) -> None:
    with pytest.raises(BadEntry, match="needs an id"):
        pen.history.stamp(prompt("t1"), id="", timestamp=START)


def test_only_the_next_number_can_be_added(pen: Pen) -> None:
    entry = pen.write(prompt("t1"))
    with pytest.raises(BadEntry, match="entry 1 can't follow entry 1"):
        pen.history.add(entry)


@pytest.mark.parametrize("content", ["", " ", "\n\t ", "\u3000"])
def test_a_blank_prompt_is_refused(pen: Pen, content: str) -> None:
    with pytest.raises(BadEntry, match="not blank"):
        pen.write(prompt("t1", content))


def test_a_prompt_needs_a_turn_of_its_own(pen: Pen) -> None:
    with pytest.raises(BadEntry, match="needs a turn_id"):
        pen.write(ModelInputEntry(content="hello"))
    pen.write(prompt("t1"))
    with pytest.raises(BadEntry, match="has begun before"):
        pen.write(prompt("t1"))


@pytest.mark.parametrize("draft", [answer("t1"), answering("t1", call()), fault("t1")])
def test_a_turn_begins_with_its_prompt(pen: Pen, draft: Entry) -> None:
    with pytest.raises(BadEntry, match="no prompt of turn t1"):
        pen.write(draft)


@pytest.mark.parametrize(
    "end",
    [
        answer("t1"),
        fault("t1"),
        ModelOutputEntry(turn_id="t1", content="", state="interrupted"),
        ModelOutputEntry(turn_id="t1", content="", tool_calls=(call(),), state="failed"),
    ],
)
@pytest.mark.parametrize(
    "late",
    [
        answer("t1", call=9),
        answering("t1", call()),
        fault("t1"),
        DebugEntry(turn_id="t1", category="x", content="x"),
        NotebookEntry(turn_id="t1", content="x"),
    ],
)
def test_nothing_more_comes_for_a_turn_after_its_end(pen: Pen, end: Entry, late: Entry) -> None:
    pen.write_all([prompt("t1"), end])
    with pytest.raises(BadEntry, match="turn t1 has ended"):
        pen.write(late)


def test_a_completed_output_needs_text_or_tool_calls(pen: Pen) -> None:
    pen.write(prompt("t1"))
    with pytest.raises(BadEntry, match="has text or tool calls"):
        pen.write(answer("t1", ""))
    pen.write(ModelOutputEntry(turn_id="t1", content="", state="failed"))


def test_results_pair_one_to_one_and_in_order(pen: Pen) -> None:
    first, second = call("look", "a"), call("listen", "b")
    pen.write_all([prompt("t1"), asking("t1", first, second)])
    for wrong in (
        (first,),
        (second, first),
        (first, second, second),
        (first, call("listen", "c")),
        (first, call("touch", "b")),
        (),
    ):
        with pytest.raises(BadEntry, match="do not pair"):
            pen.write(answering("t1", *wrong))
    pen.write(answering("t1", first, second))


def test_results_are_given_once(pen: Pen) -> None:
    pen.write_all([prompt("t1"), asking("t1", call()), answering("t1", call())])
    with pytest.raises(BadEntry, match="no tool calls that wait"):
        pen.write(answering("t1", call()))


def test_results_take_the_number_of_the_call_they_answer(pen: Pen) -> None:
    pen.write_all([prompt("t1"), asking("t1", call()), answering("t1", call())])
    pen.write(asking("t1", call(), number=1))
    entry = pen.write(ToolResultsEntry(turn_id="t1", results=(answer_to(call()),)))
    assert isinstance(entry, ToolResultsEntry)
    assert entry.call == 1


def test_no_output_comes_while_calls_wait_for_their_results(pen: Pen) -> None:
    pen.write_all([prompt("t1"), asking("t1", call())])
    with pytest.raises(BadEntry, match="calls without results"):
        pen.write(answer("t1", call=1))


def test_each_call_has_one_output(pen: Pen) -> None:
    pen.write_all([prompt("t1"), asking("t1", call()), answering("t1", call())])
    with pytest.raises(BadEntry, match="call 0 of turn t1 has its output already"):
        pen.write(answer("t1"))


def test_a_fault_may_end_a_turn_whose_calls_never_returned(pen: Pen) -> None:
    pen.write_all([prompt("t1"), asking("t1", call()), fault("t1")])
    assert pen.history.turn_state("t1") == "interrupted"
    assert pen.history.open_tool_calls("t1") == ()


def test_a_name_is_not_blank(pen: Pen) -> None:
    with pytest.raises(BadEntry, match="name is not blank"):
        pen.write(RenamedEntry(name="  "))


def test_an_unknown_kind_is_read_but_never_written(pen: Pen) -> None:
    unknown = UnknownEntry(kind="telepathy", fields={"content": "…"})
    with pytest.raises(BadEntry, match="does not know"):
        pen.write(unknown)
    stored = UnknownEntry(seq=1, id="e1", timestamp=START, kind="telepathy", fields={})
    assert ConversationHistory("s1", [stored]).entries[0] == stored


def test_what_is_on_disk_is_taken_even_against_the_rules() -> None:
    odd: list[Entry] = [
        FaultEntry(
            seq=1, id="a", timestamp=START, turn_id="t", content="", code="", state="failed"
        ),
        ModelInputEntry(seq=2, id="b", timestamp=START, turn_id="t", content=""),
        ToolResultsEntry(seq=3, id="c", timestamp=START, turn_id="u", results=()),
        ModelOutputEntry(seq=4, id="d", timestamp=START, content=""),
        ClearEntry(seq=5, id="e", timestamp=START),
    ]
    history = ConversationHistory("s1", odd)
    assert history.head_seq == 5
    assert history.turn_state("t") == "failed"
    assert history.turn_state("u") == "running"
    assert history.unfinished_turns() == []
