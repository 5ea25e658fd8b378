"""OpenAI's two APIs, chat completions and responses, and servers that speak one of them.

The client; the options a model takes, read from its name; and for each API how a request is
rendered and an answer parsed, both pure. Options a model is known to refuse are left out;
unknown models get everything.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, assert_never

from msgspec import structs

from nplt_protocol import JsonObject, JsonValue
from nplt_protocol.messages import EFFORTS
from nplt_server.digest.text import clean_text
from nplt_server.errors import ProviderRefused, RequestForm
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.providers.client import RawResponse, VendorClient
from nplt_server.providers.compiler import (
    AssistantStep,
    CompiledCall,
    CompiledContext,
    UserStep,
    VendorRules,
    fitting_tool_name,
    own_names,
)
from nplt_server.providers.failures import object_of, text_of, unreadable
from nplt_server.providers.schemas import (
    NOT_AT_THE_TOP,
    for_openai,
    in_words,
    plain_object,
    well_formed,
)
from nplt_server.providers.vendor_api import AnswerParser, RenderedRequest, VendorApi
from nplt_server.tools import ToolDescription

if TYPE_CHECKING:
    import openai

    from nplt_server.providers.http_client import ProviderHttpClient


class OpenAIClient(VendorClient):
    vendor = "OpenAI"
    vendor_url = "https://api.openai.com/v1"

    def _open(self, http: ProviderHttpClient) -> openai.AsyncOpenAI:
        import openai

        self._sdk_error = openai.OpenAIError
        sdk = openai.AsyncOpenAI(
            api_key=self._api_key,
            base_url=self.address,
            max_retries=0,
            timeout=http.timeout,
            http_client=http,
        )
        sdk.organization = sdk.project = None
        sdk._custom_headers = self._headers
        return sdk

    async def _pages(self, sdk: openai.AsyncOpenAI) -> AsyncIterator[RawResponse]:
        yield await sdk.models.with_raw_response.list()

    def _address_hint(self, path: str) -> str:
        return "" if "/v1" in path else "it mostly ends in /v1"

    def _request(
        self, sdk: openai.AsyncOpenAI, rendered: RenderedRequest
    ) -> AbstractAsyncContextManager[RawResponse]:
        body = rendered.body
        if "input" in body:
            return sdk.responses.with_streaming_response.create(stream=True, extra_body=body)
        return sdk.chat.completions.with_streaming_response.create(
            model="", messages=(), stream=True, extra_body=body
        )


# ------------------------------------------------------------------------------
# What both APIs share: options, tools, schemas, usage

_TOOLS_MAX = 128
_DESCRIPTION_CHARACTERS_MAX = 1024
# `o3-mini`, `gpt-5.6`, `codex-mini`; also behind a vendor's name, as routers write it.
_REASONS = re.compile(r"(?:.*/)?(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*-chat)|codex)")
_DOES_NOT_REASON = re.compile(r"(?:.*/)?(?:gpt-[34]|chatgpt|gpt-5.*-chat)")
# By family; of an unknown one nothing is known, so it is sent what was asked for. GPT-6 Astra
# and GPT-6.1 Sol always reason.
_FAMILY = re.compile(r"(?:.*/)?(?:(o)\d|gpt-(\d+)(?:\.(\d+))?)")
_ALWAYS_REASONS = re.compile(r"(?:.*/)?gpt-(?:6-astra|6\.1-sol)")
_EFFORTS_SINCE = (
    ((5, 6), ("none", "low", "medium", "high", "xhigh", "max")),
    ((5, 2), ("none", "low", "medium", "high", "xhigh")),
    ((5, 1), ("none", "low", "medium", "high")),
    ((5, 0), ("minimal", "low", "medium", "high")),
)
_NO_EFFORT_WITH_TOOLS_SINCE = (5, 4)
_RESPONSES_SINCE = (5, 6)


def _version_of(model: str) -> tuple[int, int]:
    """(0, 0): not known."""
    found = _FAMILY.match(model)
    return (int(found[2]), int(found[3] or 0)) if found and found[2] else (0, 0)


def _is_bound_since(version: tuple[int, int], model: str) -> bool:
    """Whether a rule of OpenAI's for models that reason holds for it. A router, which writes a
    vendor before the name, has ways of its own."""
    return "/" not in model and _version_of(model) >= version and _may_reason(model)


def _may_reason(model: str) -> bool:
    return _DOES_NOT_REASON.match(model) is None


def _efforts_of(model: str) -> tuple[str, ...]:
    """The efforts that the model accepts."""
    found, version = _FAMILY.match(model), _version_of(model)
    if found and found[1]:
        return ("low", "medium", "high")
    known = next((shown for since, shown in _EFFORTS_SINCE if version >= since), EFFORTS)
    return known[1:] if _ALWAYS_REASONS.match(model) else known


def _effort_of(request: LlmRequest) -> str | None:
    """The nearest the model takes: the highest that is not above what was asked for, but no
    less than some, unless none was asked for."""
    model, wanted = request.invocation.model, request.options.get("effort")
    if not isinstance(wanted, str) or wanted not in EFFORTS or not _may_reason(model):
        return None
    known = _efforts_of(model)
    if wanted in known:
        return wanted
    below = EFFORTS[1 : EFFORTS.index(wanted)]
    some = [each for each in known if each != "none"]
    return next((each for each in reversed(some) if each in below), some[0])


def _chat_effort_of(request: LlmRequest) -> str | None:
    """Through chat completions newer models call tools only if they don't reason."""
    model = request.invocation.model
    if not request.tools or not _is_bound_since(_NO_EFFORT_WITH_TOOLS_SINCE, model):
        return _effort_of(request)
    return "none" if "none" in _efforts_of(model) else None


