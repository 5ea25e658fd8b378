"""What a call was billed for is in USAGE, also if there was nothing to remember of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from tests.server.conversations import Stage, staged
from tests.server.services import Model

from nplt_protocol.messages import UsageAccount
from nplt_server.context.messages import ToolResultsMessage
from nplt_server.conversations.services import ContextServices
from nplt_server.errors import ProviderUnavailable
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.tokens import CharacterCounter, TokenCounting

SAID = "some words that were said before it was cancelled"
USED = UsageReport(input_tokens=1_000, output_tokens=50)


async def nothing(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield USED
    yield Stopped(reason="end")


async def breaks_off(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield USED
    raise ProviderUnavailable("went away")


async def thinks(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield ReasoningPiece(text="hm")
    yield USED
    await anyio.sleep_forever()


async def spells(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield USED
    yield ToolCallPiece(index=0, tool_name="now", arguments="{")
    await anyio.sleep_forever()


async def calls_then_thinks(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield USED
    if isinstance(request.context[-1], ToolResultsMessage):
        await anyio.sleep_forever()
    yield ToolCallPiece(index=0, tool_name="now", arguments="{}")
    yield Stopped(reason="tool_calls")


async def speaks(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    """Usage comes last, as through chat completions."""
    yield TextPiece(text=SAID)
    await anyio.sleep_forever()


async def streams_more_than_it_counts(
    request: LlmRequest,
) -> AsyncGenerator[ModelOutputDelta, None]:
    """The input is told first, as Anthropic does, with a first word of output."""
    yield UsageReport(input_tokens=1_000, output_tokens=1, cache_write_tokens=900)
    yield TextPiece(text=SAID)
    await anyio.sleep_forever()


async def is_silent(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    await anyio.sleep_forever()
    yield Stopped(reason="end")


@asynccontextmanager
async def _played(model: Model) -> AsyncIterator[tuple[Stage, UsageAccount]]:
    """Whoever does not come to an end is cancelled."""
    context_services = ContextServices(counting=TokenCounting(CharacterCounter()))
    async with staged(model, context_services=context_services) as stage:
        conversation = stage.conversation
        receipt = await stage.prompt()
        await anyio.wait_all_tasks_blocked()
        conversation.cancel(receipt.turn_id)
        await conversation.activity.quiet()
        yield stage, await conversation.get_token_usage()


@pytest.mark.parametrize("model", [nothing, breaks_off, thinks, spells])
async def test_a_call_without_text_is_billed_to_its_model(model: Model) -> None:
    async with _played(model) as (stage, usage):
        assert stage.finished[-1].usage == USED.as_json()
        (billed,) = stage.conversation.row.billed  # type: ignore[union-attr]
        assert billed == (stage.conversation.model, 1, 1_000, 50, 0)
        assert usage.billed["input_tokens"] == 1_000
        assert usage.occupancy["tokens"] == 1_050


async def test_a_call_that_is_remembered_is_not_billed_again_by_the_fault() -> None:
    async with _played(calls_then_thinks) as (stage, usage):
        tokens = stage.finished[-1].usage["input_tokens"]
        assert usage.billed["input_tokens"] == tokens == 2_000
        assert usage.billed["calls"] == 2


@pytest.mark.parametrize(
    ("model", "text"), [(speaks, SAID), (streams_more_than_it_counts, SAID), (is_silent, "")]
)
async def test_a_cancelled_call_is_billed_by_an_estimate_of_what_it_streamed(
    model: Model, text: str
) -> None:
    async with _played(model) as (stage, usage):
        counted = stage.finished[-1].usage
        assert counted["estimated"] is True
        assert counted["output_tokens"] == CharacterCounter().count(text)
        assert (counted["input_tokens"] == 1_000) == (model is streams_more_than_it_counts)
        assert counted["input_tokens"]
        assert usage.billed["calls"] == usage.billed["estimated_calls"] == 1
        assert usage.billed["input_tokens"] == counted["input_tokens"]
        kept = usage.billed.get("cache_write_tokens")
        assert kept == (900 if model is streams_more_than_it_counts else None)
