"""Past its deadline a server calls no model and no tool, unless it has reclaimed the record."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import pytest
from tests.server.conversations import Stage, conversation_of
from tests.server.failing_store import FailingStore
from tests.server.services import Clock, make_services, model_of

from nplt_protocol import JsonObject
from nplt_protocol.messages import SessionEvent
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    Stopped,
    TextPiece,
    ToolCallPiece,
)
from nplt_server.tools import Tool, ToolDescription, ToolHost
from nplt_storage.memory import MemoryStore
from nplt_storage.store import ConversationStore


class Counted:
    """A model that calls a tool once, and the tool."""

    def __init__(self) -> None:
        self.model_calls = 0
        self.tool_runs = 0

    async def model(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        self.model_calls += 1
        if self.model_calls == 1:
            yield ToolCallPiece(index=0, tool_name="count", arguments="{}")
            yield Stopped(reason="tool_calls")
        else:
            yield TextPiece(text="counted")
            yield Stopped(reason="end")

    @property
    def tool(self) -> Tool:
        async def run(arguments: JsonObject, host: ToolHost) -> str:
            self.tool_runs += 1
            return "one"

        return Tool(
            description=ToolDescription(
                name="count", description="Counts.", parameters={}, tool_class="read"
            ),
            run=run,
        )


@asynccontextmanager
async def played(counted: Counted, store: FailingStore) -> AsyncIterator[Stage]:
    store.is_leased = True
    async with anyio.create_task_group() as tasks:
        services = make_services(
            tasks,
            model_of(counted.model),
            store=cast(ConversationStore, store),
            tools=(counted.tool,),
        )
        profile = services.histories.default
        yield Stage(conversation_of("s1", user="local", services=services, profile=profile))
        tasks.cancel_scope.cancel()


LAPSES = [("model_input", 0, 0), ("model_output", 1, 0)]


@pytest.mark.parametrize(("lapses_after", "calls", "runs"), LAPSES)
async def test_an_owner_with_a_lapsed_lease_that_was_overtaken_calls_no_model_and_no_tool(
    lapses_after: str, calls: int, runs: int
) -> None:
    store, counted = FailingStore(MemoryStore(Clock())), Counted()
    store.lapses_after, store.is_overtaken = lapses_after, True
    async with played(counted, store) as stage:
        await stage.prompt()
        await stage.conversation.activity.quiet()
        assert stage.conversation.record.is_stale
        events = [each.event for each in stage.ear.received if isinstance(each, SessionEvent)]
        assert "lagged" in events
    assert (counted.model_calls, counted.tool_runs) == (calls, runs)


@pytest.mark.parametrize("lapses_after", [each for each, _, _ in LAPSES])
async def test_an_owner_with_a_lapsed_lease_reclaims_a_record_that_no_one_acquired(
    lapses_after: str,
) -> None:
    store, counted = FailingStore(MemoryStore(Clock())), Counted()
    store.lapses_after = lapses_after
    async with played(counted, store) as stage:
        assert (await stage.play()).state == "completed"
    assert (counted.model_calls, counted.tool_runs) == (2, 1)
