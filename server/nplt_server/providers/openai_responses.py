"""OpenAI's responses API: the parser of answers, and the rendering of requests. Both are pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, assert_never

from nplt_protocol import JsonObject, JsonValue
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
)
from nplt_server.providers.compiler import (
    AssistantStep,
    CompiledCall,
    CompiledContext,
    CompiledStep,
    UserStep,
    VendorRules,
)
from nplt_server.providers.failures import unreadable
from nplt_server.providers.openai import (
    RESPONSES_SINCE,
    effort_of,
    is_bound_since,
    may_reason,
    rendered_tools,
    sampling_of,
    schema_format,
    seqs_of_user_step,
    tool_options,
    usage_of,
    without_nulls,
)
from nplt_server.providers.sse import object_of, text_of
from nplt_server.providers.vendor_api import (
    AnswerParser,
    RenderedRequest,
    RenderedStep,
    Rendering,
    VendorApi,
    as_json,
    without_fields,
)

_DONE = b"[DONE]"

# ------------------------------------------------------------------------------
# `POST /responses`: its events
#
# Nothing is stored at OpenAI, so what a later request must repeat comes as opaque pieces: a
# reasoning item with its encrypted content; the ids of calls and messages. An answer is
# complete only with `response.completed` or `response.incomplete`.

_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "filter"}
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
        if data.startswith(_DONE):  # of servers that know it from the other API
            return []
        return super().feed(data)

    def _read(self, event: JsonObject) -> Iterator[ModelOutputDelta]:
        """Other types are ignored: they repeat what came before, or are not known here."""
        match event.get("type"):
            case "response.output_text.delta":
                yield TextPiece(text=text_of(event.get("delta")))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                yield ReasoningPiece(text=text_of(event.get("delta")))
            case "response.function_call_arguments.delta":
                yield self._arguments(event, text_of(event.get("delta")))
            case "response.refusal.delta":
                self._refused = True
                yield TextPiece(text=text_of(event.get("delta")))
            case "response.reasoning_summary_part.added":
                if self._summary_parts:  # paragraphs of one summary, or of several
                    yield ReasoningPiece(text="\n\n")
                self._summary_parts += 1
            case "response.output_item.added":
                yield from self._begin_item(event, object_of(event.get("item")))
            case "response.output_item.done":
                yield from self._end_item(event, object_of(event.get("item")))
            case "response.completed" | "response.incomplete" as kind:
                yield from self._end(object_of(event.get("response")), kind)
            case kind if kind in ("response.failed", "error") or event.get("error"):
                raise self._failure(object_of(event.get("response")) or event)
            case _:
                pass

    def _read_whole(self, answer: Any) -> Iterator[ModelOutputDelta]:
        for index, item in enumerate(answer["output"]):
            for part in (*(item.get("summary") or ()), *(item.get("content") or ())):
                kind = _WHOLE_PARTS.get(part["type"], "")
                yield from self._read(
                    {"type": kind, "delta": part.get("text") or part.get("refusal")}
                )
            yield from self._end_item({"output_index": index}, object_of(item))
        is_whole = answer.get("status") != "incomplete"
        yield from self._end(answer, f"response.{'completed' if is_whole else 'incomplete'}")

    def _begin_item(self, event: JsonObject, item: JsonObject) -> Iterator[ModelOutputDelta]:
        self.is_thinking = item.get("type") == "reasoning"
        if item.get("type") == "function_call":
            index = self._calls[event.get("output_index")] = len(self._calls)
            name = text_of(item.get("name"))
            yield ToolCallPiece(index=index, tool_name=self._own_names.get(name, name))
            yield from self._kept_id(item)

    def _arguments(self, event: JsonObject, piece: str) -> ToolCallPiece:
        index = self._calls.get(event.get("output_index"))
        if index is None:
            raise unreadable(before_first_token=not self.has_spoken)
        self._with_arguments.add(index)
        return ToolCallPiece(index=index, arguments=piece)

    def _end_item(self, event: JsonObject, item: JsonObject) -> Iterator[ModelOutputDelta]:
        self.is_thinking = False
        match item.get("type"):
            case "function_call":
                if event.get("output_index") not in self._calls:
                    yield from self._begin_item(event, item)
                if self._calls[event.get("output_index")] not in self._with_arguments:
                    yield self._arguments(event, text_of(item.get("arguments")))
            case "message" if not self._refused:
                yield from self._kept_id(item)
            case "reasoning" if item.get("encrypted_content") and item.get("id"):
                kept = {name: item[name] for name in _KEPT_OF_REASONING if name in item}
                yield OpaquePiece(data={"summary": [], **kept})
            case "reasoning":
                self._ids_may_return = False

    def _kept_id(self, item: JsonObject) -> Iterator[ModelOutputDelta]:
        if self._ids_may_return and item.get("id"):
            kept = {name: item[name] for name in ("type", "id", "phase") if item.get(name)}
            yield OpaquePiece(data=kept)

    def _end(self, response: JsonObject, kind: str) -> Iterator[ModelOutputDelta]:
        self.is_done = True
        if isinstance(usage := response.get("usage"), dict):
            yield usage_of(usage, sent="input", output="output")
        reason = "tool_calls" if self._calls else "end"
        if kind == "response.incomplete":
            why = text_of(object_of(response.get("incomplete_details")).get("reason"))
            reason = _INCOMPLETE.get(why, why) or "incomplete"
        elif self._refused:
            reason = "refusal"
        yield Stopped(reason=reason)


# ------------------------------------------------------------------------------
# `POST /responses`: the body of a request
#
# `store` is off, so reasoning is asked for in its encrypted form where the model has any. The
# API's rules for an answer: reasoning is followed by what it led to; an item with an id needs
# the reasoning that led to it; no id occurs twice. What can't be sent by these rules is sent
# without its id; reasoning is then not sent at all.

_OUTPUT_TOKENS_MIN = 16
_ID = re.compile(r"(?:rs|fc|msg)[A-Za-z0-9_-]{1,61}")
_PREFIXES = {"reasoning": "rs", "function_call": "fc", "message": "msg"}


class ResponsesApi(VendorApi, frozen=True, kw_only=True):
    specification: ClassVar[str] = "openai-responses"
    rules: ClassVar[VendorRules] = VendorRules(call_id_characters_max=64)
    summarizes_reasoning: bool = False
    """OpenAI refuses it to organisations that have not shown who they are."""
    has_cache_key: bool = False

    def is_needed_by(self, model: str) -> bool:
        """Chat completions does not give newer models tools and reasoning together."""
        return is_bound_since(RESPONSES_SINCE, model)

    def parser(self, rendered: RenderedRequest) -> ResponsesParser:
        return ResponsesParser(rendered.own_names)

    def render(
        self, request: LlmRequest, compiled: CompiledContext, rendering: Rendering | None = None
    ) -> RenderedRequest:
        rendering = rendering or Rendering()
        steps = rendering.extend(
            compiled.steps,
            lambda step: self._step(step, rendering.item_ids),
            made_for=(self, request.invocation.model),
        )
        model, tokens = request.invocation.model, request.output_tokens
        body: JsonObject = {"model": model, "stream": True, "store": False}
        if compiled.system:
            body["instructions"] = compiled.system
        functions, names = rendered_tools(rendering, request.tools)
        if functions:
            # Strict is what it would be if nothing were said, and most schemas don't fit it.
            body["tools"] = [{"type": "function", **each, "strict": False} for each in functions]
        options: JsonObject = {
            "max_output_tokens": None if tokens is None else max(tokens, _OUTPUT_TOKENS_MIN),
            **sampling_of(request),
            **tool_options(request, _named_function),
            "prompt_cache_key": request.cache_key if self.has_cache_key else None,
        }
        if may_reason(model):
            summary = "auto" if self.summarizes_reasoning else None
            reasoning = without_nulls({"effort": effort_of(request), "summary": summary})
            options["include"] = ["reasoning.encrypted_content"]
            options["reasoning"] = reasoning or None
        if (shown := schema_format(request)) is not None:
            options["text"] = {"format": {"type": "json_schema", **shown}}
        fields = without_fields(body | without_nulls(options), self.form.without)
        return RenderedRequest(
            fields=fields,
            list_name="input",
            messages=rendering.messages(steps),
            steps=steps,
            own_names=names,
        )

    def _step(self, step: CompiledStep, given_ids: set[str]) -> RenderedStep:
        if isinstance(step, UserStep):
            items = _user_items(step, takes_images=not self.form.without_images)
            seqs = tuple(seqs_of_user_step(step))
        else:
            items = _answer_items(step, given_ids)
            seqs = (step.seqs,) * len(items)
        return RenderedStep(messages=tuple(map(as_json, items)), seqs=seqs)


def _named_function(name: str) -> JsonObject:
    return {"type": "function", "name": name}


def _user_items(step: UserStep, *, takes_images: bool) -> list[JsonObject]:
    items: list[JsonObject] = [
        {"type": "function_call_output", "call_id": result.call_id, "output": result.text}
        for result in step.results
    ]
    if step.texts:
        text: JsonObject = {"type": "input_text", "text": "\n\n".join(step.texts)}
        files: list[JsonValue] = [
            {"type": "input_file", "filename": one.name, "file_data": one.url}
            for one in step.documents
        ]
        images: list[JsonValue] = [
            {"type": "input_image", "image_url": image.url} for image in step.images if takes_images
        ]
        items.append({"type": "message", "role": "user", "content": [*files, *images, text]})
    return items


def _answer_items(step: AssistantStep, given_ids: set[str]) -> list[JsonObject]:
    """`given_ids`: those that stand in the request already."""
    items: list[JsonObject] = []
    ids_may_return = True
    for block in step.blocks:
        match block:
            case TextPiece(text=text):
                if text.strip():
                    content: JsonObject = {"type": "output_text", "text": text}
                    items.append({"type": "message", "role": "assistant", "content": [content]})
            case CompiledCall():
                items.append(
                    {
                        "type": "function_call",
                        "call_id": block.call_id,
                        "name": block.tool_name,
                        "arguments": block.arguments_json,
                    }
                )
            case ReasoningPiece():
                pass  # for people; the model's own form of it is opaque
            case OpaquePiece():
                if ids_may_return:
                    ids_may_return = _give_back(block.data, items, given_ids)
            case _:
                assert_never(block)
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    return items


def _give_back(data: Mapping[str, JsonValue], items: list[JsonObject], given_ids: set[str]) -> bool:
    """Whether ids of later items still may be given."""
    kind, item_id = data.get("type"), data.get("id")
    if not isinstance(kind, str) or not isinstance(item_id, str):
        return True
    fits = (
        _ID.fullmatch(item_id) is not None
        and item_id.startswith(_PREFIXES.get(kind, " "))
        and item_id not in given_ids
    )
    if kind == "reasoning":
        fits = fits and isinstance(data.get("encrypted_content"), str)
        if fits:
            summary = data.get("summary")
            items.append({**data, "summary": summary if isinstance(summary, list) else []})
            given_ids.add(item_id)
        return fits
    last = next((item for item in reversed(items) if item["type"] == kind), None)
    if fits and last is not None and "id" not in last:
        last["id"] = item_id
        given_ids.add(item_id)
        if kind == "message" and isinstance(data.get("phase"), str):
            last["phase"] = data["phase"]
    return True
