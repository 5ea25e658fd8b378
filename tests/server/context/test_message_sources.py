"""What context messages know of the entries they show."""

from __future__ import annotations

from datetime import UTC, datetime

from nplt_server.context.messages import ModelInputMessage, ModelOutputMessage, ToolResultsMessage
from nplt_server.context.steps import message_of
from nplt_storage.entries import (
    LevelOfDetailSections,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ToolCallResult,
    ToolResultsEntry,
)

THEN = datetime(2026, 1, 2, tzinfo=UTC)
SECTIONS = LevelOfDetailSections(live=(("", "a prompt"),), gist=(("", "a"),))


def test_messages_refer_to_their_entries_without_copying_them() -> None:
    prompt = ModelInputEntry(
        seq=1, timestamp=THEN, metadata={"channel": "web"}, content="a prompt", sections=SECTIONS
    )
    shown = message_of(prompt, "gist")
    assert isinstance(shown, ModelInputMessage)
    assert (shown.content, shown.timestamp) == ("a", THEN)
    assert shown.metadata is prompt.metadata
    assert shown.sections is SECTIONS

    invocation = ModelInvocationDescriptor(provider="p", specification="s", model="m")
    output = ModelOutputEntry(
        seq=2, content="an answer", invocation=invocation, usage={"input_tokens": 3}
    )
    answer = message_of(output, "live")
    assert isinstance(answer, ModelOutputMessage)
    assert answer.usage is output.usage

    result = ToolCallResult(
        tool_name="t", result="", status="skipped", duration=0, timestamp=THEN, tool_call_id="c"
    )
    results = message_of(
        ToolResultsEntry(seq=3, results=(result,), execute_error="cancelled"), "live"
    )
    assert isinstance(results, ToolResultsMessage)
    assert results.execute_error == "cancelled"


def test_the_entry_is_no_part_of_the_value_of_a_message() -> None:
    one, other = (
        message_of(ModelInputEntry(seq=1, timestamp=at, content="same"), "live")
        for at in (THEN, datetime(2027, 1, 1, tzinfo=UTC))
    )
    assert one == other
    assert "same" in repr(one)
    assert repr(one).count("same") == 1
    assert ModelInputMessage(content="none").timestamp is None
    assert ModelInputMessage(content="none").metadata == {}
