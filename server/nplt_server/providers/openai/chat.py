"""Renders requests to `POST /chat/completions` and parses the chunks of its answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from msgspec import structs

from nplt_protocol import JsonObject, JsonValue
from nplt_server.errors import ProviderRefused
from nplt_server.providers import (
    ModelOutputDelta,
    ModelRequest,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
)
from nplt_server.providers.client import AnswerParser, RenderedRequest, VendorApi
from nplt_server.providers.compiler import (
    AssistantStep,
    CompiledContext,
    UserStep,
    blocks_of,
    own_names,
)
from nplt_server.providers.failures import VendorError, failure_in_stream
from nplt_server.providers.openai.shared import (
    TOOLS_MAX,
    chat_effort_of,
    functions_of,
    is_openai,
    schema_format,
    seqs_of_user_step,
    temperature_of,
    usage_of,
    without_nulls,
)

# ------------------------------------------------------------------------------
# Chunks into deltas. Pure.
#
# Servers differ in what they omit: calls without an index, an index that is always 0, a name
# in every piece. Reasoning has two names. An answer is complete when a stop reason *and*
# `[DONE]` came.

REASONING_FIELD = "reasoning_field"
EXTRA_CONTENT = "extra_content"
"""Gemini's, of a call: the signature of the thought that led to it. It goes back as it came."""
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


class ChatParser(AnswerParser):
    """`is_thinking` stays false: a model that thinks says so here, or nothing."""

    def __init__(self, own_names: Mapping[str, str], *, marks_reasoning: bool = False) -> None:
        super().__init__(own_names)
        self._marks_reasoning = marks_reasoning
        self._calls = _Calls()
        self._reasoning_field = ""
        self._refused = False
        self._reason: str | None = None

    def feed(self, data: bytes) -> list[ModelOutputDelta]:
        if data.startswith(_DONE):
            self.is_done = True
            return self._ending()
        return super().feed(data)

    def _read(self, event: JsonObject) -> list[ModelOutputDelta]:
        if event.get("error"):
            raise failure_in_stream(VendorError.of(event), before_first_token=not self.has_spoken)
        deltas: list[ModelOutputDelta] = []
        choices = event.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            delta, reason = choices[0].get("delta"), choices[0].get("finish_reason")
            if isinstance(delta, dict):
                self._on_delta(delta, deltas)
            if deltas:
                self.has_spoken = True
            if isinstance(reason, str) and reason:
                self._reason = reason
        usage = event.get("usage")
        if isinstance(usage, dict):
            deltas.append(usage_of(usage, sent="prompt", said="completion"))
        return deltas

    def _read_whole(self, answer: Any) -> list[ModelOutputDelta]:
        choice = answer["choices"][0]
        deltas = self._read({**answer, "choices": [{**choice, "delta": choice["message"]}]})
        return [*deltas, *self.feed(_DONE)]

    def _on_delta(self, delta: JsonObject, deltas: list[ModelOutputDelta]) -> None:
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
                    deltas.append(piece := self._call_piece(call))
                    if isinstance(extra := call.get(EXTRA_CONTENT), dict):
                        deltas.append(OpaquePiece(data={EXTRA_CONTENT: extra, "call": piece.index}))

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


# ------------------------------------------------------------------------------
# The body of a request. Pure.
#
# One `tool` message per result, then what the user said. `stream_options` goes to every
# server: those that don't know it ignore it.


