"""What was billed is counted once, by model, and never taken back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.storage.conversations import START, Pen, answer, fault, prompt

from nplt_storage import ConversationRow, decode_line, encode_line
from nplt_storage.entries import (
    CheckpointEntry,
    Entry,
    ForkedEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
)
from nplt_storage.rows import (
    MODELS_MAX,
    Billed,
    fold_all,
    new_row,
    row_as_bytes,
    row_from_bytes,
)


def _row(entries: list[Entry]) -> ConversationRow:
    return fold_all(new_row("s1", user="ada", created_at=START), entries)


def _billed(turn_id: str, usage: Any, model: str | None = "m") -> ModelOutputEntry:
    called = ModelInvocationDescriptor(provider="p", specification="chat", model=model or "")
    return replace(answer(turn_id), usage=usage, invocation=called if model else None)


def _after(*outputs: ModelOutputEntry) -> Billed:
    pen = Pen()
    for output in outputs:
        pen.write_all([prompt(str(output.turn_id)), output])
    return _row(list(pen.history.entries)).billed


def test_tokens_are_added_up_by_model_in_the_order_they_were_first_called() -> None:
    assert _after(
        _billed("t1", {"input_tokens": 10, "output_tokens": 2}, "b"),
        _billed("t2", {"input_tokens": 20, "output_tokens": 3, "cached_tokens": 8}, "a"),
        _billed("t3", {"input_tokens": 5, "output_tokens": 1}, "b"),
        _billed("t4", {"input_tokens": 1}, None),
        _billed("t5", None, "never billed"),
    ) == (("p/b", 2, 15, 3, 0), ("p/a", 1, 20, 3, 8), ("", 1, 1, 0, 0))


@pytest.mark.parametrize("odd", [-1, 1.5, "7", True, None, [3]])
def test_what_is_no_count_counts_nothing(odd: object) -> None:
    billed = _after(_billed("t1", {"input_tokens": odd, "output_tokens": 2}))
    assert billed == (("p/m", 1, 0, 2, 0),)


def test_a_row_can_be_written_whatever_a_provider_says() -> None:
    pen = Pen()
    for turn_id in ("t1", "t2"):
        pen.write_all([prompt(turn_id), _billed(turn_id, {"input_tokens": 2**64 - 1})])
    row = _row(list(pen.history.entries))
    assert row.billed == (("p/m", 2, 2**53 - 1, 0, 0),)
    assert row_from_bytes(row_as_bytes(row)) == row


def test_a_rollback_does_not_un_bill_and_a_fork_begins_at_nothing() -> None:
    pen = Pen()
    pen.write_all([prompt("t1"), _billed("t1", {"input_tokens": 3})])
    pen.write(pen.history.rollback_to(1))
    assert _row(list(pen.history.entries)).billed == (("p/m", 1, 3, 0, 0),)
    pen.write(ForkedEntry(from_session_id="s0", at_seq=3))
    assert _row(list(pen.history.entries)).billed == ()


def test_a_call_that_gave_nothing_to_remember_is_billed_by_its_fault() -> None:
    pen = Pen()
    called = ModelInvocationDescriptor(provider="p", specification="chat", model="m")
    billed = replace(fault("t1"), usage={"input_tokens": 9}, invocation=called)
    pen.write_all([prompt("t1"), billed, prompt("t2"), fault("t2")])
    row = _row([decode_line(encode_line(entry)) for entry in pen.history.entries])
    assert (row.billed, row.unfinished) == ((("p/m", 1, 9, 0, 0),), ())


def test_of_very_many_models_the_rest_are_counted_together() -> None:
    outputs = [_billed(f"t{n}", {"input_tokens": 1}, f"m{n}") for n in range(MODELS_MAX + 3)]
    billed = _after(*outputs, _billed("again", {"input_tokens": 1}, "m0"))
    assert len(billed) == MODELS_MAX + 1
    assert billed[0] == ("p/m0", 2, 2, 0, 0)
    assert billed[-1] == ("other", 3, 3, 0, 0)


def test_what_was_billed_before_it_was_moved_is_added() -> None:
    pen = Pen()
    before = [["p/m", 2, 30, 4, 5], ["p/gone", 1, 7, 0, 0]]
    pen.write(CheckpointEntry(state={"billed": before}))  # type: ignore[dict-item]
    pen.write_all([prompt("t1"), _billed("t1", {"input_tokens": 1})])
    row = _row(list(pen.history.entries))
    assert row.billed == (("p/m", 3, 31, 4, 5), ("p/gone", 1, 7, 0, 0))


def _moved(*bills: Any) -> Billed:
    """What is billed of a conversation that was moved here with these bills."""
    states = (CheckpointEntry(state={"billed": bill}) for bill in bills)
    return _row(Pen().write_all(states)).billed


@pytest.mark.parametrize("odd", [None, 5, "x", [5], [["p/m", 1]], [[1, 1, 1, 1, 1]], {}])
def test_what_is_no_bill_adds_nothing(odd: Any) -> None:
    assert _moved(odd) == ()


counts = st.integers(0, 10**6)
bills = st.lists(st.tuples(st.sampled_from("abc"), *[counts] * 4).map(list), max_size=6)


@given(bills, bills)
def test_together_is_the_sum_whichever_comes_first(one: Any, two: Any) -> None:
    both = _moved(one, two)
    assert sorted(both) == sorted(_moved(two, one))
    for column in range(1, 5):
        total = sum(int(model[column]) for model in (*one, *two))
        assert sum(int(model[column]) for model in both) == total


def test_a_row_kept_before_there_were_bills_and_widgets_is_read() -> None:
    row = _row(Pen().write_all([prompt("t1"), answer("t1")]))
    kept = orjson.loads(row_as_bytes(row))
    for name in ("billed", "widget_seqs", "epoch_seq", "compaction_seq"):
        del kept[name]
    assert row_from_bytes(orjson.dumps(kept)) == row
