"""Chunks of `POST /chat/completions` into deltas. Pure.

Servers that speak this API differ in what they leave out: calls without an index, an
index that is always 0, a name in every piece. Reasoning has two names there. An answer is
complete when a reason to stop was told *and* `[DONE]` came: one of them alone is a cut.
"""

from __future__ import annotations

from collections.abc import Mapping

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
from nplt_server.providers.openai.fields import count_of
from nplt_server.providers.openai.stream_errors import failure_of_event
from nplt_server.providers.sse import json_object_of

REASONING_FIELD = "reasoning_field"
_DONE = b"[DONE]"
_STOP_REASONS = {
    "stop": "end",
    "function_call": "tool_calls",
    # Of servers that speak this API with words of their own.
    "eos": "end",
    "eos_token": "end",
    "stop_sequence": "end",
    "end_turn": "end",
    "tool_use": "tool_calls",
    "model_length": "length",
}


class ChatParser:
    def __init__(self, own_names: Mapping[str, str], *, marks_reasoning: bool = False) -> None:
        self._own_names = own_names
        self._marks_reasoning = marks_reasoning
        self._calls = _Calls()
        self._reasoning_field = ""
        self._refused = False
        self._reason: str | None = None
        self.has_spoken = False
        self.is_thinking = False
        """There is no word for it here: whoever thinks says so, or nothing."""
        self.is_done = False

    def feed(self, data: bytes) -> list[ModelOutputDelta]:
        if data.startswith(_DONE):
            self.is_done = True
            return self._ending()
        chunk = json_object_of(data)
        if chunk is None:
            raise unreadable(before_first_token=not self.has_spoken)
        if chunk.get("error"):
            raise failure_of_event(chunk, before_first_token=not self.has_spoken)
        deltas: list[ModelOutputDelta] = []
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            self._hear(choices[0], deltas)
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            deltas.append(_usage(usage))
        return deltas

    def _hear(self, choice: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self._hear_pieces(delta, deltas)
        if deltas:
            self.has_spoken = True
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._reason = reason

    def _hear_pieces(self, delta: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        for field in ("reasoning_content", "reasoning"):
            thought = delta.get(field)
            if thought and isinstance(thought, str):
                self._reasoning_field = field
                deltas.append(ReasoningPiece(text=thought))
                break  # some servers send both, the same twice
        text = delta.get("content")
        if text and isinstance(text, str):
            deltas.append(TextPiece(text=text))
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            self._refused = True
            deltas.append(TextPiece(text=refusal))
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            for call in calls:
                if isinstance(call, dict):
                    deltas.append(self._call_piece(call))

    def _call_piece(self, call: JsonObject) -> ToolCallPiece:
        function = call.get("function")
        told: JsonObject = function if isinstance(function, dict) else {}
        index, is_new = self._calls.place(call, told)
        name, arguments = told.get("name"), told.get("arguments")
        return ToolCallPiece(
            index=index,
            tool_name=self._own_names.get(name, name) if is_new and isinstance(name, str) else "",
            arguments=arguments if isinstance(arguments, str) else "",
        )

    def _ending(self) -> list[ModelOutputDelta]:
        if self._reason is None:
            return []
        reason = _STOP_REASONS.get(self._reason, self._reason)
        if self._refused:
            reason = "refusal"
        elif reason == "end" and self._calls.count:
            reason = "tool_calls"
        ending: list[ModelOutputDelta] = [Stopped(reason=reason)]
        if self._marks_reasoning and self._reasoning_field:
            ending.insert(0, OpaquePiece(data={REASONING_FIELD: self._reasoning_field}))
        return ending


class _Calls:
    """Which call a piece belongs to. Numbers are ours, in the order the calls begin."""

    def __init__(self) -> None:
        self.count = 0
        self._numbers: dict[int | None, int] = {}
        self._ids: dict[int, JsonValue] = {}

    def place(self, call: JsonObject, told: JsonObject) -> tuple[int, bool]:
        """Its number, and whether it begins with this piece."""
        index, call_id, name = call.get("index"), call.get("id"), told.get("name")
        index = index if isinstance(index, int) else None
        number = self._numbers.get(index)
        if number is not None:
            # Without an index whatever has a name is a call of its own.
            is_another = name and (index is None or (call_id and call_id != self._ids[number]))
            if not is_another:
                return number, False
        number = self.count
        self.count += 1
        self._numbers[index] = number
        self._ids[number] = call_id
        return number, True


def _usage(usage: JsonObject) -> UsageReport:
    return UsageReport(
        input_tokens=count_of(usage, "prompt_tokens"),
        output_tokens=count_of(usage, "completion_tokens"),
        cached_tokens=count_of(usage.get("prompt_tokens_details"), "cached_tokens"),
    )
