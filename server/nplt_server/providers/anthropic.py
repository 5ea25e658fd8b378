"""Anthropic's Messages API, and servers that speak it.

How a request is rendered, up to four cache breakpoints included; the parser of answers; the
client. Rendering and parsing are pure. What a model supports is read off its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, assert_never

import orjson
from msgspec import Struct, field

from nplt_server.context.messages import ModelInputMessage, ModelOutputMessage
from nplt_server.digest.text import clean_text
from nplt_server.errors import ProviderRefused
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
from nplt_server.providers.client import VendorClient
from nplt_server.providers.compiler import (
    AssistantStep,
    CompiledCall,
    CompiledContext,
    CompiledStep,
    UserStep,
    fitting_tool_name,
    own_names,
)
from nplt_server.providers.schemas import for_anthropic, in_words, well_formed
from nplt_server.providers.sse import text_of
from nplt_server.providers.vendor_api import (
    AnswerParser,
    RenderedRequest,
    RenderedStep,
    Rendering,
    VendorApi,
    as_json,
    without_fields,
)
from nplt_server.tools import ToolDescription

if TYPE_CHECKING:
    import anthropic
    import httpx2

Json: TypeAlias = dict[str, Any]
"""Deeply nested, accessed by place."""


# ------------------------------------------------------------------------------
# Steps as messages of the API, one for one
#
# All results of an answer are at the start of the next user message. Thinking is sent back
# with its signature; without one it is not sent. An answer never ends with thinking: the API
# refuses that.

_Blocks: TypeAlias = list[Json]

_THINKING: Final = ("thinking", "redacted_thinking")
_TITLE_MAX: Final = 500
"""The characters of a document's title that the API takes."""
_VENDOR_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def _begins_with_thinking(steps: Sequence[CompiledStep], ids: Mapping[str, str]) -> bool:
    """Whether the round of tools that is under way does, if one is: a model that thinks
    on a budget is refused where it doesn't."""

    def has_results(place: int) -> bool:
        step = steps[place]
        return isinstance(step, UserStep) and bool(step.results)

    place = len(steps) - 1
    if not has_results(place):
        return True
    while place >= 2 and has_results(place):
        place -= 2
    return _blocks_of(steps[place + 1], ids)[0]["type"] in _THINKING


def _blocks_of(step: CompiledStep, ids: Mapping[str, str], *, takes_images: bool = True) -> _Blocks:
    if isinstance(step, UserStep):
        return _user_blocks(step, ids, takes_images=takes_images)
    return _answer_blocks(step, ids)


def _user_blocks(step: UserStep, ids: Mapping[str, str], *, takes_images: bool) -> _Blocks:
    blocks: _Blocks = []
    for result in step.results:
        block: Json = {"type": "tool_result", "tool_use_id": ids[result.call_id]}
        if result.text:
            block["content"] = result.text
            if result.status != "success":
                block["is_error"] = True
        blocks.append(block)
    # platform.claude.com/docs/en/build-with-claude/pdf-support: "Place PDFs before text in your
    # requests".
    for document in step.documents:
        source = {"type": "base64", "media_type": "application/pdf", "data": document.data_base64}
        blocks.append({"type": "document", "source": source, "title": document.name[:_TITLE_MAX]})
    for image in step.images if takes_images else ():
        source = {"type": "base64", "media_type": image.content_type, "data": image.data_base64}
        blocks.append({"type": "image", "source": source})
    return blocks + [{"type": "text", "text": text} for text in step.texts]


def _answer_blocks(step: AssistantStep, ids: Mapping[str, str]) -> _Blocks:
    blocks: _Blocks = []
    thought = ""
    for block in step.blocks:
        match block:
            case TextPiece(text=text):
                if text.strip():
                    blocks.append({"type": "text", "text": text})
            case ReasoningPiece(text=text):
                thought = text
            case OpaquePiece(data={"signature": str(signature)}):
                blocks.append({"type": "thinking", "thinking": thought, "signature": signature})
                thought = ""
            case OpaquePiece(data={"redacted_thinking": str(data)}):
                blocks.append({"type": "redacted_thinking", "data": data})
            case OpaquePiece():
                pass  # said where something ends, or was read by `sent_call_ids`
            case CompiledCall():
                given = orjson.loads(block.arguments_json)
                call_id = ids[block.call_id]
                blocks.append(
                    {"type": "tool_use", "id": call_id, "name": block.tool_name, "input": given}
                )
            case _:
                assert_never(block)
    while blocks and blocks[-1]["type"] in _THINKING:
        blocks.pop()
    return blocks


