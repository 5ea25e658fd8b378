"""A conversation as people see it: chat messages, tool results joined in.

    user        model_input
    assistant   model_output, each call with its result from the later
                tool_results line of the same turn and call; "pending" until then
    system      system_instruction and fault, for those who ask for them

All other kinds are facts, not messages: the entries view shows those.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from nplt_storage.entries import (
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    Role,
    SystemInstructionEntry,
    ToolResultsEntry,
)
from nplt_storage.entry_to_json import time_as_text
from nplt_storage.json_values import JsonObject, JsonValue
from nplt_storage.tool_calls import ToolCallRequest, ToolCallResult, ToolStatus

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

    def as_json(self) -> JsonObject:
        return {
            "tool_name": self.tool_name,
            "tool_call_id": self.tool_call_id,
            "arguments": _copy(self.arguments),
            "result": self.result,
            "status": self.status,
            "duration": self.duration,
            "timestamp": time_as_text(self.timestamp),
        }


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
        return message


def _copy(source: Mapping[str, JsonValue]) -> JsonObject:
    return deepcopy(dict(source)) if source else {}


def chat_message(entry: MessageEntry, results: ResultsByCall) -> ChatMessage:
    model, usage, state = None, None, None
    tool_calls: tuple[ToolCall, ...] = ()
    match entry:
        case ModelInputEntry():
            model = entry.model
        case ModelOutputEntry():
            model = model_name(entry.invocation) if entry.invocation else None
            usage, state = entry.usage, entry.state
            tool_calls = _joined(entry, results.get((entry.turn_id, entry.call)))
        case FaultEntry():
            state = entry.state
        case SystemInstructionEntry():
            pass
    return ChatMessage(
        seq=entry.seq,
        id=entry.id,
        role=entry.role,
        content=entry.content,
        timestamp=entry.timestamp,
        tool_calls=tool_calls,
        metadata=entry.metadata,
        turn_id=entry.turn_id,
        model=model,
        usage=usage,
        state=state,
    )


def model_name(invocation: ModelInvocationDescriptor) -> str:
    prefix = f"{invocation.provider}/"
    return invocation.model if invocation.model.startswith(prefix) else prefix + invocation.model


def _joined(entry: ModelOutputEntry, answer: ToolResultsEntry | None) -> tuple[ToolCall, ...]:
    results: list[ToolCallResult | None] = list(answer.results) if answer else []
    results += [None] * (len(entry.tool_calls) - len(results))
    return tuple(
        _tool_call(call, result, entry.timestamp)
        for call, result in zip(entry.tool_calls, results, strict=False)
    )


def _tool_call(
    call: ToolCallRequest, result: ToolCallResult | None, asked_at: datetime
) -> ToolCall:
    return ToolCall(
        tool_name=call.tool_name,
        tool_call_id=call.tool_call_id,
        arguments=call.arguments or {},
        result=result.result if result else "",
        status=result.status if result else "pending",
        duration=result.duration if result else 0.0,
        timestamp=result.timestamp if result else asked_at,
    )


def content_of(entry: Entry) -> str | None:
    content = getattr(entry, "content", None)
    return content if isinstance(content, str) else None