def _temperature_of(request: LlmRequest) -> float | None:
    return None if _REASONS.match(request.invocation.model) else request.temperature(2.0)


def _functions_of(tools: tuple[ToolDescription, ...]) -> list[dict[str, JsonValue]]:
    return [
        {
            "name": fitting_tool_name(tool.name),
            "description": _description(tool),
            "parameters": plain_object(well_formed(tool.parameters)),
        }
        for tool in tools[:_TOOLS_MAX]
    ]


def _description(tool: ToolDescription) -> str:
    """Adds the schema to the text where it can't be sent as it is and there is room for all of it:
    half of one would mislead."""
    description = clean_text(tool.description)[:_DESCRIPTION_CHARACTERS_MAX]
    if NOT_AT_THE_TOP.isdisjoint(tool.parameters):
        return description
    shown = f"{description}\n\n{in_words(tool.parameters)}"
    return shown if len(shown) <= _DESCRIPTION_CHARACTERS_MAX else description


def _schema_format(request: LlmRequest) -> JsonObject | None:
    """The schema of the answer, as both APIs take it."""
    if request.schema is None or (shown := for_openai(request.schema)) is None:
        return None
    schema, is_strict = shown
    return {"name": "answer", "schema": schema, "strict": is_strict}


def _seqs_of_user_step(step: UserStep) -> list[tuple[int, ...]]:
    """The seqs of each message that a user step becomes: its results, then its texts as one."""
    seqs: list[tuple[int, ...]] = [(result.seq,) if result.seq else () for result in step.results]
    if step.texts:
        seqs.append(tuple(dict.fromkeys(filter(None, step.text_seqs))))
    return seqs


def _rendered(
    request: LlmRequest, body: JsonObject, options: JsonObject, seqs: list[tuple[int, ...]]
) -> RenderedRequest:
    return RenderedRequest(
        body=body | _without_nulls(options),
        seqs=tuple(seqs),
        own_names=own_names(request.tools[:_TOOLS_MAX]),
    )


def _without_nulls(options: JsonObject) -> JsonObject:
    return {name: value for name, value in options.items() if value is not None}


def _usage_of(usage: JsonObject, *, sent: str, output: str) -> UsageReport:
    """The APIs have different names for what was sent and what was said."""

    def count(figures: JsonObject, name: str) -> int:
        number = figures.get(name)
        return max(number, 0) if isinstance(number, int) else 0

    details = object_of(usage.get(f"{sent}_tokens_details"))
    return UsageReport(
        input_tokens=count(usage, f"{sent}_tokens"),
        output_tokens=count(usage, f"{output}_tokens"),
        cached_tokens=count(details, "cached_tokens"),
        cache_write_tokens=count(details, "cache_write_tokens"),
    )


# ------------------------------------------------------------------------------
# `POST /chat/completions`: its chunks
#
# Servers differ in what they omit: calls without an index, an index that is always 0, a name
# in every piece. Reasoning has two names. An answer is complete when a stop reason *and*
# `[DONE]` came.

