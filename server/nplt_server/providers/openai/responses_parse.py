"""Events of `POST /responses` into deltas. Pure.

Nothing is kept on the server, so what a later request must show again goes with the
answer as opaque pieces: a reasoning item whole, with its encrypted content; the ids of
calls and messages, which must not come back without the reasoning that led to them. An
answer is complete with `response.completed` or `response.incomplete` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

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
from nplt_server.providers.failures import unreadable
from nplt_server.providers.openai.fields import count_of, word_of
from nplt_server.providers.openai.stream_errors import failure_of_event
from nplt_server.providers.sse import json_object_of

_INCOMPLETE = {"max_output_tokens": "length"}
_KEPT_OF_REASONING = ("type", "id", "summary", "encrypted_content")


class ResponsesParser:
    def __init__(self, own_names: Mapping[str, str]) -> None:
        self._own_names = own_names
        self._calls: dict[JsonValue, int] = {}
        self._with_arguments: set[int] = set()
        self._ids_may_return = True
        self._refused = False
        self._summary_parts = 0
        self.has_spoken = False
        self.is_thinking = False
        self.is_done = False

    def feed(self, data: bytes) -> list[ModelOutputDelta]:
        if data.startswith(b"[DONE]"):  # of servers that know it from the other API
            return []
        deltas: list[ModelOutputDelta] = []
        try:
            event = json_object_of(data)
            if event is None:
                raise unreadable(before_first_token=not self.has_spoken)
            self._take(event, deltas)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise unreadable(before_first_token=not self.has_spoken) from None
        if deltas and not self.is_done:
            self.has_spoken = True
        return deltas

    def _take(self, event: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        hear = _HEARING.get(word_of(event.get("type")))
        if hear is not None:
            hear(self, event, deltas)
        elif event.get("error"):
            self._fail(event, deltas)

    def _hear_text(self, event: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        deltas.append(TextPiece(text=word_of(event.get("delta"))))

    def _hear_refusal(self, event: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        self._refused = True
        self._hear_text(event, deltas)

    def _hear_reasoning(self, event: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        deltas.append(ReasoningPiece(text=word_of(event.get("delta"))))

    def _begin_summary_part(self, event: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        """Paragraphs of one summary, or of several."""
        if self._summary_parts:
            deltas.append(ReasoningPiece(text="\n\n"))
        self._summary_parts += 1

    def _begin_item(self, event: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        item = _item_of(event)
        self.is_thinking = item.get("type") == "reasoning"
        if item.get("type") != "function_call":
            return
        index = self._calls[event.get("output_index")] = len(self._calls)
        name = word_of(item.get("name"))
        deltas.append(ToolCallPiece(index=index, tool_name=self._own_names.get(name, name)))
        self._keep_id(item, deltas)

    def _hear_arguments(self, event: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        self._add_arguments(event, word_of(event.get("delta")), deltas)

    def _add_arguments(self, event: JsonObject, piece: str, deltas: list[ModelOutputDelta]) -> None:
        index = self._calls.get(event.get("output_index"))
        if index is None:
            raise unreadable(before_first_token=not self.has_spoken)
        self._with_arguments.add(index)
        deltas.append(ToolCallPiece(index=index, arguments=piece))

    def _end_item(self, event: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        item = _item_of(event)
        self.is_thinking = False
        match item.get("type"):
            case "function_call":
                if event.get("output_index") not in self._calls:
                    self._begin_item(event, deltas)
                if self._calls[event.get("output_index")] not in self._with_arguments:
                    self._add_arguments(event, word_of(item.get("arguments")), deltas)
            case "message" if not self._refused:
                self._keep_id(item, deltas)
            case "reasoning" if item.get("encrypted_content") and item.get("id"):
                kept = {name: item[name] for name in _KEPT_OF_REASONING if name in item}
                deltas.append(OpaquePiece(data={"summary": [], **kept}))
            case "reasoning":
                self._ids_may_return = False

    def _keep_id(self, item: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        if self._ids_may_return and item.get("id"):
            kept = {name: item[name] for name in ("type", "id", "phase") if item.get(name)}
            deltas.append(OpaquePiece(data=kept))

    def _end(self, event: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        self.is_done = True
        response = event.get("response")
        told: JsonObject = response if isinstance(response, dict) else {}
        usage = told.get("usage")
        if isinstance(usage, dict):
            deltas.append(_usage(usage))
        reason = "tool_calls" if self._calls else "end"
        if event.get("type") == "response.incomplete":
            details = told.get("incomplete_details")
            why = word_of(details.get("reason")) if isinstance(details, dict) else ""
            reason = _INCOMPLETE.get(why, why) or "incomplete"
        elif self._refused:
            reason = "refusal"
        deltas.append(Stopped(reason=reason))

    def _fail(self, event: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        response = event.get("response")
        told = response if isinstance(response, dict) else event
        raise failure_of_event(told, before_first_token=not self.has_spoken)


_Hearing: TypeAlias = Callable[[ResponsesParser, JsonObject, list[ModelOutputDelta]], None]
_HEARING: Final[Mapping[str, _Hearing]] = {
    "response.output_text.delta": ResponsesParser._hear_text,
    "response.refusal.delta": ResponsesParser._hear_refusal,
    "response.reasoning_summary_part.added": ResponsesParser._begin_summary_part,
    "response.reasoning_summary_text.delta": ResponsesParser._hear_reasoning,
    "response.reasoning_text.delta": ResponsesParser._hear_reasoning,
    "response.output_item.added": ResponsesParser._begin_item,
    "response.function_call_arguments.delta": ResponsesParser._hear_arguments,
    "response.output_item.done": ResponsesParser._end_item,
    "response.completed": ResponsesParser._end,
    "response.incomplete": ResponsesParser._end,
    "response.failed": ResponsesParser._fail,
    "error": ResponsesParser._fail,
}
"""All others are passed over: they repeat what was said, or nobody here knows them."""


def _item_of(event: JsonObject) -> JsonObject:
    item = event.get("item")
    return item if isinstance(item, dict) else {}


def _usage(usage: JsonObject) -> UsageReport:
    return UsageReport(
        input_tokens=count_of(usage, "input_tokens"),
        output_tokens=count_of(usage, "output_tokens"),
        cached_tokens=count_of(usage.get("input_tokens_details"), "cached_tokens"),
    )
