"""An answer that is cut before a word was shown is asked for again; after one it is kept."""

from __future__ import annotations

import pytest
from tests.server.providers.poison_stage import APIS, conversation_with, provider_for
from tests.vendors.answers import Answer, ApiName, Call, Part, Text, Thinking, ToolCall, say
from tests.vendors.emulator import emulator
from tests.vendors.faults import BrokenJson, Cut, ErrorEvent, Fault, NoEnd

from nplt_protocol.messages import AgentThought
from nplt_storage.entries import FaultEntry, ModelOutputEntry, ToolResultsEntry

CALL = ToolCall("now", arguments='{"zone": "Europe/Berlin"}')


class CutOnce:
    def __init__(self, part: Part, fault: Fault) -> None:
        self.part, self.fault, self.asked = part, fault, 0

    def __call__(self, call: Call) -> Answer:
        self.asked += 1
        if self.asked == 1:
            return Answer(parts=(self.part, Text("never")), fault=self.fault, piece_characters=2)
        return say("here it is")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("fault", [Cut(after=6), ErrorEvent(after=6), BrokenJson(after=6)])
@pytest.mark.parametrize("part", [CALL, Thinking("hm, let me see, what could that be")])
async def test_a_cut_inside_a_tool_call_or_thinking_is_retried(
    api: ApiName, fault: Fault, part: Part
) -> None:
    if api == "chat" and isinstance(part, Thinking):
        pytest.skip("nothing of it is sent there")
    script = CutOnce(part, fault)
    async with (
        emulator(script) as vendors,
        provider_for(api, vendors) as provider,
        conversation_with([], provider) as stage,
    ):
        finished = await stage.play("well?")
        entries = stage.conversation.history.entries
    assert (finished.state, script.asked) == ("completed", 2)
    assert stage.answer_text == "here it is"
    (output,) = (entry for entry in entries if isinstance(entry, ModelOutputEntry))
    assert (output.content, output.reasoning, output.tool_calls) == ("here it is", "", ())
    assert not any(isinstance(entry, ToolResultsEntry | FaultEntry) for entry in entries)
    thoughts = [
        e for e in stage.ear.received if isinstance(e, AgentThought) and e.type == "retrying"
    ]
    assert len(thoughts) == 1


@pytest.mark.parametrize("api", APIS)
async def test_a_stream_that_ends_inside_a_tool_call_is_retried_too(api: ApiName) -> None:
    script = CutOnce(CALL, NoEnd())

    def without_text(call: Call) -> Answer:
        answer = script(call)
        return Answer(parts=answer.parts[:1], fault=answer.fault)

    async with (
        emulator(without_text) as vendors,
        provider_for(api, vendors) as provider,
        conversation_with([], provider) as stage,
    ):
        assert (await stage.play("well?")).state == "completed"
    assert script.asked == 2


@pytest.mark.parametrize("api", APIS)
async def test_after_a_word_it_is_kept_as_it_is(api: ApiName) -> None:
    script = CutOnce(Text("one two three four five six"), Cut(after=9))
    async with (
        emulator(script) as vendors,
        provider_for(api, vendors) as provider,
        conversation_with([], provider) as stage,
    ):
        assert (await stage.play("well?")).state == "failed"
    assert script.asked == 1
    assert stage.answer_text.startswith("on")
