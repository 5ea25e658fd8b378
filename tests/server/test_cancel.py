"""Cancels, each at another moment: no call is ever left without its result."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator

import anyio
import anyio.lowlevel
from tests.server.conversations import Stage, staged
from tests.server.services import Clock

from nplt_server.context.messages import ToolResultsMessage
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece, ToolCallPiece
from nplt_server.tools.builtin import now_tool
from nplt_server.widgets import default_widgets
from nplt_storage.entries import FaultEntry, ModelOutputEntry, ToolResultsEntry
from nplt_storage.history import ConversationHistory

CANCELS = 120
NOTE = '{"action": "append", "text": "x"}'


async def busy(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    """Talks, calls three tools of which one writes, talks, calls one more, talks."""
    steps = sum(isinstance(one, ToolResultsMessage) for one in request.context[-5:])
    yield TextPiece(text="let me ")
    await anyio.lowlevel.checkpoint()
    yield TextPiece(text="see")
    if steps == 0:
        yield ToolCallPiece(index=0, tool_name="now", arguments='{"time')
        await anyio.lowlevel.checkpoint()
        yield ToolCallPiece(index=0, arguments='zone": "UTC"}')
        yield ToolCallPiece(index=1, tool_name="notebook", arguments=NOTE)
        yield ToolCallPiece(index=2, tool_name="nowhere")
    elif steps == 1:
        yield ToolCallPiece(index=0, tool_name="now", arguments="{}")
    await anyio.lowlevel.checkpoint()
    yield Stopped(reason="tool_calls" if steps < 2 else "end")


def calls_without_results(history: ConversationHistory) -> list[str]:
    asked = {
        call.tool_call_id
        for entry in history.entries
        if isinstance(entry, ModelOutputEntry)
        for call in entry.tool_calls
    }
    answered = {
        result.tool_call_id
        for entry in history.entries
        if isinstance(entry, ToolResultsEntry)
        for result in entry.results
    }
    return sorted(asked - answered)


async def cancel_at(stage: Stage, moment: int) -> str:
    receipt = await stage.prompt()
    for _ in range(moment):
        await anyio.lowlevel.checkpoint()
    stage.conversation.cancel(receipt.turn_id)
    await stage.conversation.activity.quiet()
    (finished,) = [event for event in stage.finished if event.turn_id == receipt.turn_id]
    history = stage.conversation.history
    assert history.turn_state(receipt.turn_id) == finished.state
    assert history.open_tool_calls(receipt.turn_id) == ()
    stage.ear.received.clear()
    return finished.state


async def test_a_cancel_at_any_moment_leaves_no_call_without_its_result() -> None:
    dice = random.Random(11)
    tools = (now_tool(Clock()), *(tool for one in default_widgets() for tool in one.tools))
    async with staged(busy, tools=tools, allowed=("notebook",)) as stage:
        states = [await cancel_at(stage, dice.randrange(120)) for _ in range(CANCELS)]
        assert calls_without_results(stage.conversation.history) == []
        assert {*states} == {"completed", "interrupted"}
        assert (await stage.play("go on")).state == "completed"


async def test_a_turn_cancelled_in_the_queue_has_its_reason_in_event_and_record() -> None:
    goes_on = anyio.Event()

    async def slow(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        await goes_on.wait()
        yield TextPiece(text="done")
        yield Stopped(reason="end")

    async with staged(slow) as stage:
        await stage.prompt("first")
        waiting = await stage.prompt("second")
        assert stage.conversation.cancel(waiting.turn_id, "ada has changed her mind")
        goes_on.set()
        await stage.conversation.activity.quiet()
        (finished,) = [event for event in stage.finished if event.turn_id == waiting.turn_id]
        assert finished.error == {"code": "cancelled", "message": "ada has changed her mind"}
        (fault,) = [
            entry for entry in stage.conversation.history.entries if isinstance(entry, FaultEntry)
        ]
        assert (fault.turn_id, fault.content) == (waiting.turn_id, "ada has changed her mind")
