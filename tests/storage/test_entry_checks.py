"""What can't be remembered as it is is refused whole, with a reason."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from tests.storage.conversations import START, Pen, prompt
from tests.storage.entry_strategies import metadata

from nplt_storage import BadEntry, decode_line, encode_line
from nplt_storage.codec import check_entry
from nplt_storage.entries import (
    BlobReference,
    CheckpointEntry,
    CompactionEntry,
    DebugEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
    LevelOfDetailSections,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    PinnedEntry,
    QuarantineEntry,
    RenamedEntry,
    RollbackEntry,
    SentContext,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.history import METADATA_BYTES_MAX, check_metadata
from nplt_storage.json_values import DEPTH_MAX

HALF = "\ud83d"


def _nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"in": value}
    return value


def _request(**changes: Any) -> ModelOutputEntry:
    fields: dict[str, Any] = {
        "tool_call_id": "c",
        "tool_name": "look",
        "raw_arguments": "{}",
        "arguments": {},
    }
    return ModelOutputEntry(content="", tool_calls=(ToolCallRequest(**{**fields, **changes}),))


def _result(**changes: Any) -> ToolResultsEntry:
    fields: dict[str, Any] = {
        "tool_call_id": "c",
        "tool_name": "look",
        "status": "success",
        "result": "",
        "duration": 0.0,
        "timestamp": START,
    }
    return ToolResultsEntry(results=(ToolCallResult(**{**fields, **changes}),))


def _sent(**changes: Any) -> SentContext:
    fields: dict[str, Any] = {"tokens": 1, "budget_tokens": 2, "tools_digest": "d"}
    return SentContext(**{**fields, **changes})


def _sections(name: str, text: str) -> LevelOfDetailSections:
    return LevelOfDetailSections(summary=((name, text),))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (ModelInputEntry(content=HALF), "model_input.content holds a lone surrogate at 0"),
        (ModelInputEntry(content="x", message_id=HALF), "message_id holds a lone surrogate"),
        (ModelInputEntry(content="x", attachments=(HALF,)), "attachments holds a lone surrogate"),
        (ModelInputEntry(content="x", options={"a": HALF}), "options holds a lone surrogate"),
        (ModelInputEntry(content="x", options={HALF: 1}), "a name in model_input.options"),
        (ModelInputEntry(content="x", options={"a": 2**64}), "beyond 64 bits"),
        (ModelInputEntry(content="x", options={"a": [-(2**63) - 1]}), "beyond 64 bits"),
        (ModelInputEntry(content="x", options={"a": float("nan")}), "JSON can't represent"),
        (ModelInputEntry(content="x", options={"a": float("inf")}), "JSON can't represent"),
        (ModelInputEntry(content="x", options={"a": (1,)}), "tuple, which is not a JSON value"),  # type: ignore[dict-item]
        (ModelInputEntry(content="x", options={"a": START}), "datetime, which is not"),  # type: ignore[dict-item]
        (ModelInputEntry(content="x", options=_nested(DEPTH_MAX + 1)), "nested deeper"),
        (ModelInputEntry(content=None), "model_input.content is missing"),  # type: ignore[arg-type]
        (ModelOutputEntry(content="x", usage={"in": 2**70}), "usage holds an integer"),
        (ModelOutputEntry(content="x", reasoning=HALF), "reasoning holds a lone surrogate"),
        (ModelOutputEntry(content="x", state="odd"), "not one of completed"),  # type: ignore[arg-type]
        (
            ModelOutputEntry(
                content="x",
                invocation=ModelInvocationDescriptor(provider=HALF, specification="", model=""),
            ),
            "provider holds a lone surrogate",
        ),
        (_request(raw_arguments=HALF), "raw_arguments holds a lone surrogate"),
        (_request(arguments={"n": 2**64}), "arguments holds an integer beyond 64 bits"),
        (_result(result=HALF), "result.result holds a lone surrogate"),
        (_result(status="asked"), "not one of success, failed, skipped, pending"),
        (_result(duration=float("nan")), "duration holds nan"),
        (_result(timestamp=datetime(2026, 1, 1)), "timestamp has no time zone"),
        (FaultEntry(content="x", code="x", state="completed"), "not one of"),  # type: ignore[arg-type]
        (DebugEntry(category="x", content=HALF), "debug.content"),
        (ModelOutputEntry(content="x", usage={"a": float("nan")}), "usage holds nan"),
        (ModelOutputEntry(content="x", usage=_nested(DEPTH_MAX + 1)), "usage is nested deeper"),
        (ModelOutputEntry(content="x", error=_nested(10_000)), "error is nested deeper"),
        (_request(arguments=_nested(DEPTH_MAX + 1)), "arguments is nested deeper"),
        (_request(arguments={"n": float("-inf")}), "arguments holds -inf"),
        (_request(arguments={HALF: 1}), "a name in model_output.tool_calls.arguments"),
        (ModelInputEntry(content="x", metadata={"a": 2**64}), "metadata holds an integer"),
        (ModelInputEntry(content="x", metadata={"a": float("nan")}), "metadata holds nan"),
        (ModelInputEntry(content="x", metadata=_nested(DEPTH_MAX + 1)), "metadata is nested"),
        (ModelInputEntry(content="x", sections=_sections("a", HALF)), "sections holds a lone"),
        (ModelOutputEntry(content="x", sections=_sections(HALF, "a")), "sections holds a lone"),
        (_result(sections=_sections("a", HALF)), "result.sections holds a lone"),
        (
            ModelInputEntry(content="x", sections=LevelOfDetailSections(gist=(("a",),))),
            "not a name and a text",
        ),
        (_result(blob=BlobReference(blob_id=HALF, size=1, sha256="")), "blob_id holds a lone"),
        (_result(blob=BlobReference(blob_id="b", size=2**64, sha256="")), "size holds an integer"),
        (CheckpointEntry(state={"a": [2**64]}), "state holds an integer"),
        (RenamedEntry(name=5), "renamed.name is not text"),  # type: ignore[arg-type]
        (PinnedEntry(pinned=1), "neither true nor false"),  # type: ignore[arg-type]
        (ModelOutputEntry(content="x", call=1.5), "call is not an integer"),  # type: ignore[arg-type]
        (CompactionEntry(content="x", from_seq=3, through_seq=2), "from 3 through 2 is empty"),
        (CompactionEntry(content="x", from_seq=0, through_seq=2), "names entry 0"),
        (CompactionEntry(seq=5, content="x", from_seq=1, through_seq=5), "names entry 5"),
        (QuarantineEntry(target_seq=-1, code="x", content="x"), "names entry -1"),
        (ForkedEntry(seq=2, from_session_id="s", at_seq=2), "names entry 2"),
        (RollbackEntry(seq=2, to_seq=2), "names entry 2"),
        (RollbackEntry(seq=9, to_seq=2, system_seq=3), "can't have been left"),
        (RollbackEntry(seq=9, to_seq=2, widget_seqs=(("a", 3),)), "can't have been left"),
        (RollbackEntry(seq=9, to_seq=2, widget_seqs=((HALF, 1),)), "widget_seqs holds a lone"),
        (WidgetEntry(widget="a", state={"n": 2**64}), "state holds an integer"),
        (EpochEntry(reason="x", gist_through=1), "not so through (0, 1, 0"),
        (EpochEntry(reason="x", omitted_through=-1), "not so through (-1, 0, 0"),
        (EpochEntry(seq=4, reason="x", summary_through=4), "names entry 4"),
        (ModelOutputEntry(content="x", sent=_sent(tokens=1.5)), "sent.tokens is not an integer"),
        (ModelOutputEntry(content="x", sent=_sent(trimmed=1)), "trimmed is neither true nor false"),
        (ModelOutputEntry(content="x", sent=_sent(tools_digest=HALF)), "tools_digest holds a lone"),
        (RollbackEntry(seq=9, to_seq=6, hidden=((3, 2),)), "not in order"),
        (RollbackEntry(seq=9, to_seq=6, hidden=((4, 5), (2, 3))), "not in order"),
        (RollbackEntry(seq=9, to_seq=6, hidden=((4, 7),)), "not in order"),
    ],
)
def test_an_entry_that_would_come_back_different_is_refused(entry: Entry, reason: str) -> None:
    with pytest.raises(BadEntry, match=reason.replace("(", "\\(")):
        check_entry(entry)


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 0.1, 1e308, True, None])
def test_numbers_at_the_edge_are_taken(number: Any) -> None:
    entry = ModelInputEntry(
        seq=1, id="e", timestamp=START, content="x", options={"n": number, "list": [number]}
    )
    assert decode_line(encode_line(entry)) == entry


def test_objects_nested_to_the_limit_are_taken() -> None:
    options = _nested(DEPTH_MAX)
    entry = ModelInputEntry(seq=1, id="e", timestamp=START, content="x", options=options)
    assert decode_line(encode_line(entry)) == entry


def test_any_mapping_will_do_where_an_object_is_asked_for() -> None:
    options = MappingProxyType({"a": 1})
    entry = ModelInputEntry(seq=1, id="e", timestamp=START, content="x", options=options)
    assert decode_line(encode_line(entry)) == entry


def test_a_time_in_another_zone_is_the_same_moment() -> None:
    moment = START.astimezone(timezone(timedelta(hours=9)))
    entry = ModelInputEntry(seq=1, id="e", timestamp=moment, content="x")
    assert decode_line(encode_line(entry)) == entry


def test_a_time_out_of_range_is_refused() -> None:
    moment = datetime.min.replace(tzinfo=timezone(timedelta(hours=9)))
    with pytest.raises(BadEntry, match="out of range"):
        encode_line(Pen().history.stamp(prompt("t"), id="e", timestamp=moment))


@given(metadata)
def test_small_snake_case_metadata_is_taken(values: dict[str, Any]) -> None:
    check_metadata(values)


@pytest.mark.parametrize("key", ["", "Camel", "two words", "a-b", "_a", "a__b", "é", "1a", "a_"])
def test_a_metadata_key_that_is_not_snake_case_is_refused(key: str) -> None:
    with pytest.raises(BadEntry, match="snake_case"):
        check_metadata({key: 1})


def test_metadata_is_accepted_up_to_its_limit_in_bytes() -> None:
    room = METADATA_BYTES_MAX - len('{"a":""}')
    check_metadata({"a": "x" * room})
    with pytest.raises(BadEntry, match="larger than 2048 bytes"):
        check_metadata({"a": "x" * (room + 1)})
    with pytest.raises(BadEntry, match="larger than 2048 bytes"):
        check_metadata({"a": "é" * (room // 2 + 1)})


def test_metadata_that_is_not_json_is_refused() -> None:
    with pytest.raises(BadEntry, match="set, which is not a JSON value"):
        check_metadata({"a": set()})  # type: ignore[dict-item]
    with pytest.raises(BadEntry, match="lone surrogate"):
        check_metadata({"a": HALF})


def test_a_refused_draft_changes_nothing() -> None:
    pen = Pen()
    pen.write(prompt("t1"))
    with pytest.raises(BadEntry):
        pen.write(ModelInputEntry(content="x", turn_id="t2", metadata={"A": 1}))
    assert pen.history.head_seq == 1
    assert pen.history.turn_state("t2") is None
