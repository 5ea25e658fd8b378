"""A conversation as chat messages: who said what, with tool results joined in."""

from __future__ import annotations

from tests.storage.conversations import START, answer_to, call, clear

from nplt_storage.entries import (
    FaultEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
)
from nplt_storage.views import chat_message, content_of, model_name

TIME = "2026-01-02T03:04:05.000006+00:00"


def test_a_prompt_is_a_message_of_the_user() -> None:
    entry = ModelInputEntry(
        seq=1, id="e1", timestamp=START, turn_id="t1", content="hello", metadata={"from": "cli"}
    )
    assert chat_message(entry, {}).as_json() == {
        "seq": 1,
        "id": "e1",
        "role": "user",
        "content": "hello",
        "timestamp": TIME,
        "tool_calls": [],
        "metadata": {"from": "cli"},
        "turn_id": "t1",
    }


def test_an_answer_names_its_model_usage_and_state() -> None:
    entry = ModelOutputEntry(
        seq=2,
        id="e2",
        timestamp=START,
        turn_id="t1",
        content="hi",
        invocation=ModelInvocationDescriptor(provider="p", specification="chat", model="m"),
        usage={"input_tokens": 3},
        state="interrupted",
    )
    message = chat_message(entry, {}).as_json()
    assert message["role"] == "assistant"
    assert (message["model"], message["usage"]) == ("p/m", {"input_tokens": 3})
    assert message["state"] == "interrupted"


def test_a_model_that_names_its_provider_is_not_named_twice() -> None:
    named = ModelInvocationDescriptor(provider="p", specification="", model="p/m")
    assert model_name(named) == "p/m"


def test_a_call_is_pending_until_its_results_are_there() -> None:
    entry = ModelOutputEntry(
        seq=2, id="e2", timestamp=START, turn_id="t1", content="", tool_calls=(call(),), call=3
    )
    pending = {
        "tool_name": "look",
        "tool_call_id": "c1",
        "arguments": {},
        "result": "",
        "status": "pending",
        "duration": 0.0,
        "timestamp": TIME,
    }
    assert chat_message(entry, {}).as_json()["tool_calls"] == [pending]
    results = ToolResultsEntry(turn_id="t1", call=3, results=(answer_to(call(), "a cat"),))
    assert chat_message(entry, {("t1", 3): results}).as_json()["tool_calls"] == [
        pending | {"result": "a cat", "status": "success", "duration": 0.25}
    ]
    assert chat_message(entry, {("t1", 2): results}).tool_calls[0].status == "pending"


def test_faults_and_instructions_speak_for_the_system() -> None:
    fault = FaultEntry(seq=1, id="e", timestamp=START, content="gone", code="x", state="failed")
    message = chat_message(fault, {}).as_json()
    assert (message["role"], message["content"], message["state"]) == ("system", "gone", "failed")
    told = SystemInstructionEntry(seq=1, id="e", timestamp=START, content="be brief")
    assert chat_message(told, {}).role == "system"


def test_only_some_entries_have_content() -> None:
    assert content_of(ModelInputEntry(content="hello")) == "hello"
    assert content_of(clear()) is None
