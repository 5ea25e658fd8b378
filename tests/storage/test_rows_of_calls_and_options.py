"""What a row says of cache writes, estimated calls and a conversation's options."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
from msgspec.structs import replace

from nplt_storage.entries import (
    CheckpointEntry,
    FaultEntry,
    ForkedEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ModelSwitchedEntry,
)
from nplt_storage.rows import ConversationRow, fold_all, new_row, row_as_bytes, row_from_bytes

NOW = datetime(2026, 11, 17, tzinfo=UTC)
ROW = new_row("s1", user="ada", created_at=NOW)
CALLED = ModelInvocationDescriptor(provider="p", specification="s", model="m")
USED = {"input_tokens": 10, "output_tokens": 2, "cache_write_tokens": 8}


def folded(*entries: object) -> ConversationRow:
    stamped = [
        replace(entry, seq=place, id=f"e{place}", timestamp=NOW)  # type: ignore[type-var]
        for place, entry in enumerate(entries, 1)
    ]
    return fold_all(ROW, stamped)  # type: ignore[arg-type]


def output(**usage: object) -> ModelOutputEntry:
    expected = {**USED, **usage}
    return ModelOutputEntry(turn_id="t", content="x", invocation=CALLED, usage=expected)  # type: ignore[arg-type]


def test_cache_writes_and_estimates_are_counted_by_model_next_to_the_bill() -> None:
    fault = FaultEntry(
        turn_id="t",
        content="cancelled",
        code="cancelled",
        state="interrupted",
        invocation=CALLED,
        usage={"input_tokens": 1, "output_tokens": 0, "estimated": True},
    )
    row = folded(output(), output(), fault)
    assert row.billed == (("p/m", 3, 21, 4, 0),)
    assert row.billed_details == (("p/m", 16, 1),)
    assert row_from_bytes(row_as_bytes(row)) == row


def test_a_row_without_them_is_written_as_earlier_versions_read_it() -> None:
    row = folded(output(cache_write_tokens=0))
    assert not {"billed_details", "options", "lost"} & orjson.loads(row_as_bytes(row)).keys()
    assert row_from_bytes(row_as_bytes(row)) == row


def test_a_fork_has_no_open_turns_and_keeps_the_options() -> None:
    chosen = ModelSwitchedEntry(model="", options={"effort": "high"})
    row = folded(output(), chosen, ForkedEntry(from_session_id="other", at_seq=2))
    assert (row.billed, row.billed_details) == ((), ())
    assert row.options == (("effort", "high"),)
    assert row.model is None


def test_billed_details_of_a_checkpoint_are_added_and_malformed_ones_ignored() -> None:
    billed = [["p/m", 1, 5, 5, 0]]
    for details in ([["p/m", 5, 1]], [["p/m", -5, "x"], "no", [1, 2, 3]], None):
        state = {"billed": billed, "billed_details": details}
        row = folded(output(), CheckpointEntry(state=state))  # type: ignore[arg-type]
        expected = (("p/m", 13, 1),) if details == [["p/m", 5, 1]] else (("p/m", 8, 0),)
        assert row.billed_details == expected


def test_a_model_that_is_chosen_leaves_the_options_as_they_are() -> None:
    chosen = ModelSwitchedEntry(model="p/m", options={"effort": "high", "temperature": 0.5})
    row = folded(chosen, ModelSwitchedEntry(model="p/n"))
    assert (row.model, dict(row.options)) == ("p/n", {"effort": "high", "temperature": 0.5})
