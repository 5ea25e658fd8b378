"""Call after call, only what is new is compiled."""

from __future__ import annotations

from tests.server.providers.compiler_contexts import OTHER, OWN, asks, call, gives, result, says

from nplt_server.context.messages import ContextMessage
from nplt_server.providers.compiler import CompiledContext, ContextCompiler, VendorRules


def long_context(exchanges: int = 3) -> list[ContextMessage]:
    messages: list[ContextMessage] = []
    for number in range(exchanges):
        messages += [asks("go"), says("", call(f"c{number}")), gives(result(f"c{number}"))]
    return messages


def is_continued(later: CompiledContext, earlier: CompiledContext) -> bool:
    """The steps compiled then are there still, not others like them."""
    closed = earlier.steps[:-1]
    return all(now is then for now, then in zip(later.steps, closed, strict=False))


def test_a_further_call_reuses_the_compiled_steps() -> None:
    compiler, messages = ContextCompiler(VendorRules()), long_context()
    first = compiler.compile(messages, origin=OWN)
    grown = [*messages, says("done"), asks("more")]
    assert is_continued(compiler.compile(grown, origin=OWN), first)
    assert is_continued(compiler.compile(tuple(grown), origin=OWN), first)


def test_what_was_given_earlier_does_not_change_with_what_comes_later() -> None:
    compiler, messages = ContextCompiler(VendorRules()), long_context()
    first = compiler.compile(messages, origin=OWN)
    before = first.steps
    compiler.compile([*messages, says(" "), asks("more")], origin=OWN)
    assert first.steps == before


def test_equal_texts_in_other_messages_are_compiled_again() -> None:
    compiler = ContextCompiler(VendorRules())
    first = compiler.compile(long_context(), origin=OWN)
    again = compiler.compile(long_context(), origin=OWN)
    assert again == first
    assert not is_continued(again, first)


def test_a_context_with_only_a_common_prefix_is_compiled_again() -> None:
    compiler, beginning = ContextCompiler(VendorRules()), asks("go")
    compiler.compile([beginning, says("left"), asks("on")], origin=OWN)
    branched: list[ContextMessage] = [beginning, says("right"), asks("on"), says("so"), asks("?")]
    expected = ContextCompiler(VendorRules()).compile(branched, origin=OWN)
    assert compiler.compile(branched, origin=OWN) == expected


def test_a_context_that_was_taken_back_is_compiled_as_it_is_now() -> None:
    compiler, messages = ContextCompiler(VendorRules()), long_context()
    compiler.compile([*messages, says("wrong"), asks("no")], origin=OWN)
    expected = ContextCompiler(VendorRules()).compile(messages, origin=OWN)
    assert compiler.compile(messages, origin=OWN) == expected


def test_another_model_is_not_given_what_was_compiled_for_the_first() -> None:
    compiler, messages = ContextCompiler(VendorRules()), long_context()
    first = compiler.compile(messages, origin=OWN)
    assert not is_continued(compiler.compile(messages, origin=OTHER), first)
    expected = ContextCompiler(VendorRules()).compile(messages, origin=OTHER)
    assert compiler.compile(messages, origin=OTHER) == expected


def test_contexts_without_a_message_are_no_trouble() -> None:
    compiler = ContextCompiler(VendorRules())
    assert compiler.compile([], origin=OWN) == compiler.compile((), origin=OWN)
