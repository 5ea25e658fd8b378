"""Whatever odd thing stands in a record, the next turn succeeds with at most one more call."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.server.conversations import Stage
from tests.server.providers.poison_stage import (
    APIS,
    MARKER,
    conversation_with,
    plain_turn,
    provider_for,
    refuses_the_marker,
    turn,
)
from tests.vendors.answers import ApiName, echo
from tests.vendors.emulator import Emulator, Limits, emulator
from tests.vendors.models import ClaudeModel, GptModel

from nplt_protocol.messages import AgentThought, SessionEvent
from nplt_server.conversations import operations
from nplt_server.providers import ProviderClient
from nplt_server.widgets import TodoList
from nplt_storage.entries import (
    CompactionEntry,
    Entry,
    EpochEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    NotebookEntry,
    OutputPart,
    QuarantineEntry,
    SystemInstructionEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolExecutionStatus,
    ToolResultsEntry,
    UnknownEntry,
    WidgetEntry,
)

ELSEWHERE = ModelInvocationDescriptor(provider="x", specification="x-talk", model="x-1")
THEN = datetime(2026, 1, 1, tzinfo=UTC)


def call(call_id: str = "c1", name: str = "now", raw: str = "{}") -> ToolCallRequest:
    return ToolCallRequest(
        tool_call_id=call_id,
        tool_name=name,
        raw_arguments=raw,
        arguments={} if raw == "{}" else None,
    )


def result(
    call_id: str = "c1",
    name: str = "now",
    text: str = "12:00",
    status: ToolExecutionStatus = "success",
) -> ToolCallResult:
    return ToolCallResult(
        tool_call_id=call_id,
        tool_name=name,
        status=status,
        result=text,
        duration=0.1,
        timestamp=THEN,
    )


def used(
    *calls: ToolCallRequest, results: tuple[ToolCallResult, ...] = (), text: str = ""
) -> list[Entry]:
    """A turn with a tool in it."""
    output = ModelOutputEntry(content=text, tool_calls=calls, invocation=ELSEWHERE)
    gave: list[Entry] = [ToolResultsEntry(results=results)] if results else []
    return turn(2, "what time is it?", output, *gave, ModelOutputEntry(content="noon", call=1))


THOUGHT = ModelOutputEntry(
    content="so",
    reasoning="hm",
    invocation=ELSEWHERE,
    parts=(
        OutputPart(kind="reasoning", size=2),
        OutputPart(kind="opaque", data={"signature": "of another"}),
        OutputPart(kind="text", size=2),
    ),
)
LONG, FINE = "word " * 2_000, ModelOutputEntry(content="fine")
LONG_ID = "call_" + "x" * 300
LIST = TodoList().with_added([MARKER]).as_state()
KINDS: dict[str, list[Entry]] = {
    "a call without its result": used(call()),
    "a result without its call": turn(2, "hm", ToolResultsEntry(results=(result(),))),
    "reasoning of another model": turn(2, "think", THOUGHT),
    "ids that are too long": used(call(LONG_ID), results=(result(LONG_ID),)),
    "ids of odd characters": used(call("a b/ç!"), results=(result("a b/ç!"),)),
    "the same id twice": used(call(), call(), results=(result(), result(text="13:00"))),
    "an answer of nothing but blanks": turn(2, "say nothing", ModelOutputEntry(content=" \n ")),
    "a result of nothing": used(call(), results=(result(text=""),)),
    "half a surrogate in arguments": used(call(raw='{"at": "\\ud800"}'), results=(result(),)),
    "arguments that are no JSON": used(call(raw='{"at": '), results=(result(),)),
    "arguments that are no object": used(call(raw="[1]"), results=(result(),)),
    "a tool's name no vendor takes": used(
        call(name="look at! ✨"), results=(result(name="look at! ✨"),)
    ),
    "a giant result": used(call(), results=(result(text="word " * 40_000),)),
    "results in another order": used(call("c1"), call("c2"), results=(result("c2"), result("c1"))),
    "a kind of entry nobody knows": [UnknownEntry(kind="dream", fields={"content": "sheep"})],
    "nothing but an instruction": [SystemInstructionEntry(content="be brief")],
    "a prompt that is refused": turn(2, MARKER, ModelOutputEntry(content="oh")),
    "an answer that is refused": turn(2, "well?", ModelOutputEntry(content=MARKER)),
    "a result that is refused": used(call(), results=(result(text=MARKER),)),
    "a notebook that is refused": [NotebookEntry(content=MARKER)],
    "a list that is refused": [WidgetEntry(widget="todo", state=LIST)],
    "a summary that is refused": [CompactionEntry(content=MARKER, from_seq=1, through_seq=2)],
    "arguments that are refused": used(call(raw=f'{{"at": "{MARKER}"}}'), results=(result(),)),
}


async def play_on(
    entries: list[Entry], provider: ProviderClient, vendors: Emulator
) -> tuple[int, int]:
    """How many calls the next turn takes, and the one after it."""
    async with conversation_with(entries, provider) as stage:
        before = len(vendors.received)
        assert (await stage.play("go on")).state == "completed"
        between = len(vendors.received)
        assert (await stage.play("and on")).state == "completed"
        return between - before, len(vendors.received) - between


@pytest.mark.parametrize("api", APIS)
async def test_the_next_turn_succeeds_with_at_most_one_more_call(api: ApiName) -> None:
    calls: dict[str, tuple[int, int]] = {}
    async with emulator(refuses_the_marker) as vendors, provider_for(api, vendors) as provider:
        for kind, entries in KINDS.items():
            if kind != "nothing but an instruction":
                entries = [*plain_turn(1), *entries, *plain_turn(3)]
            calls[kind] = await play_on(entries, provider, vendors)
    assert calls == {kind: (2 if kind.endswith("refused") else 1, 1) for kind in KINDS}


def quarantined(stage: Stage) -> list[int]:
    entries = stage.conversation.history.entries
    return [entry.target_seq for entry in entries if isinstance(entry, QuarantineEntry)]


async def test_a_refused_entry_is_quarantined_and_all_clients_get_an_event() -> None:
    refused = turn(2, "well?", ModelOutputEntry(content=MARKER))
    async with (
        emulator(refuses_the_marker) as vendors,
        provider_for("messages", vendors) as provider,
        conversation_with([*plain_turn(1), *refused, *plain_turn(3)], provider) as stage,
    ):
        await stage.play("go on")
        assert quarantined(stage) == [4]
        (event,) = [
            received
            for received in stage.ear.received
            if isinstance(received, SessionEvent) and received.event == "quarantined"
        ]
        assert event.details is not None
        assert (event.details["seq"], event.details["code"]) == (4, "refused_by_provider")
        reason = str(event.details["reason"])
        assert reason.startswith("anthropic/claude-opus-4-5: the provider refused the request")
        assert "the provider says: messages.3.content: your prompt was flagged" in reason
        thoughts = [
            received for received in stage.ear.received if isinstance(received, AgentThought)
        ]
        assert "without what it refuses (4)" in (thoughts[0].content or "")
        epochs = [e for e in stage.conversation.history.entries if isinstance(e, EpochEntry)]
        assert [epoch.reason for epoch in epochs] == ["quarantine"]


async def test_a_rollback_undoes_it() -> None:
    refused = turn(2, "well?", ModelOutputEntry(content=MARKER))
    async with (
        emulator(refuses_the_marker) as vendors,
        provider_for("chat", vendors) as provider,
        conversation_with([*plain_turn(1), *refused], provider) as stage,
    ):
        await stage.play("go on")
        assert [*stage.conversation.history.quarantined] == [4]
        await operations.roll_back(stage.conversation, 4)
        assert stage.conversation.history.quarantined == {}
        vendors.script = echo
        await stage.play("go on")
        assert MARKER in str(vendors.received[-1].body)


@pytest.mark.parametrize("api", APIS)
async def test_a_prompt_that_is_refused_itself_fails_once_and_is_not_shown_again(
    api: ApiName,
) -> None:
    async with (
        emulator(refuses_the_marker) as vendors,
        provider_for(api, vendors) as provider,
        conversation_with(plain_turn(1), provider) as stage,
    ):
        finished = await stage.play(MARKER)
        assert finished.error is not None
        assert (finished.state, finished.error["code"]) == ("failed", "provider_refused")
        assert len(vendors.received) == 1
        assert (await stage.play("something else")).state == "completed"
        assert len(vendors.received) == 2
        assert MARKER not in str(vendors.received[-1].body)


@pytest.mark.parametrize("api", APIS)
async def test_a_window_smaller_than_declared_costs_one_more_call_once(
    api: ApiName,
) -> None:
    small = Limits(
        gpt_models=(GptModel(name="gpt-4o-mini", window_tokens=24_000),),
        claude_models=(ClaudeModel(name="claude-opus-4-5", window_tokens=24_000),),
    )
    long = [entry for number in range(12) for entry in turn(number, LONG, FINE)]
    async with emulator(limits=small) as vendors, provider_for(api, vendors) as provider:
        assert await play_on(long, provider, vendors) == (2, 1)