# ------------------------------------------------------------------------------
# Tools
#
# A schema the API would refuse goes into the description instead, where the model still
# reads it.

_PROPERTY_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOT_AT_THE_TOP: Final = frozenset({"oneOf", "allOf", "anyOf"})


def _rendered_tools(tools: Sequence[ToolDescription]) -> list[Json]:
    by_name: dict[str, Json] = {}
    for tool in tools:
        description = clean_text(tool.description)
        schema: Json = {**well_formed(tool.parameters), "type": "object"}
        if not _is_accepted(schema):
            description += f"\n\n{in_words(tool.parameters)}"
            schema = {"type": "object"}
        name = fitting_tool_name(tool.name)
        rendered: Json = {"name": name, "input_schema": schema}
        if description.strip():
            rendered["description"] = description
        by_name.setdefault(name, rendered)
    return list(by_name.values())


def _is_accepted(schema: Json) -> bool:
    properties = schema.get("properties")
    if _NOT_AT_THE_TOP & schema.keys() or not isinstance(properties, dict | None):
        return False
    return all(map(_PROPERTY_NAME.fullmatch, properties or {}))


# ------------------------------------------------------------------------------
# Cache breakpoints: four at most
#
# A request hits the cache up to a breakpoint of an earlier one, if that is at most twenty
# blocks before a breakpoint of this one. They are placed where this model's last request
# ended; where this turn began, in case what followed is taken back; at the end, for the next
# request; and after tools and instruction.


_MARK: Final[Json] = {"cache_control": {"type": "ephemeral"}}


def _places_of_breakpoints(request: LlmRequest, steps: Sequence[CompiledStep]) -> set[int]:
    """The steps that end with one."""
    places = {len(steps) - 1}
    answers = (each for each in reversed(request.context) if isinstance(each, ModelOutputMessage))
    own = next((each.seq for each in answers if each.invocation == request.invocation), 0)
    if (answer := _place_of(own, steps, AssistantStep)) is not None:
        places.add(answer - 1)
    prompts = (
        each.seq for each in reversed(request.context) if isinstance(each, ModelInputMessage)
    )
    if (began := _place_of(next(prompts, 0), steps, UserStep)) is not None:
        places.add(began)
    return places


def _marked(blocks: _Blocks) -> _Blocks:
    return [*blocks[:-1], blocks[-1] | _MARK]


def _place_of(seq: int, steps: Sequence[CompiledStep], kind: type[CompiledStep]) -> int | None:
    places = range(len(steps) - 1, -1, -1) if seq else ()
    found = (p for p in places if isinstance(steps[p], kind) and seq in steps[p].seqs)
    return next(found, None)


# ------------------------------------------------------------------------------
# Abilities of a Claude model, read from its name
#
# Documented: no sampling parameters with any model, since version 2026-10-21 of the API (what
# the SDK sends); thinking by a token budget up to the 4.5 models, adaptive from 4.6 on;
# `effort` from Opus 4.5 on, `max` from 4.6 and `xhigh` from 4.7 on; a schema for the answer
# from 4.5 on; models from 5.5 on, and Fable and Mythos, always think. An unknown name belongs
# to another vendor's model behind the same API: it gets only what was asked for.

_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")

_FAMILIES = "opus|sonnet|haiku|fable|mythos"
_FAMILY_FIRST = re.compile(rf"claude-({_FAMILIES})-(\d{{1,2}})(?:[-.](\d{{1,2}}))?(?!\d)")
_VERSION_FIRST = re.compile(rf"claude-(\d{{1,2}})(?:[-.](\d{{1,2}}))?-({_FAMILIES})")
_ALWAYS_THINKING = re.compile(r"claude-(fable|mythos)")
_ADAPTIVE_SINCE = (4, 6)
_ALL_EFFORTS_SINCE: tuple[int, int] = (4, 7)
_BUDGET_SINCE = (3, 7)
_SCHEMA_SINCE: tuple[int, int] = (4, 5)
_ALWAYS_THINKING_SINCE: tuple[int, int] = (5, 5)


class ModelAbilities(Struct, frozen=True, kw_only=True):
    thinking: Literal["none", "budget", "adaptive"] = "none"
    can_leave_thinking: bool = True
    """Whether it takes the word that it shall not think."""
    efforts: tuple[str, ...] = ()
    takes_temperature: bool = True
    """Other vendors' models behind the same API take one."""
    takes_schema: bool = False
    takes_prefill: bool = False
    """Whether it goes on with an answer that the request ends with."""


