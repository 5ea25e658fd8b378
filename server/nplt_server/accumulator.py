"""Deltas in, one `ModelOutputEntry` out: the same for every provider.

It also knows how much was said so far, which is what a client that attaches in
the middle of an answer is given. Pure: no clock, no I/O; ids are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

import orjson

from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_server.deltas import (
    ModelOutputDelta,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.errors import AnswerTooLong
from nplt_storage.facts.entries import (
    ModelInvocationDescriptor,
    ModelOutputEntry,
    OutputPart,
)
from nplt_storage.facts.tool_calls import ToolCallRequest

_ARGUMENTS_DEPTH_MAX = 32
_TOKENS_MAX = 2**53 - 1
_CALL_BYTES = 256
"""What each call takes of the record besides what the model says of it: its id, and
a result, be it one that says it was not run."""


@dataclass(slots=True)
class _CallBeingBuilt:
    tool_name: str = ""
    arguments: list[str] = field(default_factory=list)


class ModelOutputAccumulator:
    def __init__(self, *, answer_bytes_max: int) -> None:
        self._answer_bytes_max = answer_bytes_max
        self._answer_bytes = 0
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _CallBeingBuilt] = {}
        self._parts: list[OutputPart] = []
        self.text_length = 0
        self.reasoning_length = 0
        self.usage: UsageReport | None = None
        self.stop_reason: str | None = None

    def apply(self, delta: ModelOutputDelta) -> None:
        match delta:
            case TextPiece(text=text):
                self._count(text)
                self._text.append(text)
                self.text_length += len(text)
                self._place("text", len(text))
            case ReasoningPiece(text=text):
                self._count(text)
                self._reasoning.append(text)
                self.reasoning_length += len(text)
                self._place("reasoning", len(text))
            case ToolCallPiece():
                self._count(delta.tool_name)
                self._count(delta.arguments)
                if delta.index not in self._calls:
                    self._count_bytes(_CALL_BYTES)
                    self._parts.append(OutputPart(kind="call", size=delta.index))
                call = self._calls.setdefault(delta.index, _CallBeingBuilt())
                call.tool_name += delta.tool_name
                call.arguments.append(delta.arguments)
            case OpaquePiece(data=data):
                part = OutputPart(kind="opaque", data=dict(data))
                self._count_bytes(len(orjson.dumps(part.data)))
                self._parts.append(part)
            case UsageReport():
                self.usage = _believable(delta)
            case Stopped(reason=reason):
                self.stop_reason = reason
            case _:
                assert_never(delta)

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def has_begun(self) -> bool:
        """A piece of an answer was there, be it only a thought."""
        return bool(self._parts)

    @property
    def is_empty(self) -> bool:
        """Nothing that could be remembered: no text and no call."""
        return not self._calls and not self.text.strip()

    def entry(
        self,
        *,
        turn_id: str,
        call: int,
        invocation: ModelInvocationDescriptor,
        new_call_id: Callable[[], str],
    ) -> ModelOutputEntry:
        return ModelOutputEntry(
            turn_id=turn_id,
            call=call,
            content=self.text,
            reasoning=self.reasoning,
            tool_calls=tuple(
                parse_tool_call(new_call_id(), built.tool_name, "".join(built.arguments))
                for _, built in sorted(self._calls.items())
            ),
            invocation=invocation,
            usage=usage_as_json(self.usage),
            stop_reason=self.stop_reason,
            parts=self._parts_in_order(),
        )

    def cut_entry(
        self,
        *,
        turn_id: str,
        call: int,
        invocation: ModelInvocationDescriptor,
        state: Literal["interrupted", "failed"],
        error: JsonObject | None = None,
    ) -> ModelOutputEntry:
        """What there is of an answer that was cut. Calls the model was still
        spelling out are left out: nobody will ever run them."""
        return ModelOutputEntry(
            turn_id=turn_id,
            call=call,
            content=self.text,
            reasoning=self.reasoning,
            invocation=invocation,
            usage=usage_as_json(self.usage),
            state=state,
            stop_reason=self.stop_reason,
            error=error,
        )

    def _place(self, kind: Literal["text", "reasoning"], length: int) -> None:
        """Pieces of one kind in a row are one part."""
        if self._parts and self._parts[-1].kind == kind:
            length += self._parts.pop().size
        self._parts.append(OutputPart(kind=kind, size=length))

    def _parts_in_order(self) -> tuple[OutputPart, ...]:
        if all(part.kind != "opaque" for part in self._parts):
            return ()
        places = {index: place for place, index in enumerate(sorted(self._calls))}
        return tuple(
            replace(part, size=places[part.size]) if part.kind == "call" else part
            for part in self._parts
        )

    def _count(self, text: str) -> None:
        self._count_bytes(len(text) if text.isascii() else len(text.encode(errors="replace")))

    def _count_bytes(self, size: int) -> None:
        self._answer_bytes += size
        if self._answer_bytes > self._answer_bytes_max:
            raise AnswerTooLong(self._answer_bytes_max)


def parse_tool_call(tool_call_id: str, tool_name: str, raw_arguments: str) -> ToolCallRequest:
    """The raw text is always kept; a parse error is something the model can be told."""
    arguments: JsonObject | None = None
    parse_error: str | None = None
    try:
        parsed = orjson.loads(raw_arguments or "{}")
    except orjson.JSONDecodeError as error:
        parse_error = f"the arguments are not valid JSON: {error}"
    else:
        if not isinstance(parsed, dict):
            parse_error = "the arguments are not a JSON object"
        elif not _is_storable(parsed, _ARGUMENTS_DEPTH_MAX):
            parse_error = "the arguments are nested too deeply or hold a number too large"
        else:
            arguments = parsed
    return ToolCallRequest(
        tool_call_id=tool_call_id,
        tool_name=tool_name,
        raw_arguments=raw_arguments,
        arguments=arguments,
        parse_error=parse_error,
    )


def _is_storable(value: JsonValue, depth: int) -> bool:
    match value:
        case dict():
            return depth > 0 and all(_is_storable(v, depth - 1) for v in value.values())
        case list():
            return depth > 0 and all(_is_storable(v, depth - 1) for v in value)
        case float():
            return math.isfinite(value)
        case _:
            return True


def _believable(usage: UsageReport) -> UsageReport:
    """A provider may say anything: an answer is not lost for odd figures."""
    read, written, cached = (
        min(max(tokens, 0), _TOKENS_MAX)
        for tokens in (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
    )
    return UsageReport(input_tokens=read, output_tokens=written, cached_tokens=cached)


def usage_as_json(usage: UsageReport | None) -> JsonObject | None:
    return None if usage is None else {**usage.as_json()}