_REASONING_FIELD = "reasoning_field"
_EXTRA_CONTENT = "extra_content"
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
        self._numbers: dict[int | None, int] = {}
        """The number of each call, by the index that the server gave last."""
        self._call_ids: list[JsonValue] = []
        self._reasoning_field = ""
        self._refused = False
        self._reason = ""

    def feed(self, data: bytes) -> list[ModelOutputDelta]:
        if data.startswith(_DONE):
            self.is_done = True
            return self._ending()
        return super().feed(data)

    def _read(self, event: JsonObject) -> Iterator[ModelOutputDelta]:
        if event.get("error"):
            raise self._failure(event)
        choices = event.get("choices")
        choice = object_of(choices[0]) if isinstance(choices, list) and choices else {}
        delta = object_of(choice.get("delta"))
        for field in ("reasoning_content", "reasoning"):
            if thought := text_of(delta.get(field)):
                self._reasoning_field = field
                yield ReasoningPiece(text=thought)
                break  # some servers send both, the same twice
        if text := text_of(delta.get("content")):
            yield TextPiece(text=text)
        if refusal := text_of(delta.get("refusal")):
            self._refused = True
            yield TextPiece(text=refusal)
        if isinstance(calls := delta.get("tool_calls"), list):
            for call in calls:
                yield from self._call_pieces(call)
        self._reason = text_of(choice.get("finish_reason")) or self._reason
        if isinstance(usage := event.get("usage"), dict):
            yield _usage_of(usage, sent="prompt", output="completion")

    def _read_whole(self, answer: Any) -> Iterator[ModelOutputDelta]:
        choice = answer["choices"][0]
        yield from self._read({**answer, "choices": [{**choice, "delta": choice["message"]}]})
        yield from self.feed(_DONE)

    def _call_pieces(self, call: JsonValue) -> Iterator[ModelOutputDelta]:
        """Numbers are ours, in the order the calls begin."""
        if not isinstance(call, dict):
            return
        shown, call_id, index = object_of(call.get("function")), call.get("id"), call.get("index")
        index = index if isinstance(index, int) else None
        number, name = self._numbers.get(index), text_of(shown.get("name"))
        # Without an index whatever has a name is a call of its own.
        if number is None or (
            name and (index is None or (call_id and call_id != self._call_ids[number]))
        ):
            number = self._numbers[index] = len(self._call_ids)
            self._call_ids.append(call_id)
            name = self._own_names.get(name, name)
        else:
            name = ""
        arguments = text_of(shown.get("arguments"))
        yield ToolCallPiece(index=number, tool_name=name, arguments=arguments)
        if isinstance(extra := call.get(_EXTRA_CONTENT), dict):
            yield OpaquePiece(data={_EXTRA_CONTENT: extra, "call": number})

    def _ending(self) -> list[ModelOutputDelta]:
        if not self._reason:
            return []
        reason = _STOP_REASONS.get(self._reason, self._reason)
        if self._refused:
            reason = "refusal"
        elif reason == "end" and self._call_ids:
            reason = "tool_calls"
        ending: list[ModelOutputDelta] = [Stopped(reason=reason)]
        if self._marks_reasoning and self._reasoning_field:
            ending.insert(0, OpaquePiece(data={_REASONING_FIELD: self._reasoning_field}))
        return ending


# ------------------------------------------------------------------------------
# `POST /chat/completions`: the body of a request
#
# One `tool` message per result, then what the user said. `stream_options` goes to every
# server: those that don't know it ignore it.

