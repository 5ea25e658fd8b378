"""What only its provider understands is kept where it stood, for the way back."""

from __future__ import annotations

import pytest

from nplt_server.errors import AnswerRejected
from nplt_server.providers import (
    ModelOutputDelta,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
)
from nplt_server.providers.accumulator import ModelOutputAccumulator
from nplt_storage.entries import ModelInvocationDescriptor, ModelOutputEntry, OutputPart

WHO = ModelInvocationDescriptor(provider="p", specification="s", model="m")


def received(*deltas: ModelOutputDelta) -> ModelOutputEntry:
    output = ModelOutputAccumulator(answer_bytes_max=1_000)
    for delta in (*deltas, Stopped(reason="end")):
        output.apply(delta)
    return output.entry(turn_id="t", call=0, invocation=WHO, new_call_id=lambda: "c")


def test_an_answer_without_opaque_pieces_has_no_parts() -> None:
    assert received(ReasoningPiece(text="hm"), TextPiece(text="yes")).parts == ()


def test_output_parts_have_the_order_in_which_the_deltas_arrived() -> None:
    entry = received(
        ReasoningPiece(text="h"),
        ReasoningPiece(text="m"),
        OpaquePiece(data={"signature": "a"}),
        TextPiece(text="let me"),
        TextPiece(text=" see"),
        ToolCallPiece(index=7, tool_name="now"),
        ReasoningPiece(text="well"),
        OpaquePiece(data={"signature": "b"}),
        ToolCallPiece(index=9, tool_name="then"),
        ToolCallPiece(index=7, arguments="{}"),
    )
    assert entry.parts == (
        OutputPart(kind="reasoning", size=2),
        OutputPart(kind="opaque", data={"signature": "a"}),
        OutputPart(kind="text", size=10),
        OutputPart(kind="call", size=0),
        OutputPart(kind="reasoning", size=4),
        OutputPart(kind="opaque", data={"signature": "b"}),
        OutputPart(kind="call", size=1),
    )
    assert (entry.content, entry.reasoning) == ("let me see", "hmwell")


@pytest.mark.parametrize(
    "deltas",
    [
        [TextPiece(text="x" * 1_001)],
        [ToolCallPiece(index=0, tool_name="x" * 1_001)],
        [ToolCallPiece(index=0, tool_name="x", arguments="y" * 1_001)],
        [ToolCallPiece(index=number, tool_name="x") for number in range(100)],
        [OpaquePiece(data={"signature": "x" * 1_001})],
    ],
)
def test_whatever_an_answer_is_made_of_its_size_is_bounded(deltas: list[ModelOutputDelta]) -> None:
    with pytest.raises(AnswerRejected):
        received(*deltas)
