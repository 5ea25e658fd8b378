"""What every provider keeps to, as rules that can be run against any of them.

A rule asks a `Stage` to set a scene, asks the provider behind it, and looks at what comes.
Whoever writes a provider gives it a stage (`contract_stages.py` has nine) and runs all
`RULES`; a scene a provider can't play is left out, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import pytest

from nplt_protocol import JsonValue
from nplt_server.context.messages import ModelInputMessage
from nplt_server.errors import ProviderError
from nplt_server.providers import LlmRequest, ModelOutputDelta, ProviderClient, Stopped, TextPiece
from nplt_server.providers.accumulator import ModelOutputAccumulator
from nplt_server.tools import ToolDescription
from nplt_storage.entries import ModelInvocationDescriptor, ModelOutputEntry

SceneName: TypeAlias = Literal[
    "text",
    "usage",
    "call",
    "parallel calls",
    "broken arguments",
    "endless",
    "truncated",
    "unknown content",
    "screen",
    "cut",
    "failure",
]
PAINT = ToolDescription(
    name="paint",
    description="Paints the wall.",
    parameters={
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red"]}},
        "required": ["colour"],
    },
)
SCREEN = "[LiveScreen]\nnotebook: a grey wall"
_REST_SECONDS_MAX = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """How to ask for it, and what comes of it."""

    prompt: str = "hello"
    text: str = ""
    options: dict[str, JsonValue] = field(default_factory=dict)


class Stage(Protocol):
    @property
    def provider(self) -> ProviderClient: ...

    def cannot(self, scene: SceneName) -> str | None:
        """Why not."""
        ...

    def set(self, scene: SceneName) -> Scene:
        """For the calls that follow."""
        ...

    def break_off(self) -> None:
        """In the scene "cut", after the first piece: for stages that do it from outside."""
        ...

    def has_seen(self, text: str, output: ModelOutputAccumulator) -> bool:
        """Whether that was shown to the model that said this."""
        ...

    def is_busy(self) -> bool:
        """Whether something on the other side is still at an answer."""
        ...


Rule: TypeAlias = Callable[[Stage], Awaitable[None]]
RULES: list[tuple[SceneName, Rule]] = []


def rule(scene: SceneName) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        RULES.append((scene, function))
        return function

    return add


@rule("text")
async def a_text_comes_in_pieces_and_stops(stage: Stage) -> None:
    scene = stage.set("text")
    deltas = await deltas_of(stage, scene)
    assert sum(isinstance(delta, TextPiece) for delta in deltas) > 1
    assert (accumulated(deltas).text, accumulated(deltas).stop_reason) == (scene.text, "end")


@rule("text")
async def two_calls_at_once_do_not_mix(stage: Stage) -> None:
    scene = stage.set("text")
    answers = await asyncio.gather(deltas_of(stage, scene), deltas_of(stage, scene))
    assert [accumulated(deltas).text for deltas in answers] == [scene.text] * 2


@rule("text")
async def closing_twice_is_closing(stage: Stage) -> None:
    await deltas_of(stage, stage.set("text"))
    await stage.provider.aclose()
    await stage.provider.aclose()


@rule("usage")
async def usage_is_reported(stage: Stage) -> None:
    usage = accumulated(await deltas_of(stage, stage.set("usage"))).usage
    assert usage is not None
    assert min(usage.input_tokens, usage.output_tokens) > 0


@rule("call")
async def a_call_is_put_together_from_its_pieces(stage: Stage) -> None:
    entry = entry_of(stage, await deltas_of(stage, stage.set("call"), PAINT))
    assert [(call.tool_name, call.arguments) for call in entry.tool_calls] == [
        ("paint", {"colour": "red"})
    ]
    assert entry.stop_reason == "tool_calls"


@rule("parallel calls")
async def calls_of_one_answer_stay_apart(stage: Stage) -> None:
    entry = entry_of(stage, await deltas_of(stage, stage.set("parallel calls"), PAINT))
    assert [call.arguments for call in entry.tool_calls] == [{"colour": "red"}] * 2


@rule("broken arguments")
async def broken_arguments_are_kept_as_they_came(stage: Stage) -> None:
    entry = entry_of(stage, await deltas_of(stage, stage.set("broken arguments"), PAINT))
    (call,) = entry.tool_calls
    assert (call.raw_arguments, call.arguments) == ('{"colour":', None)
    assert call.parse_error is not None


@rule("endless")
async def leaving_in_the_middle_leaves_nothing_behind(stage: Stage) -> None:
    scene = stage.set("endless")
    before = asyncio.all_tasks()
    async with stage.provider.call_model(request(stage, scene)) as deltas:
        await _first_piece(deltas.__anext__)
    await _comes_to_rest(stage, before)


@rule("endless")
async def a_cancelled_call_leaves_nothing_behind(stage: Stage) -> None:
    scene = stage.set("endless")
    before = asyncio.all_tasks()
    begun = asyncio.Event()

    async def listen() -> None:
        async with stage.provider.call_model(request(stage, scene)) as deltas:
            async for delta in deltas:
                if isinstance(delta, TextPiece):
                    begun.set()

    listening = asyncio.create_task(listen())
    await begun.wait()
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening
    assert listening.cancelled()
    await _comes_to_rest(stage, before)


@rule("truncated")
async def an_answer_that_ran_out_of_tokens_says_so(stage: Stage) -> None:
    output = accumulated(await deltas_of(stage, stage.set("truncated")))
    assert output.stop_reason == "length"
    assert output.text


@rule("unknown content")
async def unknown_items_are_ignored(stage: Stage) -> None:
    scene = stage.set("unknown content")
    output = accumulated(await deltas_of(stage, scene))
    assert (output.text, output.stop_reason) == (scene.text, "end")


@rule("screen")
async def a_live_screen_is_shown_to_the_model(stage: Stage) -> None:
    scene = stage.set("screen")
    assert not stage.has_seen(SCREEN, accumulated(await deltas_of(stage, scene)))
    assert stage.has_seen(SCREEN, accumulated(await deltas_of(stage, scene, screen=SCREEN)))


@rule("cut")
async def an_answer_that_was_cut_has_not_stopped(stage: Stage) -> None:
    scene = stage.set("cut")
    deltas: list[ModelOutputDelta] = []
    with suppress(ProviderError):
        async with stage.provider.call_model(request(stage, scene)) as stream:
            async for delta in stream:
                if isinstance(delta, TextPiece) and not deltas:
                    stage.break_off()
                deltas.append(delta)
    assert any(isinstance(delta, TextPiece) for delta in deltas)
    assert not any(isinstance(delta, Stopped) for delta in deltas)


@rule("failure")
async def every_failure_becomes_a_provider_error(stage: Stage) -> None:
    with pytest.raises(ProviderError):
        await deltas_of(stage, stage.set("failure"))


def request(
    stage: Stage, scene: Scene, *tools: ToolDescription, screen: str | None = None
) -> LlmRequest:
    provider = stage.provider
    return LlmRequest(
        invocation=ModelInvocationDescriptor(
            provider=provider.id,
            specification=provider.specification_of(provider.models[0]),
            model=provider.models[0],
        ),
        context=(ModelInputMessage(content=scene.prompt, live_screen=screen, seq=1),),
        tools=tools,
        options=scene.options,
    )


async def deltas_of(
    stage: Stage, scene: Scene, *tools: ToolDescription, screen: str | None = None
) -> list[ModelOutputDelta]:
    async with stage.provider.call_model(request(stage, scene, *tools, screen=screen)) as deltas:
        return [delta async for delta in deltas]


def accumulated(deltas: list[ModelOutputDelta]) -> ModelOutputAccumulator:
    output = ModelOutputAccumulator(answer_bytes_max=10**6)
    for delta in deltas:
        output.apply(delta)
    return output


def entry_of(stage: Stage, deltas: list[ModelOutputDelta]) -> ModelOutputEntry:
    invocation = request(stage, Scene()).invocation
    return accumulated(deltas).entry(
        turn_id="t", call=0, invocation=invocation, new_call_id=lambda: "own"
    )


async def _first_piece(following: Callable[[], Awaitable[ModelOutputDelta]]) -> None:
    while not isinstance(await following(), TextPiece):
        pass


async def _comes_to_rest(stage: Stage, before: set[asyncio.Task[object]]) -> None:
    async with asyncio.timeout(_REST_SECONDS_MAX):
        while stage.is_busy() or not asyncio.all_tasks() <= before:
            await asyncio.sleep(0.001)
