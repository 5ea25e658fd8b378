"""Renders a compiled context as the body of a request to the Messages API. Pure.

Messages, tools, request options (length, thinking, effort, temperature), and up to four
cache breakpoints. What a model supports is read off its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, assert_never

import orjson
from msgspec import Struct

from nplt_protocol import JsonValue
from nplt_server.context.messages import ModelInputMessage, ModelOutputMessage
from nplt_server.digest.text import clean_text
from nplt_server.providers import ModelRequest, OpaquePiece, ReasoningPiece, TextPiece
from nplt_server.providers.client import RenderedRequest
from nplt_server.providers.compiler import (
    AssistantStep,
    CompiledCall,
    CompiledContext,
    CompiledImage,
    CompiledResult,
    CompiledStep,
    UserStep,
    blocks_of,
    fitting_tool_name,
    own_names,
)
from nplt_server.providers.schemas import for_anthropic, in_words, well_formed
from nplt_server.tools import ToolDescription

Json: TypeAlias = dict[str, Any]
"""Deeply nested, accessed by place."""


# ------------------------------------------------------------------------------
# Steps as messages of the API, one for one
#
# All results of an answer are at the start of the next user message. Thinking is sent back
# with its signature; without one it is not sent. An answer never ends with thinking: the API
# refuses that.

Blocks: TypeAlias = list[Json]

THINKING: Final = ("thinking", "redacted_thinking")
_VENDOR_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def contents_of(steps: Sequence[CompiledStep]) -> list[Blocks]:
    """The content of each message."""
    ids = _sent_ids(steps)
    return [
        _user_blocks(step, ids) if isinstance(step, UserStep) else _answer_blocks(step, ids)
        for step in steps
    ]


def begins_with_thinking(contents: Sequence[Blocks]) -> bool:
    """Whether the round of tools that is under way does, if one is: a model that thinks
    on a budget is refused where it doesn't."""
    place = len(contents) - 1
    if not _has_results(contents[place]):
        return True
    while place >= 2 and _has_results(contents[place]):
        place -= 2
    return contents[place + 1][0]["type"] in THINKING


def _user_blocks(step: UserStep, ids: Mapping[str, str]) -> Blocks:
    results = [_result(result, ids[result.call_id]) for result in step.results]
    return [
        *results,
        *map(_image, step.images),
        *({"type": "text", "text": text} for text in step.texts),
    ]


def _image(image: CompiledImage) -> Json:
    source = {"type": "base64", "media_type": image.content_type, "data": image.data_base64}
    return {"type": "image", "source": source}


def _result(result: CompiledResult, call_id: str) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": call_id}
    if result.text:
        block["content"] = result.text
        if result.status != "success":
            block["is_error"] = True
    return block


def _answer_blocks(step: AssistantStep, ids: Mapping[str, str]) -> Blocks:
    blocks = list(_answered(step, ids))
    while blocks and blocks[-1]["type"] in THINKING:
        blocks.pop()
    return blocks


def _answered(step: AssistantStep, ids: Mapping[str, str]) -> Iterator[Json]:
    thought = ""
    for block in blocks_of(step):
        match block:
            case TextPiece(text=text):
                if text.strip():
                    yield {"type": "text", "text": text}
            case ReasoningPiece(text=text):
                thought = text
            case OpaquePiece(data={"signature": str(signature)}):
                yield {"type": "thinking", "thinking": thought, "signature": signature}
                thought = ""
            case OpaquePiece(data={"redacted_thinking": str(data)}):
                yield {"type": "redacted_thinking", "data": data}
            case OpaquePiece():
                pass  # said where something ends, or was read by `_sent_ids`
            case CompiledCall():
                yield {
                    "type": "tool_use",
                    "id": ids[block.call_id],
                    "name": block.tool_name,
                    "input": orjson.loads(block.arguments_json),
                }
            case _:
                assert_never(block)


def _sent_ids(steps: Sequence[CompiledStep]) -> dict[str, str]:
    """Ours, but where thinking follows a call in the same answer: it knows the vendor's."""
    ids = {
        call.call_id: call.call_id
        for step in steps
        if isinstance(step, AssistantStep)
        for call in step.calls
    }
    taken = set(ids)
    for step in steps:
        if isinstance(step, AssistantStep) and (told := list(_vendor_ids(step))):
            calls = (block for block in blocks_of(step) if isinstance(block, CompiledCall))
            for call, vendor_id in zip(calls, told, strict=False):
                if vendor_id not in taken and _VENDOR_ID.fullmatch(vendor_id):
                    taken.add(vendor_id)
                    ids[call.call_id] = vendor_id
    return ids


