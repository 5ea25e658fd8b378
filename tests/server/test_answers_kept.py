"""What was said is kept, whatever comes with it; what was not said to the end is not run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, MutableSequence
from typing import Any

import pytest
from tests.server.conversations import Stage, staged
from tests.server.services import Model

from nplt_protocol.json_text import JsonObject, JsonValue
from nplt_server.context.messages import Beginning
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
)
from nplt_server.tools import Tool, ToolDescription, ToolHost
from nplt_storage.entries import ModelOutputEntry, ToolResultsEntry


def saying(*deltas: ModelOutputDelta) -> Model:
    """Once; then it is content."""
    parts: list[list[ModelOutputDelta]] = [
        [*deltas],
        [TextPiece(text="done"), Stopped(reason="end")],
    ]

    async def model(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        for delta in parts.pop(0):
            yield delta

    return model


def last_output(stage: Stage) -> ModelOutputEntry:
    entry = stage.conversation.history.entries[-1]
    assert isinstance(entry, ModelOutputEntry)
    return entry


def nested(depth: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("odd", ["\ud83d", float("nan"), 2**70, nested(150), nested(2_000)])
async def test_opaque_vendor_state_that_can_not_be_stored_does_not_lose_the_answer(
    odd: Any,
) -> None:
    fine = OpaquePiece(data={"signature": "fine"})
    odd_one = OpaquePiece(data={"id": odd})
    thought = ReasoningPiece(text="hm")
    model = saying(thought, fine, odd_one, TextPiece(text="a long answer"), Stopped(reason="end"))
    async with staged(model) as stage:
        assert (await stage.play()).state == "completed"
        assert last_output(stage).content == "a long answer"
        assert last_output(stage).parts == ()  # half of the marks would be refused


async def test_an_unknown_stop_reason_does_not_lose_the_answer() -> None:
    async with staged(saying(TextPiece(text="said"), Stopped(reason="half \ud83d"))) as stage:
        assert (await stage.play()).state == "completed"
        assert last_output(stage).content == "said"


async def test_providers_get_a_context_that_they_can_not_change() -> None:
    contexts: list[object] = []

    async def model(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        contexts.append(request.context)
        yield TextPiece(text="a piece")
        yield Stopped(reason="pause" if len(contexts) % 2 else "end")

    async with staged(model) as stage:
        for _ in range(40):  # so long that the context is no longer copied
            assert (await stage.play()).state == "completed"
    kinds = {type(each) for each in contexts}
    assert kinds == {tuple, Beginning}
    assert not any(issubclass(kind, MutableSequence) for kind in kinds)


async def test_a_bug_during_an_answer_keeps_its_partial_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nothing_known: Any = object()
    async with staged(saying(TextPiece(text="said so far"), nothing_known)) as stage:
        finished = await stage.play()
        assert finished.error is not None
        assert (finished.state, finished.error["code"]) == ("failed", "internal")
        assert (last_output(stage).content, last_output(stage).state) == ("said so far", "failed")
        assert "failed" in caplog.text
        assert (await stage.play("go on")).state == "completed"


class Wiped:
    def __init__(self) -> None:
        self.ran: list[JsonObject] = []
        self.tool = Tool(
            description=ToolDescription(name="wipe", description="Wipes.", parameters={}),
            run=self._run,
        )

    async def _run(self, arguments: JsonObject, host: ToolHost) -> str:
        self.ran.append(arguments)
        return "wiped"


FIRST = ToolCallPiece(index=0, tool_name="wipe", arguments='{"what": "a"}')
LAST = ToolCallPiece(index=1, tool_name="wipe")  # all of it that had room


@pytest.mark.parametrize(
    ("reason", "ran"),
    [
        ("tool_calls", [{"what": "a"}, {}]),
        ("end", [{"what": "a"}, {}]),
        ("length", [{"what": "a"}]),
        ("refusal", []),
        ("content_filter", []),
        ("incomplete", []),
    ],
)
async def test_a_truncated_tool_call_is_not_run_and_the_model_gets_a_result(
    reason: str, ran: list[JsonObject]
) -> None:
    wiped = Wiped()
    model = saying(TextPiece(text="I will."), FIRST, LAST, Stopped(reason=reason))
    async with staged(model, tools=(wiped.tool,), allowed=("wipe",)) as stage:
        assert (await stage.play()).state == "completed"
        assert wiped.ran == ran
        (results,) = [
            entry
            for entry in stage.conversation.history.entries
            if isinstance(entry, ToolResultsEntry)
        ]
        not_run = [result.result for result in results.results if "not run" in result.result]
        assert len(not_run) == 2 - len(ran)
        assert all(reason in result for result in not_run)
