"""The comparison behind `make faults` sees everything that can go wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from faults.comparison import Acked, Found, FoundEntry, Promise, verdict
from faults.promises import Promises
from hypothesis import given
from hypothesis import strategies as st

TURNS = 3


def _prompt(turn: int, *, author: str = "ada") -> Promise:
    return Promise(
        session_id="s1",
        seq=2 * turn - 1,
        turn_id=f"t{turn}",
        kind="prompt",
        text=f"prompt {turn}",
        author=author,
    )


def _answer(turn: int) -> Promise:
    return replace(_prompt(turn), seq=2 * turn, kind="answer")


def _acked(turns: int = TURNS) -> Acked:
    all_promises = [
        promise for turn in range(1, turns + 1) for promise in (_prompt(turn), _answer(turn))
    ]
    return Acked(
        promises=tuple(all_promises),
        conversations=frozenset({"s1"}),
        sent=frozenset(promise.text for promise in all_promises),
    )


def _kept(acked: Acked) -> list[FoundEntry]:
    return [
        FoundEntry(
            seq=promise.seq,
            kind="model_input" if promise.kind == "prompt" else "model_output",
            turn_id=promise.turn_id,
            text=promise.text,
            ends_turn=promise.kind == "answer",
        )
        for promise in acked.promises
    ]


def _renumbered(entries: list[FoundEntry]) -> list[FoundEntry]:
    return [replace(entry, seq=seq) for seq, entry in enumerate(entries, start=1)]


def _complained(complaints: list[str], *words: str) -> bool:
    return any(complaint.startswith(words) for complaint in complaints)


def test_kept_promises_are_no_complaint() -> None:
    acked = _acked()
    assert verdict(acked, {"s1": _kept(acked)}) == []


def test_what_was_sent_and_not_acknowledged_may_be_there() -> None:
    acked = replace(_acked(), sent=_acked().sent | {"on its way"})
    more = FoundEntry(seq=7, kind="model_input", turn_id="t9", text="on its way")
    assert verdict(acked, {"s1": [*_kept(acked), more]}) == []


@given(st.integers(0, 2 * TURNS - 1))
def test_any_lost_entry_is_reported(place: int) -> None:
    acked = _acked()
    entries = _kept(acked)
    del entries[place]
    assert _complained(verdict(acked, {"s1": _renumbered(entries)}), "lost")


@given(st.integers(0, 2 * TURNS - 1), st.integers(0, 2 * TURNS))
def test_any_duplicated_entry_is_reported(place: int, to: int) -> None:
    acked = _acked()
    entries = _kept(acked)
    entries.insert(to, entries[place])
    assert _complained(verdict(acked, {"s1": _renumbered(entries)}), "duplicated")


@given(st.permutations(range(2 * TURNS)))
def test_any_other_order_is_reported(order: list[int]) -> None:
    acked = _acked()
    entries = _kept(acked)
    shuffled = _renumbered([entries[place] for place in order])
    assert _complained(verdict(acked, {"s1": shuffled}), "reordered") == (order != sorted(order))


def test_a_gap_in_the_numbers_is_reported() -> None:
    acked = _acked()
    entries = _kept(acked)
    entries[-1] = replace(entries[-1], seq=9)
    assert _complained(verdict(acked, {"s1": entries}), "misnumbered")


@pytest.mark.parametrize("found", [{}, {"s2": []}])
def test_a_lost_conversation_is_reported_also_if_it_is_empty(found: Found) -> None:
    acked = Acked(conversations=frozenset({"s1"}))
    assert _complained(verdict(acked, found), "lost: the whole conversation s1")


@pytest.mark.parametrize("place", range(2 * TURNS))
def test_an_entry_whose_text_changed_is_lost(place: int) -> None:
    acked = _acked()
    entries = _kept(acked)
    entries[place] = replace(entries[place], text=entries[place].text[:-1])
    assert _complained(verdict(acked, {"s1": entries}), "lost")


def test_half_a_prompt_is_reported_as_never_sent() -> None:
    acked = _acked()
    torn = FoundEntry(seq=7, kind="model_input", turn_id="t9", text="on its w")
    assert _complained(verdict(acked, {"s1": [*_kept(acked), torn]}), "never sent")


def test_a_refused_prompt_that_is_there_is_reported() -> None:
    acked = replace(_acked(), sent=_acked().sent | {"no"}, refused=frozenset({"no"}))
    there = FoundEntry(seq=7, kind="model_input", turn_id="t9", text="no")
    assert _complained(verdict(acked, {"s1": [*_kept(acked), there]}), "refused, yet there")


def test_one_prompt_in_two_conversations_is_a_duplicate() -> None:
    acked = _acked()
    assert _complained(verdict(acked, {"s1": _kept(acked), "s2": _kept(acked)[:1]}), "duplicated")


def test_prompts_of_one_author_stand_in_the_order_they_were_accepted_in() -> None:
    acked = _acked()
    first, second = acked.promises[0], acked.promises[2]
    backwards = replace(acked, promises=(second, first))
    assert _complained(verdict(backwards, {"s1": _kept(acked)}), "reordered")
    of_two = replace(acked, promises=(second, replace(first, author="grace")))
    assert verdict(of_two, {"s1": _kept(acked)}) == []


def test_a_turn_end_received_by_several_clients_is_promised_once() -> None:
    promises = _ledger_with_a_turn()
    for _ in range(2):
        promises.finished({"turn_id": "t1", "state": "completed", "seq": 2})
    assert [promise.kind for promise in promises.acked().promises] == ["prompt", "answer"]


def test_a_turn_whose_end_could_not_be_written_promises_nothing() -> None:
    promises = _ledger_with_a_turn()
    all_promises = {"turn_id": "t1", "state": "failed", "seq": 1, "error": {"code": "unavailable"}}
    promises.finished(all_promises)
    assert [promise.kind for promise in promises.acked().promises] == ["prompt"]


def test_a_receipt_after_the_power_cut_is_no_promise() -> None:
    promises = _ledger_with_a_turn()
    promises.close()
    promises.finished({"turn_id": "t1", "state": "completed", "seq": 2})
    promises.created("s2")
    assert len(promises.acked().promises) == 1
    assert promises.conversations() == []


def _ledger_with_a_turn() -> Promises:
    promises = Promises()
    promises.sends("hello")
    promises.accepted("ada", "hello", {"session_id": "s1", "seq": 1, "turn_id": "t1"})
    return promises
