"""The comparison behind P14 sees whatever a cancel could leave behind."""

from __future__ import annotations

from typing import Any

import pytest
from faults.whole_turns import ClientTurn, broken_turns, unended, unpaired
from hypothesis import given
from hypothesis import strategies as st

CALLS = [{"tool_call_id": "c1"}, {"tool_call_id": "c2"}]


def _entry(seq: int, kind: str, turn: str, **more: object) -> dict[str, Any]:
    return {"seq": seq, "kind": kind, "turn_id": turn, "content": "", "tool_calls": [], **more}


def _record() -> list[dict[str, Any]]:
    """Two turns: one calls tools and answers, one is cancelled while it waits."""
    return [
        _entry(1, "model_input", "t1", content="one"),
        _entry(2, "model_output", "t1", tool_calls=CALLS, state="completed"),
        _entry(3, "model_input", "t2", content="two"),
        _entry(4, "fault", "t2", state="interrupted"),
        _entry(5, "notebook", "t1"),
        _entry(6, "tool_results", "t1", tool_calls=CALLS),
        _entry(7, "model_output", "t1", content="done", state="completed"),
    ]


def _turns() -> list[ClientTurn]:
    first = ClientTurn(session_id="s", turn_id="t1", seq=1, text="one", ends=[("completed", 7)])
    second = ClientTurn(session_id="s", turn_id="t2", seq=3, text="two", ends=[("interrupted", 4)])
    return [first, second]


def _complaints(entries: list[dict[str, Any]]) -> list[str]:
    renumbered = [{**entry, "seq": seq} for seq, entry in enumerate(entries, start=1)]
    return list(broken_turns(_turns(), {"s": renumbered}))


def test_whole_turns_are_no_complaint() -> None:
    assert _complaints(_record()) == []
    assert list(unended(_turns())) == []


@given(st.integers(0, 6))
def test_any_entry_that_is_gone_is_noticed(place: int) -> None:
    record = _record()
    del record[place]
    assert _complaints(record)


@given(st.sampled_from([0, 1, 2, 3, 5, 6]), st.integers(0, 7))
def test_any_entry_of_a_turn_that_is_there_twice_is_noticed(place: int, to: int) -> None:
    record = _record()
    record.insert(to, record[place])
    assert _complaints(record)


@pytest.mark.parametrize(
    "results",
    [[], CALLS[:1], CALLS[1:], CALLS[::-1], [*CALLS, CALLS[0]], [CALLS[0], {"tool_call_id": "c3"}]],
)
def test_results_that_are_not_those_of_the_calls_are_noticed(results: list[object]) -> None:
    record = _record()
    record[5] = {**record[5], "tool_calls": results}
    assert any("results of" in complaint for complaint in _complaints(record))


def test_a_partial_answer_with_tool_calls_without_results_is_reported() -> None:
    record = _record()
    record[6] = {**record[6], "state": "interrupted", "tool_calls": [{"tool_call_id": "c9"}]}
    assert any("have no result" in complaint for complaint in _complaints(record))


def test_a_stored_turn_end_unlike_the_sent_one_is_reported() -> None:
    record = _record()
    record[3] = {**record[3], "state": "failed"}
    assert any("told to have ended" in complaint for complaint in _complaints(record))


def test_a_stored_turn_without_a_receipt_is_reported() -> None:
    record = [*_record(), _entry(8, "model_input", "t3"), _entry(9, "fault", "t3", state="failed")]
    assert any("nobody was told" in complaint for complaint in _complaints(record))


@pytest.mark.parametrize("ends", [[], [("completed", 7), ("completed", 7)]])
def test_a_turn_end_received_never_or_twice_is_reported(ends: list[tuple[str, int]]) -> None:
    turns = _turns()
    turns[0].ends = ends
    assert len(list(unended(turns))) == 1


def test_a_context_pairs_every_call_that_it_shows() -> None:
    rows: list[dict[str, Any]] = [
        {"seq": 2, "tool_calls": CALLS},
        {"seq": 6, "results": CALLS},
        {"seq": 7},
    ]
    assert list(unpaired(rows)) == []
    for wrong in (rows[:1], rows[1:], [*rows, rows[1]]):
        assert len(list(unpaired(wrong))) == 2
