"""The cursor of a receiver that passes events on undecoded, and the end of a stored turn."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    ActiveTurn,
    AgentThought,
    Attached,
    EntryAdded,
    Event,
    TextDelta,
    TurnFinished,
)
from nplt_protocol.resume import Cursor, TurnProgress, has_ended


class Undecoded:
    """Counts how often it is decoded."""

    def __init__(self, event: Event) -> None:
        self._event = event
        self.times_decoded = 0

    @property
    def event(self) -> Event:
        self.times_decoded += 1
        return self._event


def delta(text: str, offset: int = 0, *, turn_id: str = "t1", call: int = 0) -> TextDelta:
    return TextDelta(session_id="s1", turn_id=turn_id, call=call, offset=offset, text=text)


def entry(seq: int, *, call: int = 0, turn_id: str = "t1", **fields: Any) -> EntryAdded:
    stored: JsonObject = {"seq": seq, "kind": "model_output", "state": "completed", **fields}
    return EntryAdded(session_id="s1", turn_id=turn_id, call=call, entry=stored)


def test_a_cursor_decodes_only_the_last_passed_event_and_only_on_demand() -> None:
    cursor = Cursor("s1", 3)
    deltas = [Undecoded(delta(text, offset)) for offset, text in ((0, "one "), (4, "two"))]
    entries = [Undecoded(entry(4)), Undecoded(entry(5))]
    for passed in deltas:
        cursor.note_delta(passed)
    for stored in entries:
        cursor.note_entry(stored)
    assert sum(each.times_decoded for each in (*deltas, *entries)) == 0
    attach = cursor.attach()
    assert (attach.after_seq, attach.turn_id, attach.call, attach.offset) == (5, "t1", 0, 7)
    assert cursor.seq == 5
    assert [each.times_decoded for each in (*deltas, *entries)] == [0, 1, 0, 1]


@given(st.text(), st.integers(0, 40))
def test_the_stored_answer_gives_exactly_the_text_that_the_cursor_lacks(
    content: str, held: int
) -> None:
    cursor, received = Cursor("s1"), content[:held]
    if received:
        cursor.note_delta(Undecoded(delta(received)))
    missing = cursor.take_stored_text(entry(2, content=content))
    if missing is not None:
        assert missing.offset == len(received)
        received += missing.text
    assert received == content
    assert cursor.take_stored_text(entry(2, content=content)) is None, "it is held now"


def test_a_cursor_holds_all_of_an_earlier_call_and_nothing_of_a_later_one() -> None:
    cursor = Cursor("s1")
    cursor.note_delta(Undecoded(delta("second call", call=1)))
    assert cursor.held("t1", 0) == sys.maxsize
    assert cursor.held("t1", 1) == len("second call")
    assert cursor.held("t1", 2) == cursor.held("t2", 0) == 0
    assert cursor.take_stored_text(entry(2, content="first call")) is None
    assert cursor.take_stored_text(entry(4, call=2, content="third call")) is not None


@pytest.mark.parametrize("fields", [{"kind": "model_input", "content": "hi"}, {"content": None}])
def test_an_entry_that_is_not_an_answer_gives_no_text_delta(fields: dict[str, Any]) -> None:
    assert Cursor("s1").take_stored_text(entry(2, **fields)) is None


def test_a_turn_that_neither_runs_nor_waits_has_ended() -> None:
    active = ActiveTurn(turn_id="t1", call=1, offset=9, model="m")
    attached = Attached(
        session_id="s1", name="n", model="m", head_seq=6, active_turn=active, queue=("t2",)
    )
    assert [has_ended(turn_id, attached) for turn_id in ("t0", "t1", "t2")] == [True, False, False]


@pytest.mark.parametrize(
    ("last", "state", "error"),
    [
        ({}, "completed", None),
        ({"state": "interrupted", "error": {"code": "x"}}, "interrupted", {"code": "x"}),
        (
            {"kind": "fault", "state": "failed", "code": "internal", "content": "no"},
            "failed",
            {"code": "internal", "message": "no"},
        ),
    ],
)
def test_the_last_entry_of_a_turn_gives_its_turn_finished(
    last: dict[str, Any], state: str, error: JsonObject | None
) -> None:
    progress = TurnProgress()
    asking = entry(2, tool_calls=[{"tool_name": "now"}], usage={"input_tokens": 3})
    assert progress.apply(asking)
    assert not progress.apply(asking), "an entry counts once"
    assert progress.end is None
    progress.apply(entry(4, call=1, usage={"input_tokens": 4}, **last))
    assert isinstance(progress.end, TurnFinished)
    assert (progress.end.state, progress.end.seq, progress.end.error) == (state, 4, error)
    assert progress.end.usage == {"input_tokens": 7}


def test_reasoning_of_a_retried_call_is_received_from_its_beginning() -> None:
    cursor = Cursor("s1")

    def thought(text: str) -> AgentThought:
        return AgentThought(
            session_id="s1", turn_id="t1", type="reasoning", call=0, offset=0, text=text
        )

    assert cursor.take(thought("first try")) == thought("first try")
    assert cursor.take(
        AgentThought(session_id="s1", turn_id="t1", type="retrying", content="again")
    )
    assert cursor.take(thought("second")) == thought("second")