class ChatApi(VendorApi, frozen=True, kw_only=True):
    specification: ClassVar[str] = "openai-chat"
    tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    """OpenAI's reasoning models refuse the second, older servers overlook the first."""
    returns_reasoning: bool | None = None
    """DeepSeek wants to see its reasoning again, OpenAI refuses a field it doesn't know. None:
    by the model's name."""
    has_cache_key: bool = False

    def parser(self, rendered: RenderedRequest) -> ChatParser:
        returns = self._returns_reasoning(rendered.body["model"])
        return ChatParser(rendered.own_names, marks_reasoning=returns)

    def _returns_reasoning(self, model: str) -> bool:
        if self.returns_reasoning is not None:
            return self.returns_reasoning
        return model.startswith("deepseek")

    def instead(self, refusal: ProviderRefused, model: str) -> ChatApi | None:
        """DeepSeek refuses calls without the reasoning that led to them; others refuse the
        field. Which it is, a refusal tells."""
        if not refusal.wrong_reasoning:
            return None
        return structs.replace(self, returns_reasoning=not self._returns_reasoning(model))

    def render(self, request: ModelRequest, compiled: CompiledContext) -> RenderedRequest:
        messages: list[JsonValue] = []
        seqs: list[tuple[int, ...]] = []
        if compiled.system:
            messages.append({"role": "system", "content": compiled.system})
            seqs.append(())
        for step in compiled.steps:
            if isinstance(step, UserStep):
                messages += _user_messages(step)
                seqs += seqs_of_user_step(step)
            else:
                messages.append(self._answer(step, request.invocation.model))
                seqs.append(step.seqs)
        body: JsonObject = {
            "model": request.invocation.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        functions = functions_of(request.tools)
        if functions:
            body["tools"] = [{"type": "function", "function": each} for each in functions]
        options: dict[str, JsonValue] = {
            self.tokens_field: request.output_tokens,
            "temperature": temperature_of(request),
            "reasoning_effort": chat_effort_of(request),
            **_answer_format(request),
            "prompt_cache_key": request.cache_key if self.has_cache_key else None,
        }
        body |= without_nulls(options)
        return RenderedRequest(
            body=body, seqs=tuple(seqs), own_names=own_names(request.tools[:TOOLS_MAX])
        )

    def _answer(self, step: AssistantStep, model: str) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": step.text or None}
        opaque = [block.data for block in blocks_of(step) if isinstance(block, OpaquePiece)]
        if step.calls:
            extras = {
                place: data[EXTRA_CONTENT]
                for data in opaque
                if EXTRA_CONTENT in data and isinstance(place := data.get("call"), int)
            }
            if 0 not in extras and _SIGNS_CALLS.match(model):
                extras[0] = _NOT_SIGNED
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.tool_name, "arguments": call.arguments_json},
                    **({EXTRA_CONTENT: extras[place]} if place in extras else {}),
                }
                for place, call in enumerate(step.calls)
            ]
        # With a call it must be there, though another model made the call without one.
        if self._returns_reasoning(model) and (step.reasoning or step.calls):
            is_short = any(data.get(REASONING_FIELD) == "reasoning" for data in opaque)
            message["reasoning" if is_short else "reasoning_content"] = step.reasoning
        return message


def _answer_format(request: ModelRequest) -> JsonObject:
    """Other servers than OpenAI's hold a model to a schema word by word, so that it can't call
    a tool: they are sent the schema where no tool need be called any more."""
    model, schema = request.invocation.model, request.schema
    if schema is None:
        return {}
    others = not is_openai(model)
    if others and request.tools and not request.answer_only:
        return {}
    told = schema_format(request)
    if told is None and others:
        told = {"name": "answer", "schema": schema}
    options: JsonObject = {"tool_choice": "none"} if others and request.tools else {}
    if model.startswith("deepseek"):  # it knows no schemas
        options["response_format"] = {"type": "json_object"}
    elif told is not None:
        options["response_format"] = {"type": "json_schema", "json_schema": told}
    return options


_SIGNS_CALLS = re.compile(r"(?:models/)?gemini")
_NOT_SIGNED: JsonObject = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""Of a call that another model made; documented for that."""


def _user_messages(step: UserStep) -> list[JsonObject]:
    messages: list[JsonObject] = [
        {"role": "tool", "tool_call_id": result.call_id, "content": result.text}
        for result in step.results
    ]
    if step.texts:
        # One message: templates of some models refuse two of the same role in a row.
        messages.append({"role": "user", "content": _content(step)})
    return messages


def _content(step: UserStep) -> JsonValue:
    """A plain text wherever that will do: some servers know nothing else."""
    text = "\n\n".join(step.texts)
    if not step.images:
        return text
    images: list[JsonValue] = [
        {"type": "image_url", "image_url": {"url": image.url}} for image in step.images
    ]
    return [*images, {"type": "text", "text": text}]
