"""Deltas in, one `ModelOutputEntry` out: the same for every provider.

It also knows how much was said so far, which is what a client that attaches in
the middle of an answer is given. Pure: no clock, no I/O; ids are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final, Literal, assert_never

import orjson

from nplt_protocol.json_values import JsonObject
from nplt_server.clean_text import clean_text
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
from nplt_server.spelled_calls import as_cut, parse_tool_call
from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import (
    ModelInvocationDescriptor,
    ModelOutputEntry,
    OutputPart,
)
from nplt_storage.facts.json_values import check_object
from nplt_storage.facts.tool_calls import ToolCallRequest

WHOLE: Final = ("end", "tool_calls")
"""Reasons to stop of a model that had said all it wanted to."""
_CUT_AT_ITS_END: Final = "length"
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
        self._is_verbatim = True
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
                self._parts.append(OutputPart(kind="opaque", data=self._kept(dict(data))))
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
            tool_calls=self._tool_calls(new_call_id),
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

    def _tool_calls(self, new_call_id: Callable[[], str]) -> tuple[ToolCallRequest, ...]:
        return tuple(
            as_cut(call, self.stop_reason or "") if index in self._cut_calls else call
            for index, built in sorted(self._calls.items())
            for call in (parse_tool_call(new_call_id(), built.tool_name, "".join(built.arguments)),)
        )

    @property
    def _cut_calls(self) -> Collection[int]:
        """Those that may not be what the model wanted: where it ran out of room the last
        one, also if there is nothing of its arguments yet; where it was stopped, all."""
        if self.stop_reason in WHOLE:
            return ()
        return [*self._calls][-1:] if self.stop_reason == _CUT_AT_ITS_END else self._calls

    def _kept(self, data: JsonObject) -> JsonObject:
        """What can't be written down takes its like with it: a part of it is no use."""
        try:
            check_object(data, "an opaque piece")
        except BadEntry:
            self._is_verbatim = False
            return {}
        self._count_bytes(len(orjson.dumps(data)))
        return data

    def _place(self, kind: Literal["text", "reasoning"], length: int) -> None:
        """Pieces of one kind in a row are one part."""
        if self._parts and self._parts[-1].kind == kind:
            length += self._parts.pop().size
        self._parts.append(OutputPart(kind=kind, size=length))

    def _parts_in_order(self) -> tuple[OutputPart, ...]:
        if not self._is_verbatim or all(part.kind != "opaque" for part in self._parts):
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


def cleaned(delta: ModelOutputDelta) -> ModelOutputDelta:
    """With text that can be written down."""
    match delta:
        case TextPiece() | ReasoningPiece():
            text = clean_text(delta.text)
            return delta if text is delta.text else replace(delta, text=text)
        case ToolCallPiece():
            return replace(
                delta,
                tool_name=clean_text(delta.tool_name),
                arguments=clean_text(delta.arguments),
            )
        case Stopped():
            return replace(delta, reason=clean_text(delta.reason))
        case _:
            return delta


def _believable(usage: UsageReport) -> UsageReport:
    """A provider may say anything: an answer is not lost for odd figures."""
    read, written, cached = (
        min(max(tokens, 0), _TOKENS_MAX)
        for tokens in (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
    )
    return UsageReport(input_tokens=read, output_tokens=written, cached_tokens=cached)


def usage_as_json(usage: UsageReport | None) -> JsonObject | None:
    return None if usage is None else {**usage.as_json()}
