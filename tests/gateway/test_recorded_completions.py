"""Chat completions in conversations: which one, what is recorded, and who else sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI
from tests.conftest import Connect
from tests.gateway.http_client import ECHO, begin_and_leave, complete
from tests.support.raw_client import (
    APPROVAL,
    APPROVAL_REQUEST,
    ATTACH,
    ENTRY,
    HISTORY_REQUEST,
    TEXT_DELTA,
    TURN_FINISHED,
)
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]


def test_the_base_url_names_a_conversation_that_keeps_each_message_once(
    url: str, contents: Callable[[str], list[str]]
) -> None:
    with OpenAI(base_url=f"{url}c/three%20turns/v1", api_key="any") as client:
        messages: list[Any] = []
        for text in ("one", "two", "three"):
            messages.append({"role": "user", "content": text})
            raw = client.chat.completions.with_raw_response.create(model=ECHO, messages=messages)
            answer = raw.parse().choices[0].message
            messages.append({"role": "assistant", "content": answer.content})
    session_id = raw.headers["x-nplt-conversation"]
    assert "x-nplt-recorded" not in raw.headers
    assert contents(session_id) == ["one", "one", "two", "two", "three", "three"]
    assert complete(f"{url}c/three%20turns/", "four").status == 200
    assert len(contents(session_id)) == 8


def test_a_slash_in_a_name_is_kept(url: str, contents: Callable[[str], list[str]]) -> None:
    one = complete(f"{url}c/notes%2Fone/", "here").headers["x-nplt-conversation"]
    two = complete(url, "and here", {"x-nplt-conversation": "notes%2Fone"})
    assert two.headers["x-nplt-conversation"] == one
    assert contents(one)[-1] == "and here"


def test_two_different_names_are_refused(url: str) -> None:
    answer = complete(f"{url}c/one/", "x", {"x-nplt-conversation": "two"})
    assert (answer.status, answer.error["code"]) == (400, "ambiguous_conversation")


@pytest.mark.parametrize(
    "header", ["X-OpenWebUI-Chat-Id", "X-Conversation-Id", "x-session-id", "thread-id"]
)
def test_the_id_of_a_clients_own_chat_finds_its_conversation_again(
    url: str, header: str, contents: Callable[[str], list[str]]
) -> None:
    own = {header: "chat 1"}
    one = complete(url, "one", own).headers["x-nplt-conversation"]
    assert complete(url, "two", own).headers["x-nplt-conversation"] == one
    assert complete(url, "x", {header: "chat 2"}).headers["x-nplt-conversation"] != one
    assert contents(one) == ["one", "one", "two", "two"]


def test_a_foreign_chat_id_is_never_an_id_of_this_server(url: str) -> None:
    mine = complete(f"{url}c/private/", "mine").headers["x-nplt-conversation"]
    for name in (mine, "private"):
        theirs = complete(url, "x", {"x-session-id": name}).headers["x-nplt-conversation"]
        assert theirs != mine


@pytest.mark.parametrize(
    ("fields", "headers"),
    [({"store": False}, {}), ({}, {"x-nplt-task": "title_generation"})],
)
def test_what_is_not_to_be_stored_is_not_recorded(
    url: str, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    answer = complete(f"{url}c/unstored/", "x", headers, **fields)
    assert answer.headers["x-nplt-recorded"] == "false"
    assert "x-nplt-conversation" not in answer.headers


def test_the_settings_may_record_what_names_no_conversation(start_server: Start) -> None:
    server = start_server(http={"record_unnamed": True, "store_unstored": True})
    ids = {
        complete(server.http_url, "x", store=store).headers["x-nplt-conversation"]
        for store in (None, False)
    }
    assert len(ids) == 2


def test_a_terminal_sees_a_prompt_that_comes_by_http_as_it_streams(
    url: str, shared_server: ServerProcess, connect: Connect
) -> None:
    session_id = complete(f"{url}c/watched/", "first").headers["x-nplt-conversation"]
    terminal = connect(shared_server)
    terminal.hello()
    terminal.request(ATTACH, {"session_id": session_id})
    complete(f"{url}c/watched/", "from http")
    assert terminal.event(ENTRY).json["entry"]["content"] == "from http"
    assert terminal.event(TEXT_DELTA).json["text"].startswith("from")
    assert terminal.event(TURN_FINISHED).json["state"] == "completed"


def test_a_lost_connection_stops_no_turn(
    url: str, shared_server: ServerProcess, connect: Connect
) -> None:
    terminal = connect(shared_server)
    session_id = terminal.hello()["session_id"]
    terminal.ask("begin")
    begin_and_leave(url, session_id, "!slow 1 all of it", {})
    assert _finished(terminal) == "completed"
    begin_and_leave(url, session_id, "!slow 3600 never", {"x-nplt-cancel-on-disconnect": "true"})
    assert _finished(terminal) == "interrupted"


def _finished(terminal: Any) -> str:
    state: str = terminal.event(TURN_FINISHED).json["state"]
    return state


def test_a_text_file_and_the_prompt_are_stored_together(url: str) -> None:
    part = {"filename": "notes.txt", "file_data": "data:text/plain;base64,aGVsbG8="}
    answer = complete(
        f"{url}c/files/",
        "",
        messages=[
            {
                "role": "user",
                "content": [{"type": "file", "file": part}, {"type": "text", "text": "read it"}],
            }
        ],
    )
    assert answer.status == 200
    assert answer.json["choices"][0]["message"]["content"] == "read it"


def test_a_failed_turn_has_its_error(url: str) -> None:
    answer = complete(f"{url}c/failing/", "!fail")
    assert (answer.status, answer.error["code"]) == (502, "provider_unavailable")


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_a_call_of_the_clients_tool_and_its_result_are_recorded(
    url: str, contents: Callable[[str], list[str]]
) -> None:
    with OpenAI(base_url=f"{url}c/tools/v1", api_key="any", max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": '!tool look {"at": "it"}'}]
        given: Any = {"model": ECHO, "tools": [LOOK], "messages": messages}
        choice = client.chat.completions.create(**given).choices[0]
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert json.loads(call.function.arguments) == {"at": "it"}
        messages += [
            choice.message.model_dump(),
            {"role": "tool", "tool_call_id": call.id, "content": "a tree"},
        ]
        raw = client.chat.completions.with_raw_response.create(**given)
        assert raw.parse().choices[0].message.content == "a tree"
    texts = contents(raw.headers["x-nplt-conversation"])
    assert texts == ['!tool look {"at": "it"}', "", "", "a tree"]


def test_a_streamed_call_of_the_clients_tool_is_whole(url: str) -> None:
    with (
        OpenAI(base_url=f"{url}c/streamed%20tools/v1", api_key="any") as client,
        client.chat.completions.stream(
            model=ECHO,
            messages=[{"role": "user", "content": '!tool look {"at": "it"}'}],
            tools=[LOOK],  # type: ignore[list-item]
        ) as stream,
    ):
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"at": "it"}


def test_tools_of_the_server_run_only_if_the_client_asks_for_them(url: str) -> None:
    own = complete(f"{url}c/own%20tools/", "!tool now {}", {"x-nplt-tools": "server"})
    assert "20" in own.json["choices"][0]["message"]["content"]
    assert complete(url, "x", {"x-nplt-conversation": "x", "x-nplt-tools": "?"}).status == 400


def test_an_instruction_is_stored_and_changed(
    url: str, shared_server: ServerProcess, connect: Connect
) -> None:
    session_id = ""
    for text in ("be brief", "be brief", "be long"):
        messages = [{"role": "system", "content": text}, {"role": "user", "content": "x"}]
        answer = complete(f"{url}c/instructed/", "", messages=messages)
        session_id = answer.headers["x-nplt-conversation"]
    terminal = connect(shared_server)
    terminal.hello()
    page = terminal.request(HISTORY_REQUEST, {"session_id": session_id, "view": "entries"}).json
    kinds = [entry["kind"] for entry in page["messages"]]
    said = [e["content"] for e in page["messages"] if e["kind"] == "system_instruction"]
    assert (said, kinds.count("model_input")) == (["be brief", "be long"], 3)


def _chat(*texts: str) -> list[dict[str, str]]:
    """A history in which each prompt was echoed, and a last prompt."""
    messages = []
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return messages[:-1]


def test_a_history_that_extends_the_record_adds_what_is_new(
    url: str, contents: Callable[[str], list[str]]
) -> None:
    answer = complete(f"{url}c/extended/", "", messages=_chat("one", "two"))
    session_id = answer.headers["x-nplt-conversation"]
    assert contents(session_id) == ["one", "one", "two", "two"]
    complete(f"{url}c/extended/", "", messages=_chat("one", "two", "three"))
    assert contents(session_id) == ["one", "one", "two", "two", "three", "three"]


def test_a_changed_prompt_of_the_same_client_replaces_the_turns_from_there(
    url: str, contents: Callable[[str], list[str]]
) -> None:
    for texts in (("one",), ("one", "two"), ("one", "two", "three"), ("one", "other")):
        answer = complete(f"{url}c/edited/", "", messages=_chat(*texts))
    session_id = answer.headers["x-nplt-conversation"]
    assert contents(session_id) == ["one", "one", "other", "other"]


def test_a_turn_that_the_client_never_received_is_skipped_in_comparing(
    url: str, shared_server: ServerProcess, connect: Connect, contents: Callable[[str], list[str]]
) -> None:
    session_id = complete(f"{url}c/shared/", "one").headers["x-nplt-conversation"]
    terminal = connect(shared_server)
    terminal.hello({"session_id": session_id})
    terminal.ask("typed")
    again = complete(f"{url}c/shared/", "", messages=_chat("one", "two"))
    assert again.headers["x-nplt-conversation"] == session_id
    assert contents(session_id) == ["one", "one", "typed", "typed", "two", "two"]


def test_a_history_that_would_remove_the_turn_of_a_terminal_forks(
    url: str, shared_server: ServerProcess, connect: Connect, contents: Callable[[str], list[str]]
) -> None:
    session_id = complete(f"{url}c/forked/", "one").headers["x-nplt-conversation"]
    terminal = connect(shared_server)
    terminal.hello({"session_id": session_id})
    terminal.ask("typed")
    other = complete(f"{url}c/forked/", "", messages=_chat("changed"))
    assert other.headers["x-nplt-conversation"] == session_id  # no answer in it: all is new
    other = complete(f"{url}c/forked/", "", messages=_chat("another", "two"))
    assert other.json["choices"][0]["message"]["content"] == "two"
    assert other.headers["x-nplt-conversation"] != session_id
    assert contents(session_id)[:4] == ["one", "one", "typed", "typed"]


def test_an_approval_is_asked_at_a_terminal_and_denied_without_one(
    start_server: Start, connect: Connect
) -> None:
    server = start_server(tools={"now": "ask"})
    headers = {"x-nplt-tools": "server"}
    alone = complete(f"{server.http_url}c/asking/", "!tool now {}", headers)
    assert "20" not in alone.json["choices"][0]["message"]["content"]
    terminal = connect(server)
    terminal.hello({"session_id": "asking"})
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(complete, f"{server.http_url}c/asking/", "!tool now {}", headers)
        asked = terminal.event(APPROVAL_REQUEST).json
        terminal.request(APPROVAL, {"approval_id": asked["approval_id"], "decision": "allow"})
        content = answer.result(30).json["choices"][0]["message"]["content"]
    assert "20" in content