_SIGNS_CALLS = re.compile(r"(?:models/)?gemini")
_NOT_SIGNED: JsonObject = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""The documented signature for a call that another model made."""


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

    def in_form(self, form: RequestForm) -> ChatApi:
        if form.returns_reasoning is None:
            return self
        return structs.replace(self, returns_reasoning=form.returns_reasoning)

    def instead(self, refusal: ProviderRefused, model: str) -> RequestForm | None:
        """DeepSeek refuses calls without the reasoning that led to them; others refuse the
        field. Which it is, a refusal tells."""
        if not refusal.wrong_reasoning:
            return None
        returned = self._returns_reasoning(model)
        return RequestForm(specification=self.specification, returns_reasoning=not returned)

    def render(self, request: LlmRequest, compiled: CompiledContext) -> RenderedRequest:
        model, messages, seqs = request.invocation.model, list[JsonValue](), list[tuple[int, ...]]()
        if compiled.system:
            messages.append({"role": "system", "content": compiled.system})
            seqs.append(())
        for step in compiled.steps:
            if isinstance(step, UserStep):
                messages += _user_messages(step)
                seqs += _seqs_of_user_step(step)
            else:
                messages.append(self._answer(step, model))
                seqs.append(step.seqs)
        body: JsonObject = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if functions := _functions_of(request.tools):
            body["tools"] = [{"type": "function", "function": each} for each in functions]
        options: JsonObject = {
            self.tokens_field: request.output_tokens,
            "temperature": _temperature_of(request),
            "reasoning_effort": _chat_effort_of(request),
            **_answer_format(request),
            "prompt_cache_key": request.cache_key if self.has_cache_key else None,
        }
        return _rendered(request, body, options, seqs)

    def _answer(self, step: AssistantStep, model: str) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": step.text or None}
        opaque = [block.data for block in step.blocks if isinstance(block, OpaquePiece)]
        if step.calls:
            extras = {
                place: data[_EXTRA_CONTENT]
                for data in opaque
                if _EXTRA_CONTENT in data and isinstance(place := data.get("call"), int)
            }
            if 0 not in extras and _SIGNS_CALLS.match(model):
                extras[0] = _NOT_SIGNED
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.tool_name, "arguments": call.arguments_json},
                    **({_EXTRA_CONTENT: extras[place]} if place in extras else {}),
                }
                for place, call in enumerate(step.calls)
            ]
        # With a call it must be there, though another model made the call without one.
        if self._returns_reasoning(model) and (step.reasoning or step.calls):
            is_short = any(data.get(_REASONING_FIELD) == "reasoning" for data in opaque)
            message["reasoning" if is_short else "reasoning_content"] = step.reasoning
        return message


def _user_messages(step: UserStep) -> list[JsonObject]:
    messages: list[JsonObject] = [
        {"role": "tool", "tool_call_id": result.call_id, "content": result.text}
        for result in step.results
    ]
    if step.texts:
        # One message: templates of some models refuse two of the same role in a row. And a
        # plain text wherever that will do: some servers know nothing else.
        text = "\n\n".join(step.texts)
        # developers.openai.com/api/docs/guides/file-inputs: "Chat Completions accepts only PDF
        # files as `file` content parts."
        files: list[JsonValue] = [
            {"type": "file", "file": {"filename": one.name, "file_data": one.url}}
            for one in step.documents
        ]
        files += [{"type": "image_url", "image_url": {"url": image.url}} for image in step.images]
        content: JsonValue = [*files, {"type": "text", "text": text}] if files else text
        messages.append({"role": "user", "content": content})
    return messages


def _answer_format(request: LlmRequest) -> JsonObject:
    """Other servers than OpenAI's hold a model to a schema word by word, so that it can't call
    a tool: they are sent the schema where no tool need be called any more."""
    model, schema = request.invocation.model, request.schema
    if schema is None:
        return {}
    others = not (_FAMILY.match(model) or _DOES_NOT_REASON.match(model))
    if others and request.tools and not request.answer_only:
        return {}
    shown = _schema_format(request)
    if shown is None and others:
        shown = {"name": "answer", "schema": schema}
    options: JsonObject = {"tool_choice": "none"} if others and request.tools else {}
    if model.startswith("deepseek"):  # it knows no schemas
        options["response_format"] = {"type": "json_object"}
    elif shown is not None:
        options["response_format"] = {"type": "json_schema", "json_schema": shown}
    return options


# ------------------------------------------------------------------------------
# `POST /responses`: its events
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
        if data.startswith(_DONE):  # of servers that know it from the other API
            return []
        return super().feed(data)

    def _read(self, event: JsonObject) -> Iterator[ModelOutputDelta]:
        """Other types are passed over: they repeat what was said, or nobody here knows them."""
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
            yield _usage_of(usage, sent="input", output="output")
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
        return _is_bound_since(_RESPONSES_SINCE, model)

    def parser(self, rendered: RenderedRequest) -> ResponsesParser:
        return ResponsesParser(rendered.own_names)

    def render(self, request: LlmRequest, compiled: CompiledContext) -> RenderedRequest:
        items, seqs, given_ids = list[JsonValue](), list[tuple[int, ...]](), set[str]()
        for step in compiled.steps:
            if isinstance(step, UserStep):
                items += _user_items(step)
                seqs += _seqs_of_user_step(step)
            else:
                output = _answer_items(step, given_ids)
                items += output
                seqs += [step.seqs] * len(output)
        model, tokens = request.invocation.model, request.output_tokens
        body: JsonObject = {"model": model, "input": items, "stream": True, "store": False}
        if compiled.system:
            body["instructions"] = compiled.system
        if functions := _functions_of(request.tools):
            # Strict is what it would be if nothing were said, and most schemas don't fit it.
            body["tools"] = [{"type": "function", **each, "strict": False} for each in functions]
        options: JsonObject = {
            "max_output_tokens": None if tokens is None else max(tokens, _OUTPUT_TOKENS_MIN),
            "temperature": _temperature_of(request),
            "prompt_cache_key": request.cache_key if self.has_cache_key else None,
        }
        if _may_reason(model):
            summary = "auto" if self.summarizes_reasoning else None
            reasoning = _without_nulls({"effort": _effort_of(request), "summary": summary})
            options["include"] = ["reasoning.encrypted_content"]
            options["reasoning"] = reasoning or None
        if (shown := _schema_format(request)) is not None:
            options["text"] = {"format": {"type": "json_schema", **shown}}
        return _rendered(request, body, options, seqs)


def _user_items(step: UserStep) -> list[JsonObject]:
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
            {"type": "input_image", "image_url": image.url} for image in step.images
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