def _vendor_ids(step: AssistantStep) -> Iterator[str]:
    for part in step.parts:
        told = (part.data or {}).get("call_ids")
        if isinstance(told, list):
            yield from (each for each in told if isinstance(each, str))


def _has_results(blocks: Blocks) -> bool:
    return any(block["type"] == "tool_result" for block in blocks)


# ------------------------------------------------------------------------------
# Tools
#
# A schema the API would refuse goes into the description instead, where the model still
# reads it.

_PROPERTY_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOT_AT_THE_TOP: Final = frozenset({"oneOf", "allOf", "anyOf"})


def rendered_tools(tools: Sequence[ToolDescription]) -> list[Json]:
    by_name: dict[str, Json] = {}
    for tool in tools:
        name = fitting_tool_name(tool.name)
        by_name.setdefault(name, _rendered(tool, name))
    return list(by_name.values())


def former_tools(names: Iterable[str]) -> list[Json]:
    """Of tools that are offered no longer but were called: the API asks for them."""
    return [
        {
            "name": name,
            "description": "Can't be called any more.",
            "input_schema": {"type": "object"},
        }
        for name in dict.fromkeys(names)
    ]


def _rendered(tool: ToolDescription, name: str) -> Json:
    description = clean_text(tool.description)
    schema: Json = {**well_formed(tool.parameters), "type": "object"}
    if not _is_accepted(schema):
        description += f"\n\n{in_words(tool.parameters)}"
        schema = {"type": "object"}
    rendered: Json = {"name": name, "input_schema": schema}
    if description.strip():
        rendered["description"] = description
    return rendered


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


def place_cache_breakpoints(
    body: Json, request: ModelRequest, steps: Sequence[CompiledStep]
) -> None:
    """Writes them into a body that was just made."""
    places = {len(steps) - 1}
    newest_first = list(reversed(request.context))
    answers = (each for each in newest_first if isinstance(each, ModelOutputMessage))
    own = next((each.seq for each in answers if each.invocation == request.invocation), 0)
    if (answer := _place_of(own, steps, AssistantStep)) is not None:
        places.add(answer - 1)
    prompts = (each.seq for each in newest_first if isinstance(each, ModelInputMessage))
    prompt = next(prompts, 0)
    if (began := _place_of(prompt, steps, UserStep)) is not None:
        places.add(began)
    marked = [body["messages"][place]["content"] for place in places]
    if stable := body.get("system") or body.get("tools"):
        marked.append(stable)
    for blocks in marked:
        blocks[-1]["cache_control"] = {"type": "ephemeral"}


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

ThinkingKind: TypeAlias = Literal["none", "budget", "adaptive"]

EFFORTS = ("low", "medium", "high", "xhigh", "max")

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
    thinking: ThinkingKind = "none"
    can_leave_thinking: bool = True
    """Whether it takes the word that it shall not think."""
    efforts: tuple[str, ...] = ()
    takes_temperature: bool = True
    """Only models of others behind the same API do."""
    takes_schema: bool = False


def abilities_of(model: str) -> ModelAbilities:
    name = model.lower()
    family, version = _family_and_version(name)
    if version is None:
        if _ALWAYS_THINKING.search(name):  # previews have no number
            version = _ALL_EFFORTS_SINCE
        else:
            return ModelAbilities()
    if version >= _ADAPTIVE_SINCE:
        thinking: ThinkingKind = "adaptive"
    else:
        thinking = "budget" if version >= _BUDGET_SINCE else "none"
    return ModelAbilities(
        thinking=thinking,
        can_leave_thinking=not (version >= _ALWAYS_THINKING_SINCE or _ALWAYS_THINKING.search(name)),
        efforts=_efforts(family, version),
        takes_temperature=False,
        takes_schema=version >= _SCHEMA_SINCE,
    )


def _family_and_version(name: str) -> tuple[str, tuple[int, int] | None]:
    if found := _FAMILY_FIRST.search(name):
        return found[1], (int(found[2]), int(found[3] or 0))
    if found := _VERSION_FIRST.search(name):
        return found[3], (int(found[1]), int(found[2] or 0))
    return "", None


def _efforts(family: str, version: tuple[int, int]) -> tuple[str, ...]:
    if version >= _ALL_EFFORTS_SINCE:
        return EFFORTS
    if version >= _ADAPTIVE_SINCE:
        return ("low", "medium", "high", "max")
    return ("low", "medium", "high") if (family, version) == ("opus", (4, 5)) else ()


# ------------------------------------------------------------------------------
# Request options: length, thinking, effort, temperature, schema
#
# Options come from the prompt as typed, for any model. One that the model does not know, or
# that contradicts another, is left out. They stay the same within a turn, because a change of
# thinking invalidates the cache.

