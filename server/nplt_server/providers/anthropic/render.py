"""A request to a model, compiled, as the body of a request to the API. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nplt_server.providers.anthropic.abilities import ModelAbilities
from nplt_server.providers.anthropic.answers import Blocks, begins_with_thinking, contents_of
from nplt_server.providers.anthropic.demands import demands
from nplt_server.providers.anthropic.marks import mark, messages_to_mark
from nplt_server.providers.anthropic.tools import bygone_tools, own_names, rendered_tools
from nplt_server.providers.anthropic.wire import Json
from nplt_server.providers.base import ModelRequest
from nplt_server.providers.compiling import AssistantStep, Compiled, Step, UserStep, VendorRules

RULES: Final = VendorRules()
_INTERLEAVED: Final = "interleaved-thinking-2025-05-14"
"""Models that think on a budget need it to think between calls; others do it anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    body: Json
    betas: tuple[str, ...]
    seqs: tuple[tuple[int, ...], ...]
    """Of each message in the body: the entries it shows."""
    block_seqs: tuple[tuple[int, ...], ...]
    """Of each block of each message of the user: the one entry it shows, or 0."""
    own_names: Mapping[str, str]


def render(request: ModelRequest, compiled: Compiled, abilities: ModelAbilities) -> Rendered:
    asked = request.invocation
    contents = contents_of(compiled.steps)
    body: Json = {"model": asked.model}
    if compiled.system:
        body["system"] = [{"type": "text", "text": compiled.system}]
    tools = rendered_tools(request.tools, RULES)
    if not tools and (called := _called(contents)):
        tools = bygone_tools(called)
        body["tool_choice"] = {"type": "none"}
    if tools:
        body["tools"] = tools
    body["messages"] = [
        {"role": "user" if isinstance(step, UserStep) else "assistant", "content": content}
        for step, content in zip(compiled.steps, contents, strict=True)
    ]
    body |= demands(
        request.options,
        abilities,
        answer_tokens_max=request.answer_tokens_max,
        may_think=abilities.thinking != "budget" or begins_with_thinking(contents),
    )
    mark(body, messages_to_mark(request.context, compiled.steps, asked))
    thinks_on_budget = body.get("thinking", {}).get("type") == "enabled"
    return Rendered(
        body=body,
        betas=(_INTERLEAVED,) if thinks_on_budget and request.tools else (),
        seqs=tuple(step.seqs for step in compiled.steps),
        block_seqs=tuple(map(_block_seqs, compiled.steps)),
        own_names=own_names(request.tools, RULES),
    )


def _block_seqs(step: Step) -> tuple[int, ...]:
    if isinstance(step, AssistantStep):
        return ()
    results = (result.seq for result in step.results)
    return (*results, *(image.seq for image in step.images), *step.text_seqs)


def _called(contents: list[Blocks]) -> list[str]:
    return [block["name"] for blocks in contents for block in blocks if block["type"] == "tool_use"]
