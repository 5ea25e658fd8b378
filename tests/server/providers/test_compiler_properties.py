"""What holds of every compiled context, whatever it was made from."""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.server.providers.compiler_contexts import OTHER, OWN, asks, contexts, gives, result

from nplt_server.context.messages import (
    ContextMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.providers import OpaquePiece, ReasoningPiece, TextPiece
from nplt_server.providers.compiler import (
    AssistantStep,
    CompiledCall,
    CompiledContext,
    CompiledStep,
    ContextCompiler,
    UserStep,
    VendorRules,
)
from nplt_server.request_form import RequestForm
from nplt_storage.entries import ModelInvocationDescriptor, OutputPart, ToolCallRequest

RULES = VendorRules(text_characters_max=200)


def compiled_for(
    messages: list[ContextMessage], origin: ModelInvocationDescriptor = OWN
) -> CompiledContext:
    return ContextCompiler(RULES).compile(messages, origin=origin)


def answers(compiled: CompiledContext) -> list[AssistantStep]:
    return [step for step in compiled.steps if isinstance(step, AssistantStep)]


def seals_of(step: AssistantStep) -> list[OpaquePiece]:
    return [block for block in step.blocks if isinstance(block, OpaquePiece)]


def parts_of(step: AssistantStep) -> tuple[OutputPart, ...]:
    parts: list[OutputPart] = []
    for block in step.blocks:
        match block:
            case TextPiece():
                parts.append(OutputPart(kind="text", size=len(block.text)))
            case ReasoningPiece():
                parts.append(OutputPart(kind="reasoning", size=len(block.text)))
            case OpaquePiece():
                parts.append(OutputPart(kind="opaque", data=block.data))
            case _:
                parts.append(OutputPart(kind="call", size=step.calls.index(block)))
    return tuple(parts)


def texts_of(step: CompiledStep) -> Iterator[str]:
    if isinstance(step, UserStep):
        yield from step.texts
        yield from (each.text for each in step.results)
    elif step.text:
        yield step.text


@given(contexts)
def test_every_rule_holds_whatever_is_compiled(messages: list[ContextMessage]) -> None:
    compiled = compiled_for(messages)
    check_steps_alternate_and_both_ends_are_the_users(compiled)
    check_right_behind_calls_stand_their_results_in_order(compiled)
    check_ids_and_names_fit_and_no_id_comes_twice(compiled)
    check_every_text_can_be_written_is_not_blank_and_not_too_long(compiled)
    check_arguments_are_objects(compiled)
    check_parts_are_all_of_an_answer_and_end_with_its_text(compiled)


def check_steps_alternate_and_both_ends_are_the_users(compiled: CompiledContext) -> None:
    steps = compiled.steps
    kinds = [UserStep if place % 2 == 0 else AssistantStep for place in range(len(steps))]
    assert [type(step) for step in steps] == kinds
    assert len(steps) % 2 == 1


def check_right_behind_calls_stand_their_results_in_order(compiled: CompiledContext) -> None:
    asked: tuple[CompiledCall, ...] = ()
    for step in compiled.steps:
        if isinstance(step, AssistantStep):
            asked = step.calls
            continue
        assert [each.call_id for each in step.results] == [each.call_id for each in asked]
        assert step.texts or step.results
        assert len(step.texts) == len(step.text_seqs)


def check_ids_and_names_fit_and_no_id_comes_twice(compiled: CompiledContext) -> None:
    calls = [each for step in answers(compiled) for each in step.calls]
    for each in calls:
        assert re.fullmatch("[A-Za-z0-9_-]{1,40}", each.call_id)
        assert re.fullmatch("[A-Za-z0-9_-]{1,64}", each.tool_name)
    assert len({each.call_id for each in calls}) == len(calls)


def check_every_text_can_be_written_is_not_blank_and_not_too_long(
    compiled: CompiledContext,
) -> None:
    texts = [text for step in compiled.steps for text in texts_of(step)]
    for text in [*texts, compiled.system or "none"]:
        assert text.strip()
        assert "\0" not in text.encode().decode()
        assert len(text) <= 200


def check_arguments_are_objects(compiled: CompiledContext) -> None:
    for each in [each for step in answers(compiled) for each in step.calls]:
        assert isinstance(orjson.loads(each.arguments_json), dict)
        assert "\0" not in str(orjson.loads(each.arguments_json))
        assert len(each.arguments_json) <= 200


def check_parts_are_all_of_an_answer_and_end_with_its_text(compiled: CompiledContext) -> None:
    for step in answers(compiled):
        blocks = step.blocks
        texts = [block.text for block in blocks if isinstance(block, TextPiece)]
        assert "".join(texts) == step.text
        assert all(text.strip() for text in texts)
        thoughts = [block.text for block in blocks if isinstance(block, ReasoningPiece)]
        assert "".join(thoughts) == step.reasoning
        calls = [block for block in blocks if isinstance(block, CompiledCall)]
        assert sorted(map(step.calls.index, calls)) == list(range(len(step.calls)))
        assert texts or calls
        assert not isinstance(blocks[-1], ReasoningPiece)
        for block in blocks:
            assert not isinstance(block, OpaquePiece) or orjson.dumps(block.data)


NINE = RequestForm(call_ids="9 alphanumeric")
AS_TEXT = RequestForm(without_tools=True)


@given(contexts)
def test_ids_of_calls_can_be_nine_letters_and_digits(messages: list[ContextMessage]) -> None:
    """Each call has one of its own, its result has the same, and both keep it as the context
    grows."""
    whole = ContextCompiler(RULES).compile(messages, origin=OWN, form=NINE)
    check_right_behind_calls_stand_their_results_in_order(whole)
    ids = [each.call_id for step in answers(whole) for each in step.calls]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", each) for each in ids)
    assert len(set(ids)) == len(ids)
    plain = [each for step in answers(compiled_for(messages)) for each in step.calls]
    assert len(plain) == len(ids)
    growing = ContextCompiler(RULES)
    for end in range(len(messages) + 1):
        part = growing.compile(messages[:end], origin=OWN, form=NINE)
        shown = [each.call_id for step in answers(part) for each in step.calls]
        assert shown == ids[: len(shown)]


@given(contexts)
def test_calls_and_results_can_be_text_of_the_users_side(messages: list[ContextMessage]) -> None:
    compiled = ContextCompiler(RULES).compile(messages, origin=OWN, form=AS_TEXT)
    check_steps_alternate_and_both_ends_are_the_users(compiled)
    check_every_text_can_be_written_is_not_blank_and_not_too_long(compiled)
    assert not any(step.calls for step in answers(compiled))
    assert not any(isinstance(step, UserStep) and step.results for step in compiled.steps)
    results = sum(len(each.results) for each in messages if isinstance(each, ToolResultsMessage))
    texts = [text for step in compiled.steps if isinstance(step, UserStep) for text in step.texts]
    marks = ("[The tool", "[Result of a call")
    assert sum(text.startswith(marks) for text in texts) >= results


@given(contexts)
def test_no_model_is_given_the_reasoning_of_another(messages: list[ContextMessage]) -> None:
    stranger = ModelInvocationDescriptor(provider="p", specification="s", model="a third")
    for step in answers(compiled_for(messages, stranger)):
        assert not step.reasoning
        assert not seals_of(step)
    thinkers = {
        message.seq
        for message in messages
        if isinstance(message, ModelOutputMessage) and message.invocation == OTHER
    }
    for step in answers(compiled_for(messages, OTHER)):
        assert not (seals_of(step) or step.reasoning) or set(step.seqs) - {0} <= thinkers


def shown_again(compiled: CompiledContext) -> list[ContextMessage]:
    """A context that says what was compiled."""
    messages: list[ContextMessage] = [SystemMessage(instruction=compiled.system)]
    for step in compiled.steps:
        if isinstance(step, UserStep):
            if step.results:
                messages.append(gives(*(result(r.call_id, r.text, r.status) for r in step.results)))
            messages.extend(map(asks, step.texts))
        else:
            calls = tuple(
                ToolCallRequest(
                    tool_call_id=each.call_id,
                    tool_name=each.tool_name,
                    raw_arguments=each.arguments_json,
                    arguments=orjson.loads(each.arguments_json),
                )
                for each in step.calls
            )
            messages.append(
                ModelOutputMessage(
                    content=step.text,
                    tool_calls=calls,
                    invocation=OWN,
                    reasoning=step.reasoning,
                    parts=parts_of(step) if seals_of(step) else (),
                )
            )
    return messages


@given(contexts)
def test_what_is_compiled_needs_no_further_repair(messages: list[ContextMessage]) -> None:
    once = compiled_for(messages)
    twice = compiled_for(shown_again(once))
    assert twice.system == once.system
    assert [list(texts_of(step)) for step in twice.steps] == [
        list(texts_of(step)) for step in once.steps
    ]
    assert [step.blocks for step in answers(twice)] == [step.blocks for step in answers(once)]


@given(contexts, st.data())
def test_compiled_steps_stay_the_same_when_messages_are_added(
    messages: list[ContextMessage], data: st.DataObject
) -> None:
    """But for the step at the end, which the same side may still add to, and but for an
    answer after which nobody said anything."""
    earlier = compiled_for(messages[: data.draw(st.integers(0, len(messages)))])
    closed = earlier.steps[:-1]
    if list(texts_of(earlier.steps[-1])) == ["(go on)"]:
        closed = earlier.steps[:-2]
    assert compiled_for(messages).steps[: len(closed)] == closed


@given(contexts, st.lists(st.integers(0, 20), max_size=3).map(sorted))
def test_a_context_that_grows_compiles_as_if_it_were_new(
    messages: list[ContextMessage], lengths: list[int]
) -> None:
    """And the same context always to the same."""
    compiler = ContextCompiler(RULES)
    for length in [*lengths, len(messages)]:
        shown = messages[:length]
        assert compiler.compile(shown, origin=OWN) == compiled_for(shown)


def says_nothing(message: ContextMessage) -> bool:
    match message:
        case ModelOutputMessage():
            return not message.content.strip() and not message.tool_calls
        case ToolResultsMessage():
            return not message.results
        case _:
            return False


@given(contexts)
def test_every_entry_is_found_behind_the_step_that_shows_it(
    messages: list[ContextMessage],
) -> None:
    numbered = [replace(message, seq=seq) for seq, message in enumerate(messages, start=1)]
    compiled = compiled_for(numbered)
    behind = [seq for step in compiled.steps for seq in step.seqs]
    assert behind == sorted(set(behind))
    for message in numbered:
        if not isinstance(message, SystemMessage):
            assert message.seq in behind or says_nothing(message)
    for step in compiled.steps:
        if isinstance(step, UserStep):
            inside = {*step.text_seqs, *(each.seq for each in step.results)} - {0}
            assert inside <= set(step.seqs)