def abilities_of(model: str) -> ModelAbilities:
    name, family = model.lower(), ""
    always_thinks = _ALWAYS_THINKING.search(name) is not None
    if found := _FAMILY_FIRST.search(name):
        family, version = found[1], (int(found[2]), int(found[3] or 0))
    elif found := _VERSION_FIRST.search(name):
        family, version = found[3], (int(found[1]), int(found[2] or 0))
    elif always_thinks:  # previews have no number
        version = _ALL_EFFORTS_SINCE
    else:
        return ModelAbilities()
    thinking: Literal["none", "budget", "adaptive"] = "none"
    efforts: tuple[str, ...] = ()
    if version >= _ADAPTIVE_SINCE:
        thinking = "adaptive"
        all_of_them = version >= _ALL_EFFORTS_SINCE
        efforts = _EFFORTS if all_of_them else ("low", "medium", "high", "max")
    elif version >= _BUDGET_SINCE:
        thinking = "budget"
        efforts = ("low", "medium", "high") if (family, version) == ("opus", (4, 5)) else ()
    return ModelAbilities(
        thinking=thinking,
        can_leave_thinking=not (always_thinks or version >= _ALWAYS_THINKING_SINCE),
        efforts=efforts,
        takes_temperature=False,
        takes_schema=version >= _SCHEMA_SINCE,
        takes_prefill=version < _ADAPTIVE_SINCE and not always_thinks,
    )


# ------------------------------------------------------------------------------
# Request options: length, thinking, effort, temperature, schema
#
# Options come from the prompt as typed, for any model. One that the model does not know, or
# that contradicts another, is left out. They stay the same within a turn, because a change of
# thinking invalidates the cache.

_OUTPUT_TOKENS = 8192
_BUDGET_TOKENS_MIN = 1024
_ANSWER_TOKENS_MIN = 256
"""The least room that thinking leaves for the answer."""
_BUDGET_SHARES = {"low": 0.25, "medium": 0.5, "high": 0.75, "xhigh": 0.875, "max": 0.875}
_NO_THINKING = "none"


def _request_options(request: LlmRequest, abilities: ModelAbilities, *, may_think: bool) -> Json:
    """Fields of the request's body. `may_think`: whether the messages so far allow it."""
    output_tokens = request.output_tokens or _OUTPUT_TOKENS
    effort, temperature = request.options.get("effort"), request.temperature(1.0)
    if effort == "minimal" or (effort == _NO_THINKING and not abilities.can_leave_thinking):
        effort = _EFFORTS[0]  # the least it can do
    asked: Json = {"max_tokens": output_tokens}
    thinking = _thinking_option(abilities, effort, output_tokens) if may_think else None
    if abilities.takes_temperature:
        if temperature is not None:
            asked["temperature"] = temperature
        elif request.top_p is not None:  # newer models refuse both together
            asked["top_p"] = request.top_p
    if stops := [each for each in request.stop if str(each).strip()]:
        asked["stop_sequences"] = stops
    if thinking is not None:
        asked["thinking"] = thinking
    if (choice := _tool_choice(request, is_thinking=thinking is not None)) is not None:
        asked["tool_choice"] = choice
    output: Json = {}
    if isinstance(effort, str) and effort in _EFFORTS:
        # The highest level the model knows that is not above what was asked for.
        below = _EFFORTS[: _EFFORTS.index(effort) + 1]
        levels = [level for level in below if level in abilities.efforts]
        output |= {"effort": levels[-1]} if levels else {}
    schema = for_anthropic(request.schema) if request.schema and abilities.takes_schema else None
    if schema is not None:
        output["format"] = {"type": "json_schema", "schema": schema}
    if output:
        asked["output_config"] = output
    return asked


def _tool_choice(request: LlmRequest, *, is_thinking: bool) -> Json | None:
    """A model that thinks can't be made to call a tool
    (docs/en/build-with-claude/extended-thinking)."""
    choice: Json | None = None
    if request.chosen_tool is not None and not is_thinking:
        choice = {"type": "tool", "name": fitting_tool_name(request.chosen_tool)}
    elif request.tool_choice == "none":
        return {"type": "none"}
    elif request.tool_choice == "required" and not is_thinking:
        choice = {"type": "any"}
    if request.parallel_tool_calls is False:
        choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    return choice


