"""A conversation as chat messages, with tool results joined in.

    user        model_input
    assistant   model_output, each call with its result from the later tool_results
                line of the same turn and call; "pending" until then
    system      system_instruction and fault, if asked for

Other kinds are not messages; the entries view shows them. A message can be shown with
less detail: by the sections of its entry, or else by rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from nplt_storage.codec import time_as_text
from nplt_storage.entries import (
    BlobReference,
    Entry,
    FaultEntry,
    LevelOfDetail,
    LevelOfDetailSections,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    Role,
    SystemInstructionEntry,
    ToolCallResult,
    ToolExecutionStatus,
    ToolResultsEntry,
)
from nplt_storage.json_values import JsonObject, JsonValue

MessageEntry: TypeAlias = ModelInputEntry | ModelOutputEntry | FaultEntry | SystemInstructionEntry
ResultsByCall: TypeAlias = dict[tuple[str | None, int], ToolResultsEntry]


class ToolCall(Struct, frozen=True, kw_only=True):
    tool_name: str
    tool_call_id: str
    arguments: Mapping[str, JsonValue]
    result: str
    status: ToolExecutionStatus | Literal["pending"]
    duration: float
    timestamp: datetime
    blob: BlobReference | None = None
    by_client: bool | None = None
    """Whether the client that sent the prompt runs it."""


class ChatMessage(Struct, frozen=True, kw_only=True):
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
    rejected: str | None = None
    """The reason why it does not fit the schema of the prompt; another answer follows."""
    continues: int | None = None
    """The seq of the answer that the model is asked to go on with."""
    results_seq: int | None = None
    """The entry with the tool results that came with a prompt."""
    stop_reason: str | None = None
    fallback_from: Mapping[str, JsonValue] | None = None
    reasoning_size: int | None = None
    """The code points of the reasoning before the answer; the entry has the text."""

    def copy(self) -> ChatMessage:
        """A deep copy."""
        return replace(
            self,
            tool_calls=tuple(
                replace(call, arguments=_copy(call.arguments)) for call in self.tool_calls
            ),
            metadata=_copy(self.metadata),
            usage=None if self.usage is None else _copy(self.usage),
            fallback_from=None if self.fallback_from is None else _copy(self.fallback_from),
        )

    def as_json(self) -> JsonObject:
        """The message as new lists and objects; fields that are `None` are left out."""
        message = _as_json(self)
        message["tool_calls"] = [_as_json(call) for call in self.tool_calls]
        return message


def _as_json(part: ChatMessage | ToolCall) -> JsonObject:
    """The fields are in the order in which they are written."""
    values: dict[str, Any] = to_builtins(part, builtin_types=(datetime,), enc_hook=dict)
    return {
        name: time_as_text(value) if isinstance(value, datetime) else value
        for name, value in values.items()
        if value is not None
    }


def _copy(source: Mapping[str, JsonValue]) -> JsonObject:
    return deepcopy(dict(source)) if source else {}


LevelMaker: TypeAlias = Callable[[str | ToolCallResult], LevelOfDetailSections | None]
"""Makes the summary and gist of a text or tool result, by rule, when they are first needed; `None`
if it is short enough to be shown whole."""


def no_levels(content: str | ToolCallResult) -> None:
    """The level maker for entries that are shown whole, or whose levels are recorded."""


def chat_message(
    entry: MessageEntry,
    results: ResultsByCall,
    detail: LevelOfDetail = "live",
    levels: LevelMaker = no_levels,
) -> ChatMessage:
    model, usage, state, sections = None, None, None, None
    tool_calls: tuple[ToolCall, ...] = ()
    prompt = entry if isinstance(entry, ModelInputEntry) else None
    output = entry if isinstance(entry, ModelOutputEntry) else None
    match entry:
        case ModelInputEntry():
            model, sections = entry.model, entry.sections
        case ModelOutputEntry():
            model = model_name(entry.invocation) if entry.invocation else None
            usage, state, sections = entry.usage, entry.state, entry.sections
            results_entry = results.get((entry.turn_id, entry.call))
            tool_calls = _joined(entry, results_entry, detail, levels)
        case FaultEntry():
            state = entry.state
        case SystemInstructionEntry():
            pass
    return ChatMessage(
        seq=entry.seq,
        id=entry.id,
        role=entry.role,
        # The screen was made for models; here people read what was said.
        content=entry.content
        if detail == "live"
        else text_at_level(entry.content, sections, detail, levels),
        timestamp=entry.timestamp,
        tool_calls=tool_calls,
        metadata=entry.metadata,
        turn_id=entry.turn_id,
        model=model,
        usage=usage,
        state=state,
        redacted_at=entry.redacted_at,
        rejected=output.rejected if output else None,
        continues=prompt.continues if prompt else None,
        results_seq=prompt.results_seq if prompt else None,
        stop_reason=output.stop_reason if output else None,
        fallback_from=output.fallback_from if output else None,
        reasoning_size=(len(output.reasoning) or None) if output else None,
    )


def model_name(invocation: ModelInvocationDescriptor) -> str:
    prefix = f"{invocation.provider}/"
    return invocation.model if invocation.model.startswith(prefix) else prefix + invocation.model


def text_at_level(
    content: str | ToolCallResult,
    sections: LevelOfDetailSections | None,
    level: LevelOfDetail,
    levels: LevelMaker,
) -> str:
    """The text without the live screen. A level that is not recorded is derived."""
    text = content if isinstance(content, str) else content.result
    recorded = None if sections is None else sections.without_live_screen()[0]
    if recorded is not None and (level == "live" or recorded.holds(level)):
        return recorded.to_plain_text(level) or text
    made = None if level == "live" else levels(content)
    return text if made is None else made.to_plain_text(level)


def _joined(
    entry: ModelOutputEntry,
    results_entry: ToolResultsEntry | None,
    detail: LevelOfDetail,
    levels: LevelMaker,
) -> tuple[ToolCall, ...]:
    results: list[ToolCallResult | None] = list(results_entry.results) if results_entry else []
    results += [None] * (len(entry.tool_calls) - len(results))
    return tuple(
        ToolCall(
            tool_name=call.tool_name,
            tool_call_id=call.tool_call_id,
            arguments=call.arguments or {},
            result=""
            if result is None
            else result.result
            if detail == "live"
            else text_at_level(result, result.sections, detail, levels),
            status="pending" if result is None else result.status,
            duration=0.0 if result is None else result.duration,
            timestamp=entry.timestamp if result is None else result.timestamp,
            blob=None if result is None else result.blob,
            by_client=call.by_client or None,
        )
        for call, result in zip(entry.tool_calls, results, strict=False)
    )


def content_of(entry: Entry) -> str | None:
    content = getattr(entry, "content", None)
    return content if isinstance(content, str) else None
