"""From the JSON object of a line back to an entry.

A line that verifies is what was written, so nothing here may lose it: a kind
this version does not know, or a known kind in a shape it does not know (a
later version wrote it), becomes an `UnknownEntry` that keeps every field.
Fields we do not know on a kind we do know are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from nplt_storage.entries import (
    AttachmentEntry,
    ClearEntry,
    DebugEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ModelSwitchedEntry,
    NotebookEntry,
    RenamedEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
    UnknownEntry,
)
from nplt_storage.shapes import Shape, WrongShape
from nplt_storage.tool_calls import ToolCallRequest, ToolCallResult

_SHARED = ("seq", "id", "kind", "turn_id", "timestamp", "metadata")
_Shared: TypeAlias = dict[str, Any]


def entry_from_json(source: Mapping[str, Any]) -> Entry:
    """Raises `WrongShape` only if not even the shared fields are there."""
    shape = Shape(source)
    kind = shape.text("kind")
    shared: _Shared = {
        "seq": shape.integer("seq"),
        "id": shape.text("id"),
        "timestamp": shape.time("timestamp"),
        "turn_id": shape.text_or_none("turn_id"),
        "metadata": shape.object("metadata"),
    }
    if kind in _READERS:
        try:
            return _READERS[kind](shape, shared)
        except WrongShape:
            pass
    fields = {name: value for name, value in source.items() if name not in _SHARED}
    return UnknownEntry(kind=kind, fields=fields, **shared)


def _model_input(shape: Shape, shared: _Shared) -> Entry:
    return ModelInputEntry(
        content=shape.text("content"),
        message_id=shape.text_or_none("message_id"),
        model=shape.text_or_none("model"),
        attachments=shape.texts("attachments"),
        options=shape.object_or_none("options") or {},
        **shared,
    )


def _model_output(shape: Shape, shared: _Shared) -> Entry:
    return ModelOutputEntry(
        content=shape.text("content"),
        reasoning=shape.text_or_none("reasoning") or "",
        tool_calls=tuple(_request(call) for call in shape.members("tool_calls")),
        invocation=_invocation(shape),
        usage=shape.object_or_none("usage"),
        call=shape.integer("call"),
        state=shape.one_of("state", ("completed", "interrupted", "failed")),
        stop_reason=shape.text_or_none("stop_reason"),
        error=shape.object_or_none("error"),
        **shared,
    )


def _tool_results(shape: Shape, shared: _Shared) -> Entry:
    results = tuple(_result(result) for result in shape.members("tool_calls"))
    return ToolResultsEntry(results=results, call=shape.integer("call"), **shared)


def _fault(shape: Shape, shared: _Shared) -> Entry:
    return FaultEntry(
        content=shape.text("content"),
        code=shape.text("code"),
        state=shape.one_of("state", ("interrupted", "failed")),
        **shared,
    )


def _attachment(shape: Shape, shared: _Shared) -> Entry:
    return AttachmentEntry(
        file_id=shape.text("file_id"),
        filename=shape.text("filename"),
        size=shape.integer("size"),
        sha256=shape.text("sha256"),
        content_type=shape.text_or_none("content_type"),
        **shared,
    )


def _model_switched(shape: Shape, shared: _Shared) -> Entry:
    return ModelSwitchedEntry(
        model=shape.text("model"), previous_model=shape.text_or_none("previous_model"), **shared
    )


def _debug(shape: Shape, shared: _Shared) -> Entry:
    return DebugEntry(category=shape.text("category"), content=shape.text("content"), **shared)


def _invocation(shape: Shape) -> ModelInvocationDescriptor | None:
    source = shape.object_or_none("invocation")
    if source is None:
        return None
    inner = Shape(source)
    return ModelInvocationDescriptor(
        provider=inner.text("provider"),
        specification=inner.text("specification"),
        model=inner.text("model"),
    )


def _request(call: Shape) -> ToolCallRequest:
    return ToolCallRequest(
        tool_call_id=call.text("tool_call_id"),
        tool_name=call.text("tool_name"),
        raw_arguments=call.text("raw_arguments"),
        arguments=None if call.flag("unparsed") else call.object("arguments"),
        parse_error=call.text_or_none("parse_error"),
        parse_warning=call.text_or_none("parse_warning"),
    )


def _result(result: Shape) -> ToolCallResult:
    return ToolCallResult(
        tool_call_id=result.text("tool_call_id"),
        tool_name=result.text("tool_name"),
        status=result.one_of("status", ("success", "failed", "skipped")),
        result=result.text("result"),
        duration=result.number("duration"),
        timestamp=result.time("timestamp"),
    )


_READERS: dict[str, Callable[[Shape, _Shared], Entry]] = {
    ModelInputEntry.kind: _model_input,
    ModelOutputEntry.kind: _model_output,
    ToolResultsEntry.kind: _tool_results,
    FaultEntry.kind: _fault,
    AttachmentEntry.kind: _attachment,
    ModelSwitchedEntry.kind: _model_switched,
    DebugEntry.kind: _debug,
    SystemInstructionEntry.kind: lambda shape, shared: SystemInstructionEntry(
        content=shape.text("content"), **shared
    ),
    NotebookEntry.kind: lambda shape, shared: NotebookEntry(
        content=shape.text("content"), **shared
    ),
    EpochEntry.kind: lambda shape, shared: EpochEntry(reason=shape.text("reason"), **shared),
    ClearEntry.kind: lambda _, shared: ClearEntry(**shared),
    RenamedEntry.kind: lambda shape, shared: RenamedEntry(name=shape.text("name"), **shared),
}

KNOWN_KINDS = frozenset(_READERS)
