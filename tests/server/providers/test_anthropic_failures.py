"""Every way Claude can fail: the right error, and never a completed answer."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import format_datetime

import anyio
import pytest
from tests.server.conversations import Stage, conversation_of
from tests.server.providers.anthropic_stage import (
    BUDGETED,
    THEN,
    accumulated,
    anthropic_provider,
    deltas_of,
    received_until_failure,
    request,
)
from tests.server.services import make_services
from tests.vendors import faults
from tests.vendors.answers import Answer, Call, Text, Thinking, ToolCall
from tests.vendors.emulator import Emulator, emulator

from nplt_server.errors import ProviderUnauthorized, ProviderUnavailable
from nplt_server.providers import Patience, Stopped
from nplt_server.providers.client import VendorProvider

KEY = "sk-canary-0123456789"
ANSWER = Answer(parts=(Thinking("let me see"), Text("It is blue, mostly.")))


@pytest.fixture
async def vendors() -> AsyncIterator[Emulator]:
    async with emulator(lambda call: ANSWER, key=KEY) as opened:
        yield opened


@pytest.fixture
async def claude(vendors: Emulator) -> AsyncIterator[VendorProvider]:
    provider = anthropic_provider(models=(BUDGETED,), key=KEY, base_url=vendors.anthropic_url)
    yield provider
    await provider.aclose()


@asynccontextmanager
async def staged(provider: VendorProvider) -> AsyncIterator[Stage]:
    """A real conversation with it."""
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, provider)
        profile = services.histories.default
        yield Stage(conversation_of("s1", user="local", services=services, profile=profile))
        tasks.cancel_scope.cancel()


FAULTS: dict[str, faults.Fault] = {
    "429": faults.Status(status=429, retry_after="7"),
    "500": faults.Status(status=500),
    "529": faults.Status(status=529),
    "hang up": faults.HangUp(),
    "cut at once": faults.Cut(after=0),
    "cut": faults.Cut(after=4),
    "cut before its last event": faults.Cut(after=99),
    "error event": faults.ErrorEvent(after=4),
    "error event at once": faults.ErrorEvent(after=0),
    "broken": faults.BrokenJson(after=4),
    "broken at its end": faults.BrokenJson(after=99),
    "no end": faults.NoEnd(),
    "no very end": faults.NoEnd(stop_sent=True),
}
SILENT = ("no end", "no very end")  # the stream just ends; whoever hears it must notice


@pytest.mark.parametrize("name", FAULTS)
async def test_no_fault_looks_like_an_answer(
    vendors: Emulator, claude: VendorProvider, name: str
) -> None:
    vendors.fail_next(FAULTS[name])
    output, error = await received_until_failure(claude, request())
    assert not any(isinstance(delta, Stopped) for delta in output)
    if name in SILENT:
        assert error is None
    else:
        assert isinstance(error, ProviderUnavailable)
        assert error.retry_after == (7.0 if name == "429" else None)
        assert error.before_first_token == (not accumulated(output).reasoning)
    # And it can be asked again.
    assert isinstance((await deltas_of(claude, request()))[-1], Stopped)


async def test_a_model_that_falls_silent_is_given_up(vendors: Emulator) -> None:
    vendors.fail_next(faults.Stall(after=4))
    provider = anthropic_provider(
        models=(BUDGETED,),
        key=KEY,
        base_url=vendors.anthropic_url,
        patience=Patience(gap_seconds=0.1),
    )
    output, error = await received_until_failure(provider, request())
    vendors.release()
    assert not any(isinstance(delta, Stopped) for delta in output)
    assert isinstance(error, ProviderUnavailable)
    assert error.timed_out
    assert not error.before_first_token
    await provider.aclose()


async def test_a_model_that_never_begins_is_given_up(vendors: Emulator) -> None:
    vendors.fail_next(faults.Stall(after=1))
    provider = anthropic_provider(
        models=(BUDGETED,),
        key=KEY,
        base_url=vendors.anthropic_url,
        patience=Patience(first_token_seconds=0.1),
    )
    with pytest.raises(ProviderUnavailable) as caught:
        await deltas_of(provider, request())
    vendors.release()
    assert caught.value.timed_out
    assert caught.value.before_first_token
    await provider.aclose()


async def test_a_date_to_come_back_at_is_understood(
    vendors: Emulator, claude: VendorProvider
) -> None:
    vendors.fail_next(faults.Status(status=429, retry_after=format_datetime(THEN, usegmt=True)))
    with pytest.raises(ProviderUnavailable) as caught:
        await deltas_of(claude, request())
    assert caught.value.retry_after == 0.0  # long past


async def test_connection_refused_is_unavailable(vendors: Emulator, claude: VendorProvider) -> None:
    await vendors.close()
    with pytest.raises(ProviderUnavailable, match="can't be reached"):
        await deltas_of(claude, request())
    await vendors.open()


async def test_the_key_is_in_no_log_and_no_error(
    vendors: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    requests: list[str] = []
    wrong = KEY[:-1] + "x"
    for key, fault in ((wrong, None), (KEY, faults.Status(status=500)), (KEY, faults.HangUp())):
        provider = anthropic_provider(models=(BUDGETED,), key=key, base_url=vendors.anthropic_url)
        vendors.fail_next(*[fault] if fault else [])
        _, error = await received_until_failure(provider, request())
        assert error is not None
        assert isinstance(error, ProviderUnauthorized) == (key == wrong)
        requests += traceback.format_exception(error)
        await provider.aclose()
    assert KEY[:-1] not in caplog.text + "".join(requests)


@pytest.mark.parametrize("name", ["cut", "error event", "broken", *SILENT])
async def test_a_turn_that_fails_ends_once_and_the_next_one_is_fine(
    vendors: Emulator, claude: VendorProvider, name: str
) -> None:
    vendors.script = lambda call: Answer(parts=(Text("It is blue, mostly."),))
    async with staged(claude) as stage:
        vendors.fail_next(FAULTS[name])
        failed = await stage.play("why is the sky blue?")
        fine = await stage.play("and now?")
    assert [failed.state, fine.state] == ["failed", "completed"]
    assert len(stage.finished) == 2
    assert vendors.rejections == []


async def test_turns_with_tools_and_thinking_go_round_in_a_real_conversation(
    vendors: Emulator, claude: VendorProvider
) -> None:
    def think_and_look(call: Call) -> Answer:
        last = call.body["messages"][-1]["content"]
        if last[0]["type"] == "tool_result":
            return ANSWER
        return Answer(parts=(Thinking("the time, then"), ToolCall("now"), ToolCall("now")))

    vendors.script = think_and_look
    async with staged(claude) as stage:
        states = [(await stage.play(f"question {turn}")).state for turn in range(4)]
    assert states == ["completed"] * 4
    assert vendors.rejections == []
    sent = vendors.received[-1].body
    assert isinstance(sent, dict)
    thoughts = [block for message in sent["messages"] for block in message["content"]]
    assert sum(block["type"] == "thinking" for block in thoughts) == 7