def _thinking_option(abilities: ModelAbilities, effort: object, output_tokens: int) -> Json | None:
    if abilities.thinking == "none":
        return None
    if effort == _NO_THINKING:
        return {"type": "disabled"}
    if abilities.thinking == "adaptive":
        # Newer models show nothing of it unless asked to.
        return {"type": "adaptive", "display": "summarized"}
    if not isinstance(effort, str) or effort not in _BUDGET_SHARES:
        return None
    budget = max(int(output_tokens * _BUDGET_SHARES[effort]), _BUDGET_TOKENS_MIN)
    if output_tokens - budget < _ANSWER_TOKENS_MIN:
        return None
    return {"type": "enabled", "budget_tokens": budget}


_INTERLEAVED: Final = "interleaved-thinking-2025-05-14"
"""Models that think on a budget need it to think between calls; others do it anyway."""


class MessagesApi(VendorApi, frozen=True, kw_only=True):
    specification: ClassVar[str] = "anthropic-messages"

    def parser(self, rendered: RenderedRequest) -> MessageParser:
        return MessageParser(rendered.own_names)

    def may_prefill(self, model: str) -> bool:
        """platform.claude.com/docs/en/about-claude/models/migration-guide: "Prefilling assistant
        messages returns a 400 error on Sonnet 4.6"; it is documented for the models before."""
        return abilities_of(model).takes_prefill

    def takes_prefill(self, rendered: RenderedRequest) -> bool:
        """Prefilling and extended thinking exclude each other
        (docs/en/build-with-claude/extended-thinking)."""
        thinking = rendered.fields.get("thinking", {})
        return "type" not in thinking or thinking["type"] == "disabled"

    def render(
        self, request: LlmRequest, compiled: CompiledContext, rendering: Rendering | None = None
    ) -> RenderedRequest:
        steps, abilities = compiled.steps, abilities_of(request.invocation.model)
        rendering = rendering or Rendering()

        def render(step: CompiledStep, *, is_marked: bool = False) -> RenderedStep:
            return self._step(step, rendering.call_ids, is_marked=is_marked)

        rendered = rendering.extend(steps, render, made_for=self, vendor_id=_VENDOR_ID)
        marked = {
            place: render(steps[place], is_marked=True)
            for place in _places_of_breakpoints(request, steps)
        }
        ids = rendering.call_ids
        body: Json = {"model": request.invocation.model, "stream": True}
        if compiled.system:
            body["system"] = _marked([{"type": "text", "text": compiled.system}])
        tools, names = rendering.tools(
            request.tools, lambda: (_rendered_tools(request.tools), own_names(request.tools))
        )
        if not tools and (tools := _tools_called(steps)):
            # They are offered no longer, but were called: the API asks for them.
            body["tool_choice"] = {"type": "none"}
        if tools:
            body["tools"] = tools if compiled.system else _marked(tools)
        may_think = abilities.thinking != "budget" or _begins_with_thinking(steps, ids)
        body |= _request_options(request, abilities, may_think=may_think)
        thinks_on_budget = body.get("thinking", {}).get("type") == "enabled"
        return RenderedRequest(
            fields=without_fields(body, self.form.without),
            messages=rendering.messages(rendered, marked),
            steps=rendered,
            betas=(_INTERLEAVED,) if thinks_on_budget and request.tools else (),
            own_names=names,
        )

    def _step(self, step: CompiledStep, ids: Mapping[str, str], *, is_marked: bool) -> RenderedStep:
        takes_images = not self.form.without_images
        blocks = _blocks_of(step, ids, takes_images=takes_images)
        role = "user" if isinstance(step, UserStep) else "assistant"
        message = as_json({"role": role, "content": _marked(blocks) if is_marked else blocks})
        return RenderedStep(
            messages=(message,),
            seqs=(step.seqs,),
            block_seqs=(_block_seqs(step, takes_images=takes_images),),
        )


def _tools_called(steps: Sequence[CompiledStep]) -> list[Json]:
    answers = (step for step in steps if isinstance(step, AssistantStep))
    called = dict.fromkeys(call.tool_name for answer in answers for call in answer.calls)
    gone = {"description": "Can't be called any more.", "input_schema": {"type": "object"}}
    return [{"name": name, **gone} for name in called]


