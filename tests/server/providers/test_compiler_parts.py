"""What only its own model understands goes back to it as it came, or not at all."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.server.providers.compiler_contexts import OTHER, OWN, asks, call, gives, result, thought

from nplt_server.context.messages import ContextMessage, ModelOutputMessage
from nplt_server.providers import OpaquePiece, ReasoningPiece, TextPiece
from nplt_server.providers.compiler import (
    AnswerBlock,
    AssistantStep,
    CompiledCall,
    CompiledContext,
    ContextCompiler,
    VendorRules,
)
from nplt_storage.entries import ModelInvocationDescriptor, OutputPart

SEAL = OpaquePiece(data={"signature": "sealed"})
CALLED = CompiledCall(call_id="a", tool_name="look", arguments_json="{}")
A_CALL = OutputPart(kind="call", size=0)


def text_part(size: int) -> OutputPart:
    return OutputPart(kind="text", size=size)


SIGNED = ModelOutputMessage(
    seq=7,
    content="I look.",
    reasoning="hm",
    tool_calls=(call("a"),),
    invocation=OWN,
    parts=thought(2, text_part(7), A_CALL),
)


def compiled(*messages: ContextMessage) -> CompiledContext:
    return ContextCompiler(VendorRules()).compile([asks("go"), *messages], origin=OWN)


def blocks(compiled: CompiledContext) -> list[AnswerBlock]:
    step = compiled.steps[1]
    assert isinstance(step, AssistantStep)
    return list(step.blocks)


def test_the_model_it_came_from_gets_every_part_back_in_its_place() -> None:
    sent = compiled(SIGNED, gives(result("a")))
    assert blocks(sent) == [ReasoningPiece(text="hm"), SEAL, TextPiece(text="I look."), CALLED]


@pytest.mark.parametrize(
    "speaker",
    [
        OTHER,
        None,
        ModelInvocationDescriptor(provider="q", specification="s", model="own"),
        ModelInvocationDescriptor(provider="p", specification="t", model="own"),
    ],
)
def test_sealed_reasoning_goes_to_no_other_model(speaker: ModelInvocationDescriptor | None) -> None:
    sent = compiled(replace(SIGNED, invocation=speaker), gives(result("a")))
    assert blocks(sent) == [TextPiece(text="I look."), CALLED]


@pytest.mark.parametrize(
    "changed",
    [
        replace(SIGNED, content="I look"),
        replace(SIGNED, content="I look\0"),
        replace(SIGNED, reasoning="hmm"),
        replace(SIGNED, reasoning="h\0"),
        replace(SIGNED, tool_calls=(call("a"), call("b"))),
        replace(SIGNED, parts=(*SIGNED.parts, A_CALL)),
        replace(SIGNED, parts=thought(2, text_part(8), text_part(-1), A_CALL)),
        replace(SIGNED, parts=thought(2, *SIGNED.parts[2:], data={"bad": "\ud800"})),
        replace(SIGNED, parts=(*SIGNED.parts, OutputPart(kind="opaque"))),
    ],
)
def test_parts_that_are_not_of_this_answer_are_left_out(changed: ModelOutputMessage) -> None:
    sent = compiled(changed, gives(result("a"), result("b")))
    assert not [each for each in blocks(sent) if isinstance(each, OpaquePiece | ReasoningPiece)]


def test_thoughts_before_arguments_that_were_repaired_still_go_back() -> None:
    sent = compiled(replace(SIGNED, tool_calls=(call("a", raw="{"),)), gives(result("a")))
    assert blocks(sent)[:2] == [ReasoningPiece(text="hm"), SEAL]


def test_thoughts_behind_arguments_that_were_repaired_do_not() -> None:
    behind = (A_CALL, *thought(2, text_part(7)))
    message = replace(SIGNED, tool_calls=(call("a", raw="{"),), parts=behind)
    sent = compiled(message, gives(result("a")))
    assert [type(each) for each in blocks(sent)] == [TextPiece, CompiledCall]


def test_blank_words_behind_the_thoughts_are_left_out_alone() -> None:
    sent = compiled(
        replace(SIGNED, content="\n\n", parts=thought(2, text_part(2), A_CALL)),
        gives(result("a")),
    )
    assert blocks(sent) == [ReasoningPiece(text="hm"), SEAL, CALLED]


def test_where_blank_words_are_left_out_the_others_stay_in_their_place() -> None:
    parts = thought(2, text_part(2), A_CALL, text_part(2))
    sent = compiled(replace(SIGNED, content="\n\nhi", parts=parts), gives(result("a")))
    assert blocks(sent) == [ReasoningPiece(text="hm"), SEAL, CALLED, TextPiece(text="hi")]


def test_blank_words_before_the_thoughts_take_these_with_them() -> None:
    """They can't be sent, and what is signed behind them was signed with them."""
    parts = (text_part(1), *thought(2, text_part(6), A_CALL))
    sent = compiled(replace(SIGNED, content="\nI look", parts=parts), gives(result("a")))
    assert blocks(sent) == [TextPiece(text="\nI look"), CALLED]


def test_empty_words_before_the_thoughts_take_nothing_away() -> None:
    """Some servers begin every answer with a text of no characters."""
    sent = compiled(replace(SIGNED, parts=(text_part(0), *SIGNED.parts)), gives(result("a")))
    assert blocks(sent)[:2] == [ReasoningPiece(text="hm"), SEAL]


def test_thoughts_that_led_to_nothing_are_left_out() -> None:
    parts = (*SIGNED.parts, *thought(3))
    sent = compiled(replace(SIGNED, reasoning="hm...", parts=parts), gives(result("a")))
    assert blocks(sent) == [ReasoningPiece(text="hm"), SEAL, TextPiece(text="I look."), CALLED]


def test_what_is_opaque_behind_the_last_words_stays() -> None:
    item = OutputPart(kind="opaque", data={"id": "item"})
    sent = compiled(replace(SIGNED, parts=(*SIGNED.parts, item)), gives(result("a")))
    assert blocks(sent)[-1] == OpaquePiece(data={"id": "item"})


def test_a_thought_without_words_keeps_its_seal() -> None:
    parts = thought(0, *SIGNED.parts[2:])
    sent = compiled(replace(SIGNED, reasoning="", parts=parts), gives(result("a")))
    assert blocks(sent)[:2] == [ReasoningPiece(text=""), SEAL]


def test_answers_that_become_one_lose_their_thoughts() -> None:
    first = replace(SIGNED, seq=6, tool_calls=(), parts=SIGNED.parts[:3])
    sent = compiled(first, SIGNED, gives(result("a")))
    assert [type(each) for each in blocks(sent)] == [TextPiece, CompiledCall]


def test_reasoning_without_parts_stands_before_the_words() -> None:
    sent = compiled(replace(SIGNED, parts=()), gives(result("a")))
    assert blocks(sent) == [ReasoningPiece(text="hm"), TextPiece(text="I look."), CALLED]
