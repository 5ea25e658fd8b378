"""From an entry to the JSON object of its line, kind by kind.

Every object carries `role content timestamp tool_calls metadata`, and every
tool call in it `tool_name arguments result status duration timestamp`, so that
programs which only know a chat's messages can read the file; what is ours
stands beside. Fields that hold their default are left out. No bytes here: the
frame of a line and its checksum are the business of `lines`; `entry_from_json`
is the way back.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from nplt_storage.facts.entries import (
    ApprovalEntry,
    CheckpointEntry,
    CompactionEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    OutputPart,
    RollbackEntry,
    SentContext,
    ToolResultsEntry,
    UnknownEntry,
    WidgetEntry,
)
from nplt_storage.facts.json_values import JsonObject
from nplt_storage.facts.sections import sections_as_json
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult

_WRITTEN: dict[str, tuple[str, ...]] = {
    "system_instruction": (),
    "notebook": (),
    "clear": (),
    "quarantine": ("target_seq", "code"),
    "forked": ("from_session_id", "at_seq"),
    "debug": ("category",),
    "renamed": ("name",),
    "pinned": ("pinned",),
    "archived": ("archived",),
    "model_switched": ("model", "previous_model"),
    "attachment": ("file_id", "filename", "size", "sha256", "content_type"),
}
"""Kinds that are written field by field as they are, in this order; `None` is left out."""
_FLAGS = ("of_request", "lifted")
"""Written only where they are true."""


def entry_as_json(entry: Entry) -> JsonObject:
    shared: JsonObject = {"seq": entry.seq, "id": entry.id, "kind": entry.kind}
    if entry.turn_id is not None:
        shared["turn_id"] = entry.turn_id
    own = _own_fields(entry)
    for name in ("role", "content"):
        if name in own:
            shared[name] = own.pop(name)
    shared["timestamp"] = time_as_text(entry.timestamp)
    if "tool_calls" in own:
        shared["tool_calls"] = own.pop("tool_calls")
    shared["metadata"] = dict(entry.metadata)
    if entry.redacted_at is not None:
        shared["redacted_at"] = time_as_text(entry.redacted_at)
    return shared | own


def time_as_text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _own_fields(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, UnknownEntry):
        return dict(entry.fields)
    own: dict[str, Any] = {
        "role": entry.role,
        "content": getattr(entry, "content", ""),
        "tool_calls": [],
    }
    match entry:
        case ModelInputEntry():
            own |= _input_fields(entry)
        case ModelOutputEntry():
            own |= _output_fields(entry)
        case ToolResultsEntry():
            own["tool_calls"] = [_result_as_object(result) for result in entry.results]
            own["call"] = entry.call
        case CompactionEntry():
            own |= {"from_seq": entry.from_seq, "through_seq": entry.through_seq}
            own |= _call_fields(entry)
        case FaultEntry():
            own |= {"code": entry.code, "state": entry.state, **_call_fields(entry)}
        case RollbackEntry():
            own |= _rollback_fields(entry)
        case EpochEntry():
            own |= _epoch_fields(entry)
        case WidgetEntry():
            own |= {"widget": entry.widget, "state": dict(entry.state)}
        case ApprovalEntry():
            own |= _approval_fields(entry)
        case CheckpointEntry():
            own["state"] = dict(entry.state)
        case _:
            own |= _some(**{name: getattr(entry, name) for name in _WRITTEN[entry.kind]})
    return own | {name: True for name in _FLAGS if getattr(entry, name, False)}


def _input_fields(entry: ModelInputEntry) -> dict[str, Any]:
    own = _some(message_id=entry.message_id, model=entry.model)
    own |= _some(attachments=list(entry.attachments), options=dict(entry.options))
    if entry.sections is not None:
        own["sections"] = sections_as_json(entry.sections, entry.content)
    return own


def _output_fields(entry: ModelOutputEntry) -> dict[str, Any]:
    own: dict[str, Any] = {
        "tool_calls": [_request_as_object(call, entry.timestamp) for call in entry.tool_calls],
        "call": entry.call,
        "state": entry.state,
    }
    if entry.reasoning:
        own["reasoning"] = entry.reasoning
    own |= _call_fields(entry)
    if entry.stop_reason is not None:
        own["stop_reason"] = entry.stop_reason
    if entry.error is not None:
        own["error"] = dict(entry.error)
    if entry.sections is not None:
        own["sections"] = sections_as_json(entry.sections, entry.content)
    if entry.sent is not None:
        own["sent"] = _sent_as_object(entry.sent)
    if entry.parts:
        own["parts"] = [_part_as_list(part) for part in entry.parts]
    return own


def _part_as_list(part: OutputPart) -> list[Any]:
    return [part.kind, part.size] if part.data is None else [part.kind, part.size, dict(part.data)]


def _sent_as_object(sent: SentContext) -> dict[str, Any]:
    source: dict[str, Any] = {
        "tokens": sent.tokens,
        "budget_tokens": sent.budget_tokens,
        "tools_digest": sent.tools_digest,
    }
    for name in ("epoch_seq", "head_seq", "trimmed"):
        if value := getattr(sent, name):
            source[name] = value
    return source


def _epoch_fields(entry: EpochEntry) -> dict[str, Any]:
    own: dict[str, Any] = {"reason": entry.reason}
    for name in ("omitted_through", "gist_through", "summary_through", "budget_tokens", "screen"):
        if value := getattr(entry, name):
            own[name] = value
    return own


def _approval_fields(entry: ApprovalEntry) -> dict[str, Any]:
    own: dict[str, Any] = {
        "approval_id": entry.approval_id,
        "tool_call_id": entry.tool_call_id,
        "tool_name": entry.tool_name,
        "state": entry.state,
    }
    if entry.expires_at is not None:
        own["expires_at"] = time_as_text(entry.expires_at)
    own |= _some(decided_by=entry.decided_by, reason=entry.reason)
    if entry.remember:
        own["remember"] = True
    return own


def _call_fields(entry: ModelOutputEntry | CompactionEntry | FaultEntry) -> dict[str, Any]:
    """Who was called, and what that was billed for."""
    own: dict[str, Any] = {}
    if entry.invocation is not None:
        own["invocation"] = {
            "provider": entry.invocation.provider,
            "specification": entry.invocation.specification,
            "model": entry.invocation.model,
        }
    if entry.usage is not None:
        own["usage"] = dict(entry.usage)
    return own


def _rollback_fields(entry: RollbackEntry) -> dict[str, Any]:
    own: dict[str, Any] = {"to_seq": entry.to_seq}
    for name in ("message_count", "preview", "system_seq", "notebook_seq", "compaction_seq"):
        if value := getattr(entry, name):
            own[name] = value
    if entry.widget_seqs:
        own["widget_seqs"] = [list(landmark) for landmark in entry.widget_seqs]
    if entry.hidden is not None:
        own["hidden"] = [list(range_) for range_ in entry.hidden]
    return own


def _request_as_object(call: ToolCallRequest, asked_at: datetime) -> dict[str, Any]:
    source: dict[str, Any] = {
        "tool_name": call.tool_name,
        "arguments": dict(call.arguments or {}),
        "result": "",
        "status": "pending",
        "duration": 0.0,
        "timestamp": time_as_text(asked_at),
        "tool_call_id": call.tool_call_id,
        "raw_arguments": call.raw_arguments,
    }
    if call.arguments is None:
        source["unparsed"] = True
    return source | _some(parse_error=call.parse_error, parse_warning=call.parse_warning)


def _result_as_object(result: ToolCallResult) -> dict[str, Any]:
    source: dict[str, Any] = {
        "tool_name": result.tool_name,
        "arguments": {},
        "result": result.result,
        "status": result.status,
        "duration": result.duration,
        "timestamp": time_as_text(result.timestamp),
        "tool_call_id": result.tool_call_id,
    }
    if result.blob is not None:
        source["blob"] = {
            "blob_id": result.blob.blob_id,
            "size": result.blob.size,
            "sha256": result.blob.sha256,
        }
    if result.sections is not None:
        source["sections"] = sections_as_json(result.sections, result.result)
    return source


def _some(**values: Any) -> dict[str, Any]:
    """Those that say something: `None` and empty collections are the default."""
    return {
        name: value for name, value in values.items() if value is not None and value not in ([], {})
    }