def _block_seqs(step: CompiledStep, *, takes_images: bool) -> tuple[int, ...]:
    if isinstance(step, AssistantStep):
        return ()
    results = (result.seq for result in step.results)
    files = (file.seq for file in (*step.documents, *(step.images if takes_images else ())))
    return (*results, *files, *step.text_seqs)


# ------------------------------------------------------------------------------
# The events of a streamed message as deltas, one event at a time
#
# `Stopped` comes with `message_stop` and at no other time, so an answer that is cut stays
# unfinished. The signature of a thinking block is an opaque piece at the end of the block. It
# can be sent back only if all that came before it in the answer can, to the letter: once that
# is no longer so (a blank text, broken arguments, a block of an unknown type) no further opaque
# pieces of this answer are kept.

_STOP_REASONS = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "window",
    "refusal": "refusal",
    "pause_turn": "pause",
}


class _Block(Struct):
    kind: str
    call: int = 0
    is_blank: bool = True
    signature: str = ""
    arguments: list[str] = field(default_factory=list)
    given_input: object = None
    """Some servers give a call's input whole, where it begins."""


class MessageParser(AnswerParser):
    def __init__(self, own_names: Mapping[str, str] | None = None) -> None:
        super().__init__(own_names)
        self._blocks: dict[int, _Block] = {}
        self._last_kind = ""
        self._call_ids: list[str] = []
        self._calls_sent = 0
        self._is_verbatim = True
        self._has_text = False
        self._usage: dict[str, int] = {}
        self._stop_reason: str | None = None

    def feed(self, data: bytes) -> list[ModelOutputDelta]:
        return [] if self.is_done else super().feed(data)

    def _read(self, event: Json) -> list[ModelOutputDelta]:
        match event["type"]:
            case "content_block_delta":
                block = self._blocks.get(event["index"])
                return [] if block is None else self._piece(block, event["delta"])
            case "content_block_start":
                self.has_spoken = True
                return self._open(event["index"], event["content_block"])
            case "content_block_stop":
                block = self._blocks.pop(event["index"], None)
                return [] if block is None else self._close(block)
            case "message_start":
                return self._count(event["message"].get("usage") or {})
            case "message_delta":
                return self._wind_up(event["delta"], event.get("usage") or {})
            case "message_stop":
                return self._end()
            case "error":
                raise self._failure(event)
            case _:
                return []

    def _read_whole(self, answer: Any) -> list[ModelOutputDelta]:
        deltas = self._count(answer.get("usage") or {})
        for index, block in enumerate(answer["content"]):
            for kind in ("content_block_start", "content_block_stop"):
                deltas += self._read({"type": kind, "index": index, "content_block": block})
        return [*deltas, *self._wind_up(answer, {}), *self._end()]

    def _open(self, index: int, opened: Json) -> list[ModelOutputDelta]:
        block = self._blocks[index] = _Block(kind=opened["type"])
        follows, self._last_kind = self._last_kind, block.kind
        match block.kind:
            case "text":
                begin = self._kept({"next": "text"}) if follows == "text" else []
                return begin + self._piece(block, {"type": "text_delta", **opened})
            case "thinking":
                begin = self._reported_call_ids()
                return begin + self._piece(block, {"type": "thinking_delta", **opened})
            case "redacted_thinking":
                return self._reported_call_ids() + self._kept({"redacted_thinking": opened["data"]})
            case "tool_use":
                block.call = len(self._call_ids)
                block.given_input = opened.get("input")
                self._call_ids.append(text_of(opened.get("id")))
                name = text_of(opened["name"])
                return [ToolCallPiece(index=block.call, tool_name=self._own_names.get(name, name))]
            case _:
                self._is_verbatim = False
                return []

    def _piece(self, block: _Block, delta: Json) -> list[ModelOutputDelta]:
        match delta["type"], block.kind:
            case (("text_delta" | "text"), "text"):
                text = self._cleaned(delta.get("text"))
                block.is_blank = block.is_blank and not text.strip()
                self._has_text = self._has_text or not block.is_blank
                return [TextPiece(text=text)] if text else []
            case (("thinking_delta" | "thinking"), "thinking"):
                text = self._cleaned(delta.get("thinking"))
                block.signature += text_of(delta.get("signature"))
                return [ReasoningPiece(text=text)] if text else []
            case "signature_delta", "thinking":
                block.signature += delta["signature"]
                return []
            case "input_json_delta", "tool_use":
                arguments = self._cleaned(delta["partial_json"])
                block.arguments.append(arguments)
                return [ToolCallPiece(index=block.call, arguments=arguments)] if arguments else []
            case _:
                return []

    def _close(self, block: _Block) -> list[ModelOutputDelta]:
        match block.kind:
            case "thinking":
                if block.signature:
                    return self._kept({"signature": block.signature})
                self._is_verbatim = False
            case "text":
                self._is_verbatim = self._is_verbatim and not block.is_blank
            case "tool_use":
                arguments = "".join(block.arguments)
                if not arguments and block.given_input:
                    arguments = orjson.dumps(block.given_input).decode()
                    return [ToolCallPiece(index=block.call, arguments=arguments)]
                self._is_verbatim = self._is_verbatim and _is_object(arguments or "{}")
        return []

    def _reported_call_ids(self) -> list[ModelOutputDelta]:
        """Thinking after a call knows it by the vendor's id, and ours is another."""
        call_ids, self._calls_sent = self._call_ids[self._calls_sent :], len(self._call_ids)
        return self._kept({"call_ids": [*call_ids]}) if call_ids else []

    def _kept(self, data: Json) -> list[ModelOutputDelta]:
        return [OpaquePiece(data=data)] if self._is_verbatim else []

    def _cleaned(self, text: object) -> str:
        text_received = text_of(text)
        if clean_text(text_received) != text_received:
            self._is_verbatim = False  # it will be written down otherwise
        return text_received

    def _count(self, usage: Json) -> list[ModelOutputDelta]:
        """Counts are cumulative; what a later report leaves out is still so."""
        self._usage |= {name: count for name, count in usage.items() if isinstance(count, int)}
        count = self._usage.get
        cached = count("cache_read_input_tokens", 0)
        kept = count("cache_creation_input_tokens", 0)
        sent, output = count("input_tokens", 0) + cached + kept, count("output_tokens", 0)
        if not sent:
            return []
        return [
            UsageReport(
                input_tokens=sent,
                output_tokens=output,
                cached_tokens=cached,
                cache_write_tokens=kept,
                raw={**self._usage},
            )
        ]

    def _wind_up(self, delta: Json, usage: Json) -> list[ModelOutputDelta]:
        reason = delta.get("stop_reason")
        if reason is not None:
            self._stop_reason = _STOP_REASONS.get(reason, text_of(reason))
        deltas = self._count(usage)
        if reason == "refusal":
            why = text_of((delta.get("stop_details") or {}).get("explanation"))
            if why.strip():
                deltas.append(TextPiece(text=f"\n\n{why}" if self._has_text else why))
                self._has_text = True
        return deltas

    def _end(self) -> list[ModelOutputDelta]:
        self.is_done = True
        deltas = [each for block in self._blocks.values() for each in self._close(block)]
        if self._stop_reason == "refusal" and not self._has_text and not self._call_ids:
            raise ProviderRefused("the model declined to answer")
        if self._stop_reason is not None:
            deltas.append(Stopped(reason=self._stop_reason))
        return deltas


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False


