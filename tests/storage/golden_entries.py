"""Entries of every kind, with each optional field left out and given, and odd values.

`golden/entry_lines.jsonl` holds the line of each, in this order, as version 1 of the
format wrote it. Add at the end; a recorded line never changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import chain
from typing import Any

from nplt_storage.entries import (
    LIVE_SCREEN,
    ApprovalEntry,
    ArchivedEntry,
    AttachmentEntry,
    BlobReference,
    CheckpointEntry,
    ClearEntry,
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
    ModelSwitchedEntry,
    NotebookEntry,
    OutputPart,
    PinnedEntry,
    QuarantineEntry,
    RenamedEntry,
    RollbackEntry,
    SentContext,
    SystemInstructionEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
    UnknownEntry,
    WidgetEntry,
)

AT = datetime(2026, 3, 14, 9, 26, 53, 589793, tzinfo=UTC)
ON_THE_SECOND = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
ELSEWHERE = datetime(1999, 12, 31, 23, 0, 0, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))
ODD_TEXT = 'a"\\/\b\f\n\r\t\x00\x1f\x7f\x80é\u2028\u2029\ufeff漢😀 {"crc":"00000000"}'
ODD_OBJECT: dict[str, Any] = {
    "": None,
    ODD_TEXT: [True, False, ODD_TEXT],
    "integers": [0, -1, 2**53, 2**63 - 1, -(2**63), 2**64 - 1],
    "numbers": [0.0, -0.0, 0.1, 1.0, 1e15, 1e16, 1e17, 1.5e300, 5e-324, 1e-7, 1.23456789e-5],
    "nested": {"a": {"b": [[], {}, [{}]]}},
    "kind": "clear",
    "crc": "x",
}
INVOCATION = ModelInvocationDescriptor(provider="p", specification="s", model="p/m")
SECTIONS = LevelOfDetailSections(
    live=(("", "said"), (LIVE_SCREEN, ODD_TEXT)), summary=(("s", "said"), ("", "")), gist=()
)
CALL = ToolCallRequest(tool_call_id="c1", tool_name="look", raw_arguments="{}", arguments={})
REQUESTS = (
    (),
    (CALL,),
    (
        ToolCallRequest(
            tool_call_id="c2",
            tool_name=ODD_TEXT,
            raw_arguments="{",
            arguments=None,
            parse_error="e",
        ),
        CALL,
        ToolCallRequest(
            tool_call_id="",
            tool_name="t",
            raw_arguments=ODD_TEXT,
            arguments=ODD_OBJECT,
            parse_warning="w",
        ),
    ),
)
RESULTS = (
    (),
    (
        ToolCallResult(
            tool_call_id="c1",
            tool_name="look",
            status="success",
            result="said",
            duration=0.25,
            timestamp=AT,
        ),
        ToolCallResult(
            tool_call_id="c2",
            tool_name="look",
            status="failed",
            result=ODD_TEXT,
            duration=1,
            timestamp=ON_THE_SECOND,
            blob=BlobReference(blob_id="b", size=2**63, sha256="d"),
        ),
        ToolCallResult(
            tool_call_id="c3",
            tool_name="look",
            status="skipped",
            result="said",
            duration=1e16,
            timestamp=ELSEWHERE,
            sections=SECTIONS,
        ),
    ),
)
PARTS = (
    (OutputPart(kind="text", size=3), OutputPart(kind="call")),
    (
        OutputPart(kind="reasoning", size=2**53),
        OutputPart(kind="opaque", data={}),
        OutputPart(kind="opaque", size=1, data=ODD_OBJECT),
    ),
)
SENT = (
    SentContext(tokens=0, budget_tokens=0, tools_digest=""),
    SentContext(tokens=1, budget_tokens=2, tools_digest="d", epoch_seq=3, head_seq=4, trimmed=True),
)

_CALLED: dict[str, list[Any]] = {"invocation": [INVOCATION], "usage": [{}, {"input_tokens": 7}]}
_KINDS: list[tuple[Any, dict[str, Any], dict[str, list[Any]]]] = [
    (
        ModelInputEntry,
        {"content": "said"},
        {
            "content": ["", ODD_TEXT],
            "message_id": ["", "m1"],
            "model": ["p/m"],
            "attachments": [("f1", ODD_TEXT)],
            "options": [ODD_OBJECT],
            "sections": [LevelOfDetailSections(), SECTIONS],
        },
    ),
    (
        ModelOutputEntry,
        {"content": "said"},
        {
            "content": ["", ODD_TEXT],
            "reasoning": [ODD_TEXT],
            "tool_calls": list(REQUESTS),
            **_CALLED,
            "call": [1, 99],
            "state": ["interrupted", "failed"],
            "stop_reason": ["", "end"],
            "error": [{}, ODD_OBJECT],
            "sections": [LevelOfDetailSections(), SECTIONS],
            "sent": list(SENT),
            "parts": list(PARTS),
        },
    ),
    (ToolResultsEntry, {"results": RESULTS[1]}, {"results": [RESULTS[0]], "call": [3]}),
    (
        FaultEntry,
        {"content": "gone", "code": "c", "state": "failed"},
        {"state": ["interrupted"], **_CALLED, "of_request": [True]},
    ),
    (SystemInstructionEntry, {"content": ODD_TEXT}, {}),
    (NotebookEntry, {"content": ""}, {}),
    (WidgetEntry, {"widget": "todo", "state": {}}, {"state": [ODD_OBJECT]}),
    (
        EpochEntry,
        {"reason": "budget"},
        {"summary_through": [6], "budget_tokens": [9], "screen": [ODD_TEXT]},
    ),
    (EpochEntry, {"reason": "", "omitted_through": 1, "gist_through": 2, "summary_through": 3}, {}),
    (CompactionEntry, {"content": ODD_TEXT, "from_seq": 1, "through_seq": 6}, _CALLED),
    (ClearEntry, {}, {}),
    (
        RollbackEntry,
        {"to_seq": 6},
        {
            "to_seq": [0, 6],
            "message_count": [2],
            "preview": [ODD_TEXT],
            "system_seq": [1],
            "notebook_seq": [2],
            "compaction_seq": [3],
            "widget_seqs": [(("a", 1), (ODD_TEXT, 6))],
            "hidden": [(), ((1, 2), (4, 4))],
        },
    ),
    (
        QuarantineEntry,
        {"target_seq": 6, "code": "c", "content": ""},
        {"lifted": [True], "provider": ["openai"], "part": ["pictures"]},
    ),
    (CheckpointEntry, {"state": {}}, {"state": [ODD_OBJECT]}),
    (ForkedEntry, {"from_session_id": "s0", "at_seq": 6}, {}),
    (DebugEntry, {"category": "c", "content": ODD_TEXT}, {}),
    (RenamedEntry, {"name": ODD_TEXT}, {}),
    (PinnedEntry, {"pinned": True}, {"pinned": [False]}),
    (ArchivedEntry, {"archived": True}, {"archived": [False]}),
    (ModelSwitchedEntry, {"model": "p/m"}, {"previous_model": ["", "p/n"]}),
    (
        AttachmentEntry,
        {"file_id": "f", "filename": ODD_TEXT, "size": 0, "sha256": ""},
        {"size": [2**64 - 1], "content_type": ["", "text/plain"]},
    ),
    (
        ApprovalEntry,
        {"approval_id": "a", "tool_call_id": "c", "tool_name": "t", "state": "asked"},
        {
            "state": ["allowed", "denied"],
            "expires_at": [AT, ELSEWHERE],
            "decided_by": ["", "ada"],
            "reason": ["", ODD_TEXT],
            "remember": [True],
        },
    ),
    (
        UnknownEntry,
        {
            "kind": 'a "later" kind',
            "fields": {"role": "system", "content": 5, "tool_calls": None, "novelty": ODD_OBJECT},
        },
        {"fields": [{}]},
    ),
]
_SHARED: dict[str, list[Any]] = {
    "seq": [10**18],
    "id": [ODD_TEXT],
    "timestamp": [ON_THE_SECOND, ELSEWHERE],
    "turn_id": ["", ODD_TEXT],
    "metadata": [ODD_OBJECT],
    "redacted_at": [AT, ELSEWHERE],
}


def golden_entries() -> list[Entry]:
    return list(chain.from_iterable(_of_kind(*kind) for kind in _KINDS))


def _of_kind(kind: Any, needed: dict[str, Any], optional: dict[str, list[Any]]) -> Iterator[Entry]:
    stamped = {"seq": 7, "id": "e7", "timestamp": AT, **needed}
    given = {**_SHARED, **optional}
    if kind is UnknownEntry:
        del given["redacted_at"]
    yield kind(**stamped)
    for name, values in given.items():
        for value in values:
            yield kind(**{**stamped, name: value})
    yield kind(**{**stamped, **{name: values[-1] for name, values in given.items()}})
