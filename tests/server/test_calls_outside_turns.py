"""`call_quietly`: calls outside of turns have the same retries, and no events."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from nplt_server.context.messages import ModelInputMessage
from nplt_server.errors import (
    AnswerCut,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
)
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece, UsageReport
from nplt_server.providers.accumulator import ModelOutputAccumulator
from nplt_server.providers.offline import ScriptedProvider
from nplt_server.providers.retries import RetryPolicy, call_quietly
from nplt_server.providers.router import ProviderRouter
from nplt_server.request_form import RequestForm

DOWN = ProviderUnavailable("nobody home")


class Script:
    def __init__(self, *parts: list[ModelOutputDelta | ProviderError]) -> None:
        self.parts = list(parts)
        self.waits: list[float] = []
        self.forms: list[RequestForm | None] = []
        self.output = ModelOutputAccumulator(answer_bytes_max=1_000)
        self.router = ProviderRouter([ScriptedProvider(self._answer)])

    async def _answer(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        self.forms.append(request.form)
        for part in self.parts.pop(0):
            if isinstance(part, ProviderError):
                raise part
            yield part

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def play(self) -> str:
        route = self.router.route_of("scripted/model")
        invocation = route.invocation
        request = LlmRequest(
            invocation=invocation, context=(ModelInputMessage(content="hello", seq=1),)
        )
        policy = RetryPolicy(random=lambda: 0.0, sleep=self._sleep)
        await call_quietly(request, self.output, route=route, policy=policy)
        return self.output.text


async def test_an_unavailable_provider_is_called_again() -> None:
    script = Script([DOWN], [DOWN], [TextPiece(text="here"), Stopped(reason="end")])
    assert await script.play() == "here"
    assert script.waits == [0.5, 1.0]
    assert script.router.route_of("scripted/model").metrics.retries == 2


async def test_retries_are_limited() -> None:
    script = Script([DOWN], [DOWN], [DOWN])
    with pytest.raises(ProviderUnavailable):
        await script.play()


async def test_there_is_no_retry_after_the_first_text() -> None:
    script = Script([TextPiece(text="he"), DOWN])
    with pytest.raises(ProviderUnavailable):
        await script.play()
    assert script.waits == []


async def test_an_answer_without_a_stop_reason_is_cut() -> None:
    with pytest.raises(AnswerCut):
        await Script([TextPiece(text="he")]).play()


@pytest.mark.parametrize("reason", ["length", "refusal", "content_filter", "tool_calls"])
async def test_an_answer_that_stopped_before_its_end_is_refused(reason: str) -> None:
    with pytest.raises(ProviderRefused, match=reason):
        await Script([TextPiece(text="Never delete the"), Stopped(reason=reason)]).play()


async def test_a_stream_that_ends_before_the_first_text_is_retried() -> None:
    script = Script(
        [UsageReport(input_tokens=1, output_tokens=0)],
        [TextPiece(text="here"), Stopped(reason="end")],
    )
    assert await script.play() == "here"
    assert script.waits == [0.5]


OTHER_API = RequestForm(specification="other")
WRONG_API = ProviderRefused("there is no such API", wrong_api=True, instead=OTHER_API)
ANSWER: list[ModelOutputDelta | ProviderError] = [TextPiece(text="here"), Stopped(reason="end")]


async def test_a_request_refused_in_one_form_is_sent_in_the_other_at_once() -> None:
    script = Script([WRONG_API], ANSWER)
    assert await script.play() == "here"
    assert script.forms == [None, OTHER_API]
    metrics = script.router.route_of("scripted/model").metrics
    assert (script.waits, metrics.calls, metrics.retries) == ([], 1, 0)


async def test_of_two_refusals_of_the_api_the_first_is_raised() -> None:
    script = Script([WRONG_API], [ProviderRefused("nor this one", wrong_api=True)])
    with pytest.raises(ProviderRefused, match="there is no such API"):
        await script.play()


async def test_a_refusal_of_the_other_form_for_another_reason_is_raised() -> None:
    script = Script([WRONG_API], [ProviderRefused("too hot")])
    with pytest.raises(ProviderRefused, match="too hot"):
        await script.play()


async def test_a_retry_begins_with_the_providers_own_form_again() -> None:
    script = Script([WRONG_API], [DOWN], [WRONG_API], ANSWER)
    assert await script.play() == "here"
    assert script.forms == [None, OTHER_API, None, OTHER_API]
    assert script.waits == [0.5]