_PAGE_MODELS = 1_000
"""The API gives at most so many in one page."""


class MessagesClient(VendorClient):
    vendor = "Anthropic"
    vendor_url = "https://api.anthropic.com"

    def _open(self, http: httpx2.AsyncClient) -> anthropic.AsyncAnthropic:
        import anthropic

        sdk = anthropic.AsyncAnthropic(
            api_key=self._api_key,
            base_url=self.address,
            max_retries=0,
            timeout=None,
            open_telemetry=False,
            http_client=http,
        )
        sdk._custom_headers = self._headers
        return sdk

    async def _ask(self, sdk: anthropic.AsyncAnthropic, rendered: RenderedRequest) -> None:
        betas = {"anthropic-beta": ",".join(rendered.betas)} if rendered.betas else None
        await sdk.messages.with_raw_response.create(
            model="", max_tokens=1, messages=[], stream=True, extra_headers=betas
        )

    async def _ask_for_models(self, sdk: anthropic.AsyncAnthropic, after: str | None) -> None:
        query = {"after_id": after} if after else None
        await sdk.models.with_raw_response.list(limit=_PAGE_MODELS, extra_query=query)

    def _next_page(self, page: Json) -> str | None:
        last = page.get("last_id")
        return last if page.get("has_more") is True and isinstance(last, str) else None

    def _address_hint(self, path: str) -> str:
        return "without /v1, which is added" if path.rstrip("/").endswith("/v1") else ""
