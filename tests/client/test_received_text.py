"""Received text is placed by offset: nothing twice, nothing from beyond a gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.scripted_peer import MODEL, SESSION, delta, entry, finished

from nplt_client.received_turn import ReceivedTurn
from nplt_protocol.errors import RemoteProtocolError
from nplt_protocol.messages import AgentThought, Attach, Attached, TextDelta
from nplt_protocol.resume import TURN_CHARACTERS_MAX, Cursor

TEXT = "the quick brown fox jumps over the lazy dog"


def cursor() -> Cursor:
    return Cursor(session_id=SESSION)


def attached(*, head_seq: int = 9, resync: bool | None = None) -> Attached:
    return Attached(
        session_id=SESSION,
        name="n",
        model=MODEL,
        head_seq=head_seq,
        active_turn=None,
        queue=(),
        resync=resync,
    )


@given(pieces=st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, len(TEXT)))))
def test_deltas_in_any_order_and_number_give_a_prefix_of_the_text(
    pieces: list[tuple[int, int]],
) -> None:
    here, received = cursor(), ""
    for start, end in pieces:
        new = here.take(delta(TEXT[start:end], start))
        if isinstance(new, TextDelta):
            assert new.offset == len(received)
            received += new.text
    assert TEXT.startswith(received)
    assert here.text_held.length == len(received)


@given(pieces=st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, len(TEXT)))))
def test_the_stored_answer_completes_the_shown_text_whatever_deltas_came(
    pieces: list[tuple[int, int]],
) -> None:
    record, shown = ReceivedTurn(), ""
    for start, end in pieces:
        shown += record.apply(delta(TEXT[start:end], start))
    assert TEXT.startswith(shown)
    shown += record.apply(entry(TEXT))
    assert shown == record.text == TEXT


@given(st.text(min_size=1, max_size=40), st.data())
def test_a_call_replayed_from_its_beginning_replaces_its_text_and_shows_only_what_is_new(
    text: str, data: st.DataObject
) -> None:
    seen = data.draw(st.integers(0, len(text)))
    record = ReceivedTurn()
    shown = record.apply(delta(text[:seen], 0))
    again = delta(text, 0, replay_from=0)
    shown += record.apply(again)
    assert (record.text, shown) == (text, text)


def test_text_that_only_the_stored_answer_has_is_shown_too() -> None:
    record = ReceivedTurn()
    shown = record.apply(delta("only the beg", 0)) + record.apply(entry("only the beginning"))
    assert shown == record.text == "only the beginning"


def test_the_entry_of_the_prompt_is_not_part_of_the_answer() -> None:
    record = ReceivedTurn()
    assert record.apply(entry("the prompt", role="user")) == ""
    assert record.text == ""


def test_reasoning_that_is_replayed_from_the_beginning_is_cut_to_its_new_part() -> None:
    def thought(text: str) -> AgentThought:
        return AgentThought(
            session_id=SESSION, turn_id="turn-1", type="reasoning", call=0, offset=0, text=text
        )

    here = cursor()
    here.take(thought("hm, let"))
    new = here.take(thought("hm, let me see"))
    assert isinstance(new, AgentThought)
    assert (new.offset, new.text) == (7, " me see")


def test_a_cursor_takes_an_entry_once_and_events_of_other_conversations_never() -> None:
    here = cursor()
    assert here.take(entry("a", seq=1)) is not None
    assert here.take(entry("a", seq=1)) is None
    assert Cursor(session_id="other").take(delta("x", 0)) is None


def test_attach_names_the_text_that_the_cursor_holds() -> None:
    here = cursor()
    here.take(entry("the prompt", role="user", seq=7))
    here.take(delta("half an ", 0))
    assert here.attach() == Attach(
        session_id=SESSION, after_seq=7, turn_id="turn-1", call=0, offset=8
    )
    here.take(finished())
    assert here.attach() == Attach(session_id=SESSION, after_seq=7)


def test_after_attach_the_cursor_expects_the_replay_unless_resync() -> None:
    here = cursor()
    here.take(entry("a", seq=3))
    here.take(delta("half", 0))
    moved = here.after_attach(attached(), here.attach())
    assert (moved.seq, moved.text_held.length) == (3, 4)
    assert here.after_attach(attached(resync=True), here.attach()).seq == 9
    assert here.after_attach(attached(), None).seq == 9


def test_deltas_without_end_are_a_protocol_violation_before_they_fill_the_memory() -> None:
    here, piece = cursor(), "x" * (TURN_CHARACTERS_MAX // 64)
    for number in range(64):
        here.take(delta(piece, 0, call=number % 2))  # also if each call begins anew
    with pytest.raises(RemoteProtocolError, match="does not end"):
        here.take(delta("x", 0))
    ended = cursor()
    for _ in range(65):
        ended.take(delta(piece, 0))
        ended.take(finished())
