"""Calls outside of turns obey the same rules, and nobody is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from nplt_server.context.messages import ModelInputMessage
from nplt_server.conversations.model_call import call_quietly
from nplt_server.errors import AnswerCut, ProviderError, ProviderRefused, ProviderUnavailable
from nplt_server.providers import ModelOutputDelta, ModelRequest, Stopped, TextPiece, UsageReport
from nplt_server.providers.accumulator import ModelOutputAccumulator
from nplt_server.providers.offline import ScriptedProvider
from nplt_server.providers.retries import RetryPolicy
from nplt_server.providers.router import ProviderRouter

DOWN = ProviderUnavailable("nobody home")


class Script:
    def __init__(self, *parts: list[ModelOutputDelta | ProviderError]) -> None:
        self.parts = list(parts)
        self.waits: list[float] = []
        self.output = ModelOutputAccumulator(answer_bytes_max=1_000)
        self.router = ProviderRouter([ScriptedProvider(self._answer)])

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        for part in self.parts.pop(0):
            if isinstance(part, ProviderError):
                raise part
            yield part

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def play(self) -> str:
        route = self.router.route_of("scripted/model")
        invocation = route.invocation
        request = ModelRequest(
            invocation=invocation, context=(ModelInputMessage(content="hello", seq=1),)
        )
        policy = RetryPolicy(random=lambda: 0.0, sleep=self._sleep)
        await call_quietly(request, self.output, route=route, policy=policy)
        return self.output.text


async def test_who_was_not_there_is_asked_again() -> None:
    script = Script([DOWN], [DOWN], [TextPiece(text="here"), Stopped(reason="end")])
    assert await script.play() == "here"
    assert script.waits == [0.5, 1.0]
    assert script.router.route_of("scripted/model").metrics.retries == 2


async def test_but_not_for_ever() -> None:
    script = Script([DOWN], [DOWN], [DOWN])
    with pytest.raises(ProviderUnavailable):
        await script.play()


async def test_nor_once_anything_was_said() -> None:
    script = Script([TextPiece(text="he"), DOWN])
    with pytest.raises(ProviderUnavailable):
        await script.play()
    assert script.waits == []


async def test_an_answer_without_its_end_is_none() -> None:
    with pytest.raises(AnswerCut):
        await Script([TextPiece(text="he")]).play()


@pytest.mark.parametrize("reason", ["length", "refusal", "content_filter", "tool_calls"])
async def test_nor_is_one_that_did_not_come_to_its_end(reason: str) -> None:
    with pytest.raises(ProviderRefused, match=reason):
        await Script([TextPiece(text="Never delete the"), Stopped(reason=reason)]).play()


async def test_who_hung_up_before_the_first_word_is_asked_again() -> None:
    script = Script(
        [UsageReport(input_tokens=1, output_tokens=0)],
        [TextPiece(text="here"), Stopped(reason="end")],
    )
    assert await script.play() == "here"
    assert script.waits == [0.5]
