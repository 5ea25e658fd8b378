"""A conversation as people see it: chat messages, tool results joined in.

    user        model_input
    assistant   model_output, each call with its result from the later
                tool_results line of the same turn and call; "pending" until then
    system      system_instruction and fault, for those who ask for them

All other kinds are facts, not messages: the entries view shows those. A message
can be shown with less detail, where its entry says how.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Literal, TypeAlias

from nplt_storage.facts.entries import (
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    Role,
    SystemInstructionEntry,
    ToolResultsEntry,
)
from nplt_storage.facts.entry_to_json import time_as_text
from nplt_storage.facts.json_values import JsonObject, JsonValue
from nplt_storage.facts.sections import LevelOfDetail, LevelOfDetailSections
from nplt_storage.facts.tool_calls import (
    BlobReference,
    ToolCallRequest,
    ToolCallResult,
    ToolStatus,
)

MessageEntry: TypeAlias = ModelInputEntry | ModelOutputEntry | FaultEntry | SystemInstructionEntry
ResultsByCall: TypeAlias = dict[tuple[str | None, int], ToolResultsEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    tool_name: str
    tool_call_id: str
    arguments: Mapping[str, JsonValue]
    result: str
    status: ToolStatus | Literal["pending"]
    duration: float
    timestamp: datetime
    blob: BlobReference | None = None

    def as_json(self) -> JsonObject:
        call: JsonObject = {
            "tool_name": self.tool_name,
            "tool_call_id": self.tool_call_id,
            "arguments": _copy(self.arguments),
            "result": self.result,
            "status": self.status,
            "duration": self.duration,
            "timestamp": time_as_text(self.timestamp),
        }
        if self.blob is not None:
            call["blob"] = asdict(self.blob)
        return call


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    seq: int
    id: str
    role: Role
    content: str
    timestamp: datetime
    tool_calls: tuple[ToolCall, ...] = ()
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    turn_id: str | None = None
    model: str | None = None
    usage: Mapping[str, JsonValue] | None = None
    state: str | None = None
    redacted_at: datetime | None = None

    def copy(self) -> ChatMessage:
        """One whose changes change nothing else."""
        return replace(
            self,
            tool_calls=tuple(
                replace(call, arguments=_copy(call.arguments)) for call in self.tool_calls
            ),
            metadata=_copy(self.metadata),
            usage=None if self.usage is None else _copy(self.usage),
        )

    def as_json(self) -> JsonObject:
        message: JsonObject = {
            "seq": self.seq,
            "id": self.id,
            "role": self.role,
            "content": self.content,
            "timestamp": time_as_text(self.timestamp),
            "tool_calls": [call.as_json() for call in self.tool_calls],
            "metadata": _copy(self.metadata),
        }
        if self.turn_id is not None:
            message["turn_id"] = self.turn_id
        if self.model is not None:
            message["model"] = self.model
        if self.usage is not None:
            message["usage"] = _copy(self.usage)
        if self.state is not None:
            message["state"] = self.state
        if self.redacted_at is not None:
            message["redacted_at"] = time_as_text(self.redacted_at)
        return message


def _copy(source: Mapping[str, JsonValue]) -> JsonObject:
    return deepcopy(dict(source)) if source else {}


def chat_message(
    entry: MessageEntry, results: ResultsByCall, detail: LevelOfDetail = "live"
) -> ChatMessage:
    model, usage, state, sections = None, None, None, None
    tool_calls: tuple[ToolCall, ...] = ()
    match entry:
        case ModelInputEntry():
            model, sections = entry.model, entry.sections
        case ModelOutputEntry():
            model = model_name(entry.invocation) if entry.invocation else None
            usage, state, sections = entry.usage, entry.state, entry.sections
            tool_calls = _joined(entry, results.get((entry.turn_id, entry.call)), detail)
        case FaultEntry():
            state = entry.state
        case SystemInstructionEntry():
            pass
    return ChatMessage(
        seq=entry.seq,
        id=entry.id,
        role=entry.role,
        content=_at_level(entry.content, sections, detail),
        timestamp=entry.timestamp,
        tool_calls=tool_calls,
        metadata=entry.metadata,
        turn_id=entry.turn_id,
        model=model,
        usage=usage,
        state=state,
        redacted_at=entry.redacted_at,
    )


def model_name(invocation: ModelInvocationDescriptor) -> str:
    prefix = f"{invocation.provider}/"
    return invocation.model if invocation.model.startswith(prefix) else prefix + invocation.model


def _at_level(said: str, sections: LevelOfDetailSections | None, detail: LevelOfDetail) -> str:
    if detail == "live" or sections is None:
        return said
    # The screen was made for models; here people read what was said.
    return sections.without_live_screen()[0].to_plain_text(detail)


def _joined(
    entry: ModelOutputEntry, answer: ToolResultsEntry | None, detail: LevelOfDetail
) -> tuple[ToolCall, ...]:
    results: list[ToolCallResult | None] = list(answer.results) if answer else []
    results += [None] * (len(entry.tool_calls) - len(results))
    return tuple(
        _pending(call, entry.timestamp) if result is None else _answered(call, result, detail)
        for call, result in zip(entry.tool_calls, results, strict=False)
    )


def _pending(call: ToolCallRequest, asked_at: datetime) -> ToolCall:
    return ToolCall(
        tool_name=call.tool_name,
        tool_call_id=call.tool_call_id,
        arguments=call.arguments or {},
        result="",
        status="pending",
        duration=0.0,
        timestamp=asked_at,
    )


def _answered(call: ToolCallRequest, result: ToolCallResult, detail: LevelOfDetail) -> ToolCall:
    return ToolCall(
        tool_name=call.tool_name,
        tool_call_id=call.tool_call_id,
        arguments=call.arguments or {},
        result=_at_level(result.result, result.sections, detail),
        status=result.status,
        duration=result.duration,
        timestamp=result.timestamp,
        blob=result.blob,
    )


def content_of(entry: Entry) -> str | None:
    content = getattr(entry, "content", None)
    return content if isinstance(content, str) else None
