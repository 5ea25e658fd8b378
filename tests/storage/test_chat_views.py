"""A conversation as chat messages: who said what, with tool results joined in."""

from __future__ import annotations

from msgspec.structs import replace
from tests.storage.conversations import START, answer_to, call, clear

from nplt_storage.entries import (
    LIVE_SCREEN,
    BlobReference,
    FaultEntry,
    LevelOfDetailSections,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
)
from nplt_storage.messages import ResultsByCall, chat_message, content_of, model_name
from nplt_storage.redaction import redacted

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


def test_an_answer_says_how_long_its_reasoning_is_until_it_is_redacted() -> None:
    entry = ModelOutputEntry(seq=2, id="e2", timestamp=START, content="hi", reasoning="so 😀")
    assert chat_message(entry, {}).as_json()["reasoning_size"] == 4
    assert "reasoning_size" not in chat_message(replace(entry, reasoning=""), {}).as_json()
    tombstone = redacted(entry, START)
    assert isinstance(tombstone, ModelOutputEntry)
    assert "reasoning_size" not in chat_message(tombstone, {}).as_json()


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
    instruction = SystemInstructionEntry(seq=1, id="e", timestamp=START, content="be brief")
    assert chat_message(instruction, {}).role == "system"


def test_less_detail_is_shown_where_the_entry_says_how() -> None:
    sections = LevelOfDetailSections(
        live=(("", "a long question"), (LIVE_SCREEN, "CPU 3 %")), gist=(("", "a question"),)
    )
    entry = ModelInputEntry(
        seq=1, id="e1", timestamp=START, content="a long question", sections=sections
    )
    assert chat_message(entry, {}).content == "a long question"
    assert chat_message(entry, {}, "summary").content == "a long question"
    assert chat_message(entry, {}, "gist").content == "a question"
    plain = ModelInputEntry(seq=1, id="e1", timestamp=START, content="as it is")
    assert chat_message(plain, {}, "gist").content == "as it is"


def test_results_are_shown_in_the_detail_asked_for_and_name_their_blob() -> None:
    asked = ModelOutputEntry(
        seq=2, id="e2", timestamp=START, turn_id="t1", content="", tool_calls=(call(),)
    )
    blob = BlobReference(blob_id="b1", size=9_000_000, sha256="ab")
    given = replace(
        answer_to(call(), "line 1 …"),
        blob=blob,
        sections=LevelOfDetailSections(gist=(("", "a log"),)),
    )
    results: ResultsByCall = {("t1", 0): ToolResultsEntry(turn_id="t1", results=(given,))}
    assert chat_message(asked, results).tool_calls[0].result == "line 1 …"
    shown = chat_message(asked, results, "gist").as_json()["tool_calls"]
    assert shown == [
        {
            "tool_name": "look",
            "tool_call_id": "c1",
            "arguments": {},
            "result": "a log",
            "status": "success",
            "duration": 0.25,
            "timestamp": TIME,
            "blob": {"blob_id": "b1", "size": 9_000_000, "sha256": "ab"},
        }
    ]


def test_a_tombstone_says_that_it_is_one() -> None:
    entry = ModelInputEntry(seq=1, id="e1", timestamp=START, content="my key is …")
    tombstone = redacted(entry, START)
    assert isinstance(tombstone, ModelInputEntry)
    message = chat_message(tombstone, {}).as_json()
    assert (message["content"], message["redacted_at"]) == ("[redacted]", TIME)


def test_only_some_entries_have_content() -> None:
    assert content_of(ModelInputEntry(content="hello")) == "hello"
    assert content_of(clear()) is None
