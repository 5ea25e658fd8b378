"""A call that fails before its first token is mended where that can be done, and told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.conversations import Stage, conversation_of
from tests.server.services import make_services

from nplt_protocol.errors import RequestError
from nplt_protocol.messages import AgentThought, Prompt, Receipt, TurnFinished, TurnStarted
from nplt_server.conversations.services import ContextServices
from nplt_server.errors import (
    NoSuchModel,
    ProviderError,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
)
from nplt_server.providers import (
    LlmRequest,
    ModelCatalog,
    ModelFacts,
    ModelOutputDelta,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.providers.breaker import FAILURES_MAX, OPEN_SECONDS_MAX
from nplt_server.providers.offline import ScriptedProvider
from nplt_server.providers.retries import RetryPolicy
from nplt_server.providers.router import ProviderRouter
from nplt_server.tokens import CharacterCounter, TokenCounting
from nplt_storage.entries import ModelInputEntry, ModelOutputEntry
from nplt_storage.messages import model_name

ROLES = {"planner": "b/model"}
DOWN = ProviderUnavailable("nobody home")
TOO_LARGE = RequestTooLarge("too large")
Trouble = ProviderError | None


class Cast:
    """Three providers with two models each; what they are to do is said beforehand, and
    what was asked of them is remembered. Whoever was told nothing answers."""

    def __init__(self, context_services: ContextServices | None, fallback: tuple[str, ...]) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.requests: list[LlmRequest] = []
        self.waits: list[float] = []
        self.troubles: dict[str, list[Trouble]] = {}
        self.context = context_services
        self.router = ProviderRouter(
            [
                ScriptedProvider(self._answer, provider_id=name, models=("model", "other"))
                for name in "abc"
            ],
            roles=ROLES,
            fallback=fallback,
            retries=RetryPolicy(random=lambda: 0.5, sleep=self._sleep),
            clock=lambda: self.now,
        )
        self.wait: Callable[[], anyio.Event] | None = None
        self.stage: Stage

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.wait is not None:
            await self.wait().wait()

    async def _answer(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        name = request.invocation.provider
        self.asked.append(name)
        self.requests.append(request)
        troubles = self.troubles.get(name, [])
        trouble = troubles.pop(0) if troubles else None
        if trouble is not None:
            raise trouble
        last = request.context[-1]
        if "use a tool" in str(last):
            yield ToolCallPiece(index=0, tool_name="now", arguments="{}")
        else:
            yield TextPiece(text=f"{name} answers")
        yield UsageReport(input_tokens=10, output_tokens=3)
        yield Stopped(reason="end")

    async def play(self, text: str = "hello", **how: str) -> TurnFinished:
        receipts: list[Receipt] = []
        prompt = Prompt(text=text, model=how.get("model"), role=how.get("role"))
        await self.stage.conversation.accept(prompt, receipt=receipts.append)
        await self.stage.conversation.activity.quiet()
        (finished,) = [e for e in self.stage.finished if e.turn_id == receipts[0].turn_id]
        return finished

    @property
    def reasons(self) -> list[str]:
        return [
            event.content or ""
            for event in self.stage.ear.received
            if isinstance(event, AgentThought) and event.type == "retrying"
        ]

    @property
    def answered_by(self) -> str:
        answer = self.stage.conversation.history.entries[-1]
        assert isinstance(answer, ModelOutputEntry)
        assert answer.invocation is not None
        return model_name(answer.invocation)


@asynccontextmanager
async def cast(
    *, context_services: ContextServices | None = None, fallback: tuple[str, ...] = ()
) -> AsyncIterator[Cast]:
    played = Cast(context_services, fallback)
    async with anyio.create_task_group() as tasks:
        services = make_services(
            tasks,
            ScriptedProvider(played._answer),
            context_services=context_services,
            router=played.router,
        )
        played.stage = Stage(
            conversation_of(
                "s1", user="local", services=services, profile=services.histories.default
            )
        )
        yield played
        tasks.cancel_scope.cancel()


# Asked again


async def test_an_unavailable_provider_is_retried_and_the_retry_is_an_event() -> None:
    async with cast() as play:
        play.troubles["a"] = [DOWN, ProviderUnavailable("busy (429)", retry_after=7.0)]
        assert (await play.play()).state == "completed"
        assert play.waits == [0.75, 7.25]
        assert play.reasons == [
            "nobody home; a/model is asked again in 0.8 s (attempt 2 of 3)",
            "busy (429); a/model is asked again in 7.2 s (attempt 3 of 3)",
        ]
        assert play.router.route_of("a/model").metrics.retries == 2


async def test_after_two_retries_the_turn_fails() -> None:
    async with cast() as play:
        play.troubles["a"] = [DOWN] * 9
        finished = await play.play()
        assert finished.error == {"code": "provider_unavailable", "message": "nobody home"}
        assert play.asked == ["a"] * 3


async def test_retry_after_longer_than_the_turn_fails_at_once_and_names_the_time() -> None:
    async with cast() as play:
        play.troubles["a"] = [ProviderUnavailable("busy", retry_after=90.0)]
        finished = await play.play()
        assert finished.error is not None
        assert finished.error["retry_after"] == 90.0
        assert play.waits == []


async def test_a_later_call_of_a_turn_is_retried_too() -> None:
    async with cast() as play:
        play.troubles["a"] = [None, DOWN]
        assert (await play.play("use a tool")).state == "completed"
        assert play.asked == ["a", "a", "a"]


async def test_a_cancel_ends_the_retry_delay_at_once() -> None:
    async with cast() as play:
        waiting = anyio.Event()

        def wait() -> anyio.Event:
            waiting.set()
            return anyio.Event()

        play.wait = wait
        play.troubles["a"] = [DOWN]
        receipt = await play.stage.prompt()
        await waiting.wait()
        assert play.stage.conversation.cancel(receipt.turn_id)
        await play.stage.conversation.activity.quiet()
        assert play.stage.finished[0].state == "interrupted"
        assert play.asked == ["a"]


# Another one is asked


@pytest.mark.parametrize(
    ("trouble", "times"),
    [
        (DOWN, 3),
        (ProviderUnavailable("overloaded (529)", reason="overloaded"), 3),
        (ProviderUnavailable("did not begin", timed_out=True), 1),
        (ProviderUnavailable("busy", retry_after=90.0, reason="rate_limited"), 1),
    ],
)
async def test_a_fallback_answers_for_an_unavailable_model_and_the_entry_names_both(
    trouble: ProviderError, times: int
) -> None:
    async with cast(fallback=("b/model",)) as play:
        play.troubles["a"] = [trouble] * 3
        finished = await play.play()
        assert finished.state == "completed"
        assert play.asked == ["a"] * times + ["b"]
        assert play.answered_by == "b/model"
        assert play.reasons[-1] == f"a/model: {trouble}; b/model is asked instead"
        started = [e.model for e in play.stage.ear.received if isinstance(e, TurnStarted)]
        assert started == ["a/model"]
        assert play.router.route_of("a/model").metrics.fail_overs == 1
        instead = {"model": "a/model", "reason": trouble.reason, "message": trouble.sentence}
        answer = play.stage.conversation.history.entries[-1]
        assert isinstance(answer, ModelOutputEntry)
        assert (answer.fallback_from, finished.fallback_from) == (instead, instead)


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (ProviderUnauthorized("wrong key"), None),
        (ProviderRefused("a bad request"), None),
        (NoSuchModel("never heard of it"), "no_such_model"),
        (ProviderUnauthorized("no credit left", reason="no_credit"), "no_credit"),
    ],
)
async def test_a_fallback_answers_only_for_the_reasons_in_the_settings(
    trouble: ProviderError, reason: str | None
) -> None:
    async with cast(fallback=("b/model",)) as play:
        play.troubles["a"] = [trouble]
        finished = await play.play()
        assert (finished.state, finished.fallback_from) == ("failed", None)
        if reason is not None:
            play.router.fallback_on = frozenset((reason,))
            play.troubles["a"] = [trouble]
            assert (await play.play()).state == "completed"


def _down(*, of_provider: bool) -> ProviderUnavailable:
    return ProviderUnavailable("nobody home", of_provider=of_provider)


@pytest.mark.parametrize(
    ("trouble", "instead"),
    [
        (_down(of_provider=False), "a/other"),
        (_down(of_provider=True), "b/model"),
    ],
)
async def test_a_provider_wide_failure_skips_fallbacks_of_the_same_provider(
    trouble: ProviderError, instead: str
) -> None:
    async with cast(fallback=("a/other", "b/model")) as play:
        play.troubles["a"] = [trouble] * 3
        assert (await play.play()).state == "completed"
        assert play.answered_by == instead


async def test_a_fallback_has_retries_and_shortening_of_its_own() -> None:
    async with cast(fallback=("b/model",)) as play:
        for number in range(8):
            await play.play(f"prompt {number} " + "word " * 400)
        play.asked.clear()
        play.troubles = {"a": [TOO_LARGE, DOWN, DOWN, DOWN], "b": [DOWN, DOWN, TOO_LARGE]}
        assert (await play.play()).state == "completed"
        assert play.asked == ["a"] * 4 + ["b"] * 4


async def test_inside_a_turn_the_model_is_fixed() -> None:
    async with cast(fallback=("b/model",)) as play:
        play.troubles["a"] = [None, *[DOWN] * 3]
        assert (await play.play("use a tool")).state == "failed"
        assert "b" not in play.asked


async def test_a_refusal_causes_no_fallback() -> None:
    async with cast(fallback=("b/model",)) as play:
        play.troubles["a"] = [ProviderRefused("no")]
        assert (await play.play()).state == "failed"
        assert play.asked == ["a"]


async def test_an_open_breaker_fails_over_at_once() -> None:
    async with cast(fallback=("b/model",)) as play:
        breaker = play.router.breakers["a"]
        for _ in range(FAILURES_MAX):
            breaker.failed(breaker.admit())
        assert (await play.play()).state == "completed"
        assert play.asked == ["b"]
        assert play.waits == []


async def test_a_fallback_gets_a_context_that_fits_its_own_window() -> None:
    small = ModelFacts(context_tokens=2_048, output_tokens=512)
    context_services = ContextServices(
        counting=TokenCounting(CharacterCounter()), models=ModelCatalog({"b/model": small})
    )
    async with cast(context_services=context_services, fallback=("b/model",)) as play:
        await play.play("word " * 1_500)
        play.troubles["a"] = [DOWN] * 3
        assert (await play.play("and now?")).state == "completed"
        shown_to_a, shown_to_b = play.requests[-2:]
        assert shown_to_b.answer_tokens_max == 512
        assert len(str(shown_to_b.context[:])) < len(str(shown_to_a.context[:])) / 2


async def test_a_fallback_whose_window_is_too_small_is_skipped() -> None:
    tiny = ModelFacts(context_tokens=4, output_tokens=2)
    context_services = ContextServices(
        counting=TokenCounting(CharacterCounter()), models=ModelCatalog({"b/model": tiny})
    )
    async with cast(context_services=context_services, fallback=("b/model", "c/model")) as play:
        play.troubles["a"] = [DOWN] * 3
        assert (await play.play()).state == "completed"
        assert play.asked == ["a", "a", "a", "c"]


# Too large


async def test_a_context_that_is_too_large_is_shortened_and_resent_once() -> None:
    async with cast() as play:
        for number in range(8):
            await play.play(f"prompt {number} " + "word " * 400)
        play.troubles["a"] = [RequestTooLarge("too large")]
        assert (await play.play("and now?")).state == "completed"
        before, after = play.requests[-2:]
        assert len(str(after.context[:])) < 0.7 * len(str(before.context[:]))
        assert "too large; a/model is asked again" in play.reasons[0]


async def test_a_window_learned_from_a_refusal_holds_for_the_next_turns() -> None:
    async with cast() as play:
        for number in range(8):
            await play.play(f"prompt {number} " + "word " * 400)
        play.troubles["a"] = [RequestTooLarge("too large")]
        await play.play("and now?")
        learned = len(str(play.requests[-1].context[:]))
        await play.play("and now?")
        assert len(str(play.requests[-1].context[:])) < 1.1 * learned
        assert len(play.reasons) == 1


async def test_a_minimal_context_that_is_too_large_fails_and_names_the_setting() -> None:
    async with cast() as play:
        await play.play("word " * 400)
        play.asked.clear()
        play.troubles["a"] = [TOO_LARGE] * 9
        finished = await play.play()
        assert finished.error is not None
        assert finished.error["code"] == "too_large"
        assert "models.a/model.context_tokens" in str(finished.error["message"])
        assert len(play.asked) == 4
        assert play.requests[-1].answer_tokens_max == 294  # of 8,192
        play.troubles["a"] = []
        await play.play()
        assert play.requests[-1].answer_tokens_max == 8_192  # it was not the size


async def test_a_window_named_by_the_provider_bounds_context_and_output() -> None:
    context_services = ContextServices(counting=TokenCounting(CharacterCounter()))
    async with cast(context_services=context_services) as play:
        play.troubles["a"] = [RequestTooLarge("too large", window_tokens=8_192)]
        assert (await play.play()).state == "completed"
        assert [request.answer_tokens_max for request in play.requests] == [8_192, 2_048]
        assert context_services.models.facts("a/model").budget_tokens == 6_144


# All of it at once

TROUBLES: list[Trouble] = [
    None,
    DOWN,
    ProviderUnavailable("slow", timed_out=True),
    ProviderUnavailable("busy", retry_after=7.0),
    ProviderUnavailable("very busy", retry_after=90.0),
    ProviderUnauthorized("wrong key"),
    ProviderRefused("no", content_refused=True),
    ProviderRefused("not the first", entry_seqs=(1,), content_refused=True),
    RequestTooLarge("too large"),
]


@settings(max_examples=20)
@given(
    st.fixed_dictionaries({name: st.lists(st.sampled_from(TROUBLES), max_size=5) for name in "abc"})
)
def test_any_sequence_of_failures_ends_a_turn_once_with_an_event_per_retry(
    troubles: dict[str, list[Trouble]],
) -> None:
    async def play_through() -> None:
        async with cast(fallback=("b/model", "c/model")) as play:
            await play.play("first")
            play.asked.clear()
            play.troubles = troubles
            finished = await play.play("second")
            # Each: two retries and three shorter ones; once with less, and two others.
            assert len(play.asked) <= 1 + len(play.reasons) <= 1 + 3 * 5 + 1 + 2
            assert play.asked == sorted(play.asked)
            if finished.state == "completed":
                assert play.answered_by == f"{play.asked[-1]}/model"
            play.troubles = {}
            play.now += OPEN_SECONDS_MAX
            assert (await play.play("third")).state == "completed"

    anyio.run(play_through)


# Roles


async def test_a_role_selects_the_model_of_its_turn_only() -> None:
    async with cast() as play:
        await play.play(role="planner")
        assert play.answered_by == "b/model"
        await play.play()
        assert play.answered_by == "a/model"
        await play.play(role="planner", model="c/model")
        assert play.answered_by == "c/model"


async def test_a_prompt_keeps_its_role_and_the_model_that_played_it() -> None:
    async with cast() as play:
        await play.play(role="planner")
        prompt = play.stage.conversation.history.entries[0]
        assert isinstance(prompt, ModelInputEntry)
        assert (prompt.model, prompt.metadata) == ("b/model", {"role": "planner"})


async def test_an_unknown_role_is_refused_before_anything_is_stored() -> None:
    async with cast() as play:
        with pytest.raises(RequestError, match="planner"):
            await play.play(role="reviewer")
        assert not play.stage.conversation.record.is_stored
