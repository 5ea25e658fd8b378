"""A tool that still runs when its turn is over changes nothing any more."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from tests.server.conversations import staged

from nplt_protocol import JsonObject
from nplt_server.context.messages import ToolResultsMessage
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece, ToolCallPiece
from nplt_server.tools import Tool, ToolDescription, ToolFailed, ToolHost


async def calls_once(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    if isinstance(request.context[-1], ToolResultsMessage):
        yield TextPiece(text="done")
        yield Stopped(reason="end")
    else:
        yield ToolCallPiece(index=0, tool_name="stay", arguments="{}")
        yield Stopped(reason="tool_calls")


async def test_its_changes_are_refused() -> None:
    hosts: list[ToolHost] = []

    async def stay(arguments: JsonObject, host: ToolHost) -> str:
        hosts.append(host)
        await host.update_notebook(lambda _: "in time")
        return "still here"

    described = ToolDescription(
        name="stay", description="Keeps its host.", parameters={}, tool_class="read"
    )
    async with staged(calls_once, tools=(Tool(description=described, run=stay),)) as stage:
        assert (await stage.play()).state == "completed"
        (host,) = hosts
        entries = len(stage.conversation.history.entries)
        with pytest.raises(ToolFailed, match="the turn is over"):
            await host.update_notebook(lambda _: "too late")
        with pytest.raises(ToolFailed, match="the turn is over"):
            await host.update_widget("todo", lambda state: {**state, "late": True})
        with pytest.raises(ToolFailed, match="the turn is over"):
            await host.keep_file("late.txt", "text/plain", b"too late")
        assert host.notebook == "in time"
        assert len(stage.conversation.history.entries) == entries
