"""The conversation manager's methods: messages in and out, one call, tools, tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from tests.server.conversations import staged

from nplt_server.context.messages import ToolResultsMessage
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_storage.entries import ModelInputEntry
from nplt_storage.errors import BadEntry


async def talkative(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    last = request.context[-1]
    if not isinstance(last, ToolResultsMessage) and last.role != "system":
        asked = getattr(last, "content", "")
        if asked == "use two tools":
            yield ToolCallPiece(index=0, tool_name="now", arguments="{}")
            yield ToolCallPiece(index=1, tool_name="now", arguments="{}")
            yield Stopped(reason="tool_calls")
            return
    yield TextPiece(text="yes")
    yield Stopped(reason="end")
    yield UsageReport(input_tokens=7, output_tokens=1)


async def test_messages_are_given_as_copies_oldest_first() -> None:
    async with staged(talkative) as stage:
        await stage.play("hello")
        conversation = stage.conversation
        given = conversation.get_messages()
        given.clear()
        assert [each.content for each in conversation.get_messages()] == ["hello", "yes"]


async def test_recent_messages_are_the_last_ones_and_never_more_than_there_are() -> None:
    async with staged(talkative) as stage:
        await stage.play("hello")
        conversation = stage.conversation
        assert [each.content for each in conversation.get_recent_messages(1)] == ["yes"]
        assert len(conversation.get_recent_messages(100)) == 2


async def test_messages_are_filtered_by_role() -> None:
    async with staged(talkative) as stage:
        await stage.play("hello")
        (asked,) = stage.conversation.get_messages_by_role("user")
        (answer,) = stage.conversation.get_messages_by_role("assistant")
        assert (asked.content, answer.content) == ("hello", "yes")


async def test_a_cleared_conversation_keeps_its_system_message() -> None:
    async with staged(talkative) as stage:
        state = stage.conversation.state
        await state.set_system_instruction("Be brief.")
        await stage.play("hello")
        await stage.conversation.clear_messages()
        (shown,) = state.render_live_context().messages
        assert shown.role == "system"
        assert state.system_instruction == "Be brief."


async def test_a_blank_message_is_refused_and_nothing_is_written() -> None:
    async with staged(talkative) as stage:
        with pytest.raises(BadEntry, match="not blank"):
            await stage.conversation.add_message(ModelInputEntry(turn_id="t1", content="  "))
        assert stage.conversation.history.head_seq == 0


async def test_the_tools_of_one_answer_give_one_result_each() -> None:
    async with staged(talkative) as stage:
        finished = await stage.play("use two tools")
        assert finished.state == "completed"
        answer = stage.conversation.get_messages_by_role("assistant")[0]
        assert [call.status for call in answer.tool_calls] == ["success", "success"]


async def test_token_usage_is_what_the_provider_reported() -> None:
    async with staged(talkative) as stage:
        await stage.play("hello")
        usage = await stage.conversation.get_token_usage()
        assert usage.occupancy["source"] == "api"
        assert usage.occupancy["tokens"] == 8
