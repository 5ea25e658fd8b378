"""From the JSON object of a line back to an entry.

A line that verifies is what was written, so nothing here may lose it: a kind
this version does not know, or a known kind in a shape it does not know (a
later version wrote it), becomes an `UnknownEntry` that keeps every field.
Fields we do not know on a kind we do know are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from nplt_storage.facts.entries import (
    ApprovalEntry,
    ArchivedEntry,
    AttachmentEntry,
    CheckpointEntry,
    ClearEntry,
    CompactionEntry,
    DebugEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
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
    ToolResultsEntry,
    UnknownEntry,
    WidgetEntry,
)
from nplt_storage.facts.references import wrong_reference
from nplt_storage.facts.sections import LevelOfDetailSections, sections_from_json
from nplt_storage.facts.shapes import Shape, WrongShape
from nplt_storage.facts.tool_calls import BlobReference, ToolCallRequest, ToolCallResult

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
            if "redacted_at" in source:
                return _READERS[kind](shape, shared | {"redacted_at": shape.time("redacted_at")})
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
        sections=_sections(shape, "content"),
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
        sections=_sections(shape, "content"),
        sent=_sent(shape),
        parts=tuple(_part(value) for value in shape.list_or_empty("parts")),
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
        invocation=_invocation(shape),
        usage=shape.object_or_none("usage"),
        of_request=shape.flag("of_request"),
        **shared,
    )


def _epoch(shape: Shape, shared: _Shared) -> Entry:
    return _sensible(
        EpochEntry(
            reason=shape.text("reason"),
            omitted_through=shape.integer_or_zero("omitted_through"),
            gist_through=shape.integer_or_zero("gist_through"),
            summary_through=shape.integer_or_zero("summary_through"),
            budget_tokens=shape.integer_or_zero("budget_tokens"),
            screen=shape.text_or_none("screen") or "",
            **shared,
        )
    )


def _compaction(shape: Shape, shared: _Shared) -> Entry:
    return _sensible(
        CompactionEntry(
            content=shape.text("content"),
            from_seq=shape.integer("from_seq"),
            through_seq=shape.integer("through_seq"),
            invocation=_invocation(shape),
            usage=shape.object_or_none("usage"),
            **shared,
        )
    )


def _rollback(shape: Shape, shared: _Shared) -> Entry:
    return _sensible(
        RollbackEntry(
            to_seq=shape.integer("to_seq"),
            message_count=shape.integer_or_zero("message_count"),
            preview=shape.text_or_none("preview") or "",
            system_seq=shape.integer_or_zero("system_seq"),
            notebook_seq=shape.integer_or_zero("notebook_seq"),
            compaction_seq=shape.integer_or_zero("compaction_seq"),
            widget_seqs=shape.named_numbers("widget_seqs"),
            hidden=shape.ranges_or_none("hidden"),
            **shared,
        )
    )


def _quarantine(shape: Shape, shared: _Shared) -> Entry:
    return _sensible(
        QuarantineEntry(
            target_seq=shape.integer("target_seq"),
            code=shape.text("code"),
            content=shape.text("content"),
            lifted=shape.flag("lifted"),
            **shared,
        )
    )


def _forked(shape: Shape, shared: _Shared) -> Entry:
    return _sensible(
        ForkedEntry(
            from_session_id=shape.text("from_session_id"), at_seq=shape.integer("at_seq"), **shared
        )
    )


def _sensible(entry: Entry) -> Entry:
    if wrong := wrong_reference(entry):
        raise WrongShape(wrong)
    return entry


def _attachment(shape: Shape, shared: _Shared) -> Entry:
    return AttachmentEntry(
        file_id=shape.text("file_id"),
        filename=shape.text("filename"),
        size=shape.integer("size"),
        sha256=shape.text("sha256"),
        content_type=shape.text_or_none("content_type"),
        **shared,
    )


def _approval(shape: Shape, shared: _Shared) -> Entry:
    asks = shape.text_or_none("expires_at") is not None
    return ApprovalEntry(
        approval_id=shape.text("approval_id"),
        tool_call_id=shape.text("tool_call_id"),
        tool_name=shape.text("tool_name"),
        state=shape.one_of("state", ("asked", "allowed", "denied")),
        expires_at=shape.time("expires_at") if asks else None,
        decided_by=shape.text_or_none("decided_by"),
        reason=shape.text_or_none("reason"),
        remember=shape.flag("remember"),
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


def _part(value: object) -> OutputPart:
    match value:
        case [("text" | "reasoning" | "call" | "opaque") as kind, int(size)]:
            return OutputPart(kind=kind, size=size)
        case [("text" | "reasoning" | "call" | "opaque") as kind, int(size), dict(data)]:
            return OutputPart(kind=kind, size=size, data=data)
        case _:
            raise WrongShape("a part is not a kind, a size and perhaps an object")


def _sent(shape: Shape) -> SentContext | None:
    source = shape.object_or_none("sent")
    if source is None:
        return None
    inner = Shape(source)
    return SentContext(
        tokens=inner.integer("tokens"),
        budget_tokens=inner.integer("budget_tokens"),
        tools_digest=inner.text("tools_digest"),
        epoch_seq=inner.integer_or_zero("epoch_seq"),
        head_seq=inner.integer_or_zero("head_seq"),
        trimmed=inner.flag("trimmed"),
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
        blob=_blob(result),
        sections=_sections(result, "result"),
    )


def _blob(result: Shape) -> BlobReference | None:
    source = result.object_or_none("blob")
    if source is None:
        return None
    inner = Shape(source)
    return BlobReference(
        blob_id=inner.text("blob_id"), size=inner.integer("size"), sha256=inner.text("sha256")
    )


def _sections(shape: Shape, beside: str) -> LevelOfDetailSections | None:
    source = shape.object_or_none("sections")
    return None if source is None else sections_from_json(source, shape.text(beside))


_READERS: dict[str, Callable[[Shape, _Shared], Entry]] = {
    ModelInputEntry.kind: _model_input,
    ModelOutputEntry.kind: _model_output,
    ToolResultsEntry.kind: _tool_results,
    FaultEntry.kind: _fault,
    AttachmentEntry.kind: _attachment,
    ApprovalEntry.kind: _approval,
    ModelSwitchedEntry.kind: _model_switched,
    DebugEntry.kind: _debug,
    SystemInstructionEntry.kind: lambda shape, shared: SystemInstructionEntry(
        content=shape.text("content"), **shared
    ),
    NotebookEntry.kind: lambda shape, shared: NotebookEntry(
        content=shape.text("content"), **shared
    ),
    WidgetEntry.kind: lambda shape, shared: WidgetEntry(
        widget=shape.text("widget"), state=shape.object("state"), **shared
    ),
    EpochEntry.kind: _epoch,
    CompactionEntry.kind: _compaction,
    ClearEntry.kind: lambda _, shared: ClearEntry(**shared),
    RollbackEntry.kind: _rollback,
    QuarantineEntry.kind: _quarantine,
    CheckpointEntry.kind: lambda shape, shared: CheckpointEntry(
        state=shape.object("state"), **shared
    ),
    ForkedEntry.kind: _forked,
    RenamedEntry.kind: lambda shape, shared: RenamedEntry(name=shape.text("name"), **shared),
    PinnedEntry.kind: lambda shape, shared: PinnedEntry(pinned=shape.truth("pinned"), **shared),
    ArchivedEntry.kind: lambda shape, shared: ArchivedEntry(
        archived=shape.truth("archived"), **shared
    ),
}

KNOWN_KINDS = frozenset(_READERS)