_OUTPUT_TOKENS = 8192
_BUDGET_TOKENS_MIN = 1024
_ANSWER_TOKENS_MIN = 256
"""What thinking leaves for the answer, at the least."""
_BUDGET_SHARES = {"low": 0.25, "medium": 0.5, "high": 0.75, "xhigh": 0.875, "max": 0.875}
_NO_THINKING = "none"
_OTHER_NAMES = {"minimal": "low"}


def request_options(request: ModelRequest, abilities: ModelAbilities, *, may_think: bool) -> Json:
    """Fields of the request's body. `may_think`: nothing that was said so far forbids it."""
    output_tokens = request.output_tokens or _OUTPUT_TOKENS
    effort, temperature = _effort(request.options), request.temperature(1.0)
    if effort == _NO_THINKING and not abilities.can_leave_thinking:
        effort = EFFORTS[0]  # the least it can do
    asked: Json = {"max_tokens": output_tokens}
    thinking = _thinking_option(abilities, effort, output_tokens) if may_think else None
    if temperature is not None and abilities.takes_temperature:
        asked["temperature"] = temperature
    if thinking is not None:
        asked["thinking"] = thinking
    if (level := _nearest(effort, abilities.efforts)) is not None:
        asked["output_config"] = {"effort": level}
    schema = for_anthropic(request.schema) if request.schema and abilities.takes_schema else None
    if schema is not None:
        told = {"format": {"type": "json_schema", "schema": schema}}
        asked["output_config"] = {**asked.get("output_config", {}), **told}
    return asked


def _effort(options: Mapping[str, JsonValue]) -> str | None:
    effort = options.get("effort")
    if not isinstance(effort, str):
        return None
    effort = _OTHER_NAMES.get(effort, effort)
    return effort if effort in EFFORTS or effort == _NO_THINKING else None


def _thinking_option(
    abilities: ModelAbilities, effort: str | None, output_tokens: int
) -> Json | None:
    if abilities.thinking == "none":
        return None
    if effort == _NO_THINKING:
        return {"type": "disabled"}
    if abilities.thinking == "adaptive":
        # Newer models show nothing of it unless asked to.
        return {"type": "adaptive", "display": "summarized"}
    if effort is None:
        return None
    budget = max(int(output_tokens * _BUDGET_SHARES[effort]), _BUDGET_TOKENS_MIN)
    if output_tokens - budget < _ANSWER_TOKENS_MIN:
        return None
    return {"type": "enabled", "budget_tokens": budget}


def _nearest(effort: str | None, known: tuple[str, ...]) -> str | None:
    """The highest level the model knows that is not above what was asked for."""
    if effort is None or effort == _NO_THINKING:
        return None
    below = EFFORTS[: EFFORTS.index(effort) + 1]
    return next((level for level in reversed(below) if level in known), None)


_INTERLEAVED: Final = "interleaved-thinking-2025-05-14"
"""Models that think on a budget need it to think between calls; others do it anyway."""


def render(
    request: ModelRequest, compiled: CompiledContext, abilities: ModelAbilities
) -> RenderedRequest:
    contents = contents_of(compiled.steps)
    body: Json = {"model": request.invocation.model}
    if compiled.system:
        body["system"] = [{"type": "text", "text": compiled.system}]
    tools = rendered_tools(request.tools)
    blocks = [block for blocks in contents for block in blocks]
    if not tools and (called := [one["name"] for one in blocks if one["type"] == "tool_use"]):
        tools = former_tools(called)
        body["tool_choice"] = {"type": "none"}
    if tools:
        body["tools"] = tools
    body["messages"] = [
        {"role": "user" if isinstance(step, UserStep) else "assistant", "content": content}
        for step, content in zip(compiled.steps, contents, strict=True)
    ]
    body |= request_options(
        request,
        abilities,
        may_think=abilities.thinking != "budget" or begins_with_thinking(contents),
    )
    place_cache_breakpoints(body, request, compiled.steps)
    thinks_on_budget = body.get("thinking", {}).get("type") == "enabled"
    return RenderedRequest(
        body=body,
        betas=(_INTERLEAVED,) if thinks_on_budget and request.tools else (),
        seqs=tuple(step.seqs for step in compiled.steps),
        block_seqs=tuple(map(_block_seqs, compiled.steps)),
        own_names=own_names(request.tools),
    )


def _block_seqs(step: CompiledStep) -> tuple[int, ...]:
    if isinstance(step, AssistantStep):
        return ()
    results = (result.seq for result in step.results)
    return (*results, *(image.seq for image in step.images), *step.text_seqs)
