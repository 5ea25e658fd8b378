"""Renders requests to `POST /responses` and parses the events of its answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, assert_never

from nplt_protocol import JsonObject, JsonValue
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
    CompiledCall,
    CompiledContext,
    UserStep,
    VendorRules,
    blocks_of,
    own_names,
)
from nplt_server.providers.failures import (
    VendorError,
    failure_in_stream,
    text_of,
    unreadable,
)
from nplt_server.providers.openai.shared import (
    TOOLS_MAX,
    effort_of,
    functions_of,
    may_reason,
    schema_format,
    seqs_of_user_step,
    temperature_of,
    usage_of,
    without_nulls,
)

# ------------------------------------------------------------------------------
# An answer as items of `POST /responses`
#
# The API's rules: reasoning is followed by what it led to; an item with an id needs the
# reasoning that led to it; no id occurs twice. What can't be sent by these rules is sent
# without its id; reasoning is then not sent at all.

_ID = re.compile(r"(?:rs|fc|msg)[A-Za-z0-9_-]{1,61}")
_PREFIXES = {"reasoning": "rs", "function_call": "fc", "message": "msg"}


class AnswerItems:
    """Of one request, answer by answer."""

    def __init__(self) -> None:
        self._given_ids: set[str] = set()

    def of(self, step: AssistantStep) -> list[JsonObject]:
        items: list[JsonObject] = []
        ids_may_return = True
        for block in blocks_of(step):
            match block:
                case TextPiece():
                    if block.text.strip():
                        items.append(_message(block.text))
                case CompiledCall():
                    items.append(_call(block))
                case ReasoningPiece():
                    pass  # for people; the model's own form of it is opaque
                case OpaquePiece():
                    if ids_may_return:
                        ids_may_return = self._give_back(block.data, items)
                case _:
                    assert_never(block)
        while items and items[-1]["type"] == "reasoning":
            items.pop()
        return items

    def _give_back(self, data: Mapping[str, JsonValue], items: list[JsonObject]) -> bool:
        """Whether ids of later items still may be given."""
        kind, item_id = data.get("type"), data.get("id")
        if not isinstance(kind, str) or not isinstance(item_id, str):
            return True
        fits = (
            _ID.fullmatch(item_id) is not None
            and item_id.startswith(_PREFIXES.get(kind, " "))
            and item_id not in self._given_ids
        )
        if kind == "reasoning":
            fits = fits and isinstance(data.get("encrypted_content"), str)
            if fits:
                summary = data.get("summary")
                items.append({**data, "summary": summary if isinstance(summary, list) else []})
                self._given_ids.add(item_id)
            return fits
        last = next((item for item in reversed(items) if item["type"] == kind), None)
        if fits and last is not None and "id" not in last:
            last["id"] = item_id
            self._given_ids.add(item_id)
            if kind == "message" and isinstance(data.get("phase"), str):
                last["phase"] = data["phase"]
        return True


def _message(text: str) -> JsonObject:
    content: JsonObject = {"type": "output_text", "text": text}
    return {"type": "message", "role": "assistant", "content": [content]}


def _call(call: CompiledCall) -> JsonObject:
    return {
        "type": "function_call",
        "call_id": call.call_id,
        "name": call.tool_name,
        "arguments": call.arguments_json,
    }


# ------------------------------------------------------------------------------
# Events into deltas. Pure.
#
# Nothing is stored at OpenAI, so what a later request must repeat comes as opaque pieces: a
# reasoning item with its encrypted content; the ids of calls and messages. An answer is
# complete only with `response.completed` or `response.incomplete`.

_INCOMPLETE = {"max_output_tokens": "length"}
_WHOLE_PARTS = {
    "output_text": "response.output_text.delta",
    "refusal": "response.refusal.delta",
    "summary_text": "response.reasoning_summary_text.delta",
    "reasoning_text": "response.reasoning_text.delta",
}
"""Parts of an item, and the events they would have come in."""
_KEPT_OF_REASONING = ("type", "id", "summary", "encrypted_content")


class ResponsesParser(AnswerParser):
    def __init__(self, own_names: Mapping[str, str]) -> None:
        super().__init__(own_names)
        self._calls: dict[JsonValue, int] = {}
        self._with_arguments: set[int] = set()
        self._ids_may_return = True
        self._refused = False
        self._summary_parts = 0

    def feed(self, data: bytes) -> list[ModelOutputDelta]:
        if data.startswith(b"[DONE]"):  # of servers that know it from the other API
            return []
        return super().feed(data)

    def _read(self, event: JsonObject) -> list[ModelOutputDelta]:
        deltas: list[ModelOutputDelta] = []
        self._take(event, deltas)
        if deltas and not self.is_done:
            self.has_spoken = True
        return deltas

    def _read_whole(self, answer: Any) -> list[ModelOutputDelta]:
        deltas: list[ModelOutputDelta] = []
        for index, item in enumerate(answer["output"]):
            for part in (*(item.get("summary") or ()), *(item.get("content") or ())):
                kind = _WHOLE_PARTS.get(part["type"], "")
                said = part.get("text") or part.get("refusal")
                deltas += self._read({"type": kind, "delta": said})
            event: JsonObject = {"item": item, "output_index": index}
            deltas += self._read({"type": "response.output_item.done", **event})
        status = "incomplete" if answer.get("status") == "incomplete" else "completed"
        return [*deltas, *self._read({"type": f"response.{status}", "response": answer})]

    def _take(self, event: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        """Other types are passed over: they repeat what was said, or nobody here knows them."""
        match event.get("type"):
            case "response.output_text.delta":
                deltas.append(TextPiece(text=text_of(event.get("delta"))))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                deltas.append(ReasoningPiece(text=text_of(event.get("delta"))))
            case "response.function_call_arguments.delta":
                self._add_arguments(event, text_of(event.get("delta")), deltas)
            case "response.refusal.delta":
                self._refused = True
                deltas.append(TextPiece(text=text_of(event.get("delta"))))
            case "response.reasoning_summary_part.added":
                if self._summary_parts:  # paragraphs of one summary, or of several
                    deltas.append(ReasoningPiece(text="\n\n"))
                self._summary_parts += 1
            case "response.output_item.added":
                self._begin_item(event, deltas)
            case "response.output_item.done":
                self._end_item(event, deltas)
            case "response.completed" | "response.incomplete":
                self._end(event, deltas)
            case kind if kind in ("response.failed", "error") or event.get("error"):
                response = event.get("response")
                told = response if isinstance(response, dict) else event
                failed = VendorError.of(told)
                raise failure_in_stream(failed, before_first_token=not self.has_spoken)
            case _:
                pass

    def _begin_item(self, event: JsonObject, deltas: list[ModelOutputDelta]) -> None:
        item = _item_of(event)
        self.is_thinking = item.get("type") == "reasoning"
        if item.get("type") != "function_call":
            return
        index = self._calls[event.get("output_index")] = len(self._calls)
        name = text_of(item.get("name"))
        deltas.append(ToolCallPiece(index=index, tool_name=self._own_names.get(name, name)))
        self._keep_id(item, deltas)

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
                    self._add_arguments(event, text_of(item.get("arguments")), deltas)
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
            deltas.append(usage_of(usage, sent="input", said="output"))
        reason = "tool_calls" if self._calls else "end"
        if event.get("type") == "response.incomplete":
            details = told.get("incomplete_details")
            why = text_of(details.get("reason")) if isinstance(details, dict) else ""
            reason = _INCOMPLETE.get(why, why) or "incomplete"
        elif self._refused:
            reason = "refusal"
        deltas.append(Stopped(reason=reason))


def _item_of(event: JsonObject) -> JsonObject:
    item = event.get("item")
    return item if isinstance(item, dict) else {}


# ------------------------------------------------------------------------------
# The body of a request. Pure.
#
# `store` is off, so reasoning is asked for in its encrypted form where the model has any.

_OUTPUT_TOKENS_MIN = 16


class ResponsesApi(VendorApi, frozen=True, kw_only=True):
    specification: ClassVar[str] = "openai-responses"
    rules: ClassVar[VendorRules] = VendorRules(call_id_characters_max=64)
    summarizes_reasoning: bool = False
    """OpenAI refuses it to organisations that have not shown who they are."""
    has_cache_key: bool = False

    def parser(self, rendered: RenderedRequest) -> ResponsesParser:
        return ResponsesParser(rendered.own_names)

    def render(self, request: ModelRequest, compiled: CompiledContext) -> RenderedRequest:
        items: list[JsonValue] = []
        seqs: list[tuple[int, ...]] = []
        answers = AnswerItems()
        for step in compiled.steps:
            if isinstance(step, UserStep):
                items += _user_items(step)
                seqs += seqs_of_user_step(step)
            else:
                said = answers.of(step)
                items += said
                seqs += [step.seqs] * len(said)
        body: JsonObject = {
            "model": request.invocation.model,
            "input": items,
            "stream": True,
            "store": False,
        }
        if compiled.system:
            body["instructions"] = compiled.system
        functions = functions_of(request.tools)
        if functions:
            # Strict is what it would be if nothing were said, and most schemas don't fit it.
            body["tools"] = [{"type": "function", **each, "strict": False} for each in functions]
        return RenderedRequest(
            body=body | self._options(request),
            seqs=tuple(seqs),
            own_names=own_names(request.tools[:TOOLS_MAX]),
        )

    def _options(self, request: ModelRequest) -> JsonObject:
        tokens = request.output_tokens
        options: JsonObject = {
            "max_output_tokens": None if tokens is None else max(tokens, _OUTPUT_TOKENS_MIN),
            "temperature": temperature_of(request),
            "prompt_cache_key": request.cache_key if self.has_cache_key else None,
        }
        if may_reason(request.invocation.model):
            summary = "auto" if self.summarizes_reasoning else None
            reasoning = without_nulls({"effort": effort_of(request), "summary": summary})
            options["include"] = ["reasoning.encrypted_content"]
            options["reasoning"] = reasoning or None
        if (told := schema_format(request)) is not None:
            options["text"] = {"format": {"type": "json_schema", **told}}
        return without_nulls(options)


def _user_items(step: UserStep) -> list[JsonObject]:
    items: list[JsonObject] = [
        {"type": "function_call_output", "call_id": result.call_id, "output": result.text}
        for result in step.results
    ]
    if step.texts:
        text: JsonObject = {"type": "input_text", "text": "\n\n".join(step.texts)}
        images: list[JsonValue] = [
            {"type": "input_image", "image_url": image.url} for image in step.images
        ]
        items.append({"type": "message", "role": "user", "content": [*images, text]})
    return items
