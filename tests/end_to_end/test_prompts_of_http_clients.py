"""What a prompt carries for clients that come by HTTP: options, an instruction, digests, ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.test_client_tools import READ, messages, play, shown, talking
from tests.support.raw_client import (
    ATTACH,
    ERROR,
    HISTORY_REQUEST,
    PROMPT,
    SESSION_DELETE,
    SESSION_NEW,
    SESSION_UPDATE,
    RawClient,
)
from tests.support.scripted_vendor import chat, chat_calls, message, vendor
from tests.support.server_thread import serving

Json = dict[str, Any]
ALL: Json = {
    "top_p": 0.5,
    "stop": ["END"],
    "seed": 7,
    "tool_choice": {"name": "read_file"},
    "parallel_tool_calls": False,
}


def test_openai_is_sent_the_options_of_the_prompt(tmp_path: Path) -> None:
    with talking(tmp_path, chat("ok")) as (client, server):
        play(client, {"text": "hi", "tools": [READ], "options": ALL})
        sent = server.requests[0]
        assert (sent["top_p"], sent["stop"], sent["seed"]) == (0.5, ["END"], 7)
        assert sent["tool_choice"] == {"type": "function", "function": {"name": "read_file"}}
        assert sent["parallel_tool_calls"] is False


def test_the_responses_api_is_sent_the_options_that_it_takes(tmp_path: Path) -> None:
    with (
        vendor(chat("ok")) as server,
        serving(tmp_path / "data", {"providers": [server.provider(api="responses")]}) as port,
        RawClient(port) as client,
    ):
        client.hello()
        client.request(PROMPT, {"text": "hi", "tools": [READ], "options": ALL})
        client.event(0x25)
        sent = server.requests[0]
        assert sent["top_p"] == 0.5
        assert sent["tool_choice"] == {"type": "function", "name": "read_file"}
        assert sent["parallel_tool_calls"] is False
        assert "stop" not in sent
        assert "seed" not in sent


def test_anthropic_is_sent_the_options_in_its_own_words(tmp_path: Path) -> None:
    with (
        vendor(message("ok")) as server,
        serving(tmp_path / "data", {"providers": [server.claude()]}) as port,
        RawClient(port) as client,
    ):
        client.hello()
        play(client, {"text": "hi", "tools": [READ], "options": ALL})
        sent = server.requests[0]
        assert sent["stop_sequences"] == ["END"]
        assert sent["tool_choice"]["disable_parallel_tool_use"] is True
        assert sent["tool_choice"]["type"] in ("tool", "auto")  # a thinking model can't be forced


def test_a_tool_that_must_be_called_is_asked_for_once_in_a_turn(tmp_path: Path) -> None:
    with talking(tmp_path, chat_calls(("c", "now", "{}")), chat("noon")) as (client, server):
        play(client, {"text": "hi", "options": {"tool_choice": "required"}})
        assert [each.get("tool_choice") for each in server.requests] == ["required", None]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 2),
        ("seed", "7"),
        ("seed", True),
        ("stop", [""]),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("tool_choice", "always"),
        ("tool_choice", {}),
        ("parallel_tool_calls", "no"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(
    tmp_path: Path, name: str, value: object
) -> None:
    with talking(tmp_path, chat("ok")) as (client, _):
        refused = client.request(PROMPT, {"text": "hi", "options": {name: value}})
        assert (refused.type, refused.json["field"]) == (ERROR, f"options.{name}")


def test_the_instruction_of_a_prompt_is_written_only_when_it_changes(tmp_path: Path) -> None:
    with talking(tmp_path, chat("ok")) as (client, server):
        for system in ("Be brief.", "Be brief.", None, "Rhyme."):
            play(client, {"text": "hi", "system": system})
        told = [each["messages"][0]["content"] for each in server.requests]
        assert [text.partition("\n")[0] for text in told] == [*["Be brief."] * 3, "Rhyme."]
        entries = messages(client, view="entries")
        written = [e["content"] for e in entries if e["kind"] == "system_instruction"]
        assert written[-2:] == ["Be brief.", "Rhyme."]


def test_a_prompt_sent_again_needs_the_digest_of_the_same_request(tmp_path: Path) -> None:
    first = {"text": "hi", "message_id": "key-1", "body_sha256": "a" * 64}
    with talking(tmp_path, chat("ok")) as (client, server):
        turn_id = play(client, first)["turn_id"]
        again = client.request(PROMPT, {**first, "text": "the rest of a list"}).json
        assert (again["duplicate"], again["turn_id"]) == (True, turn_id)
        refused = client.request(PROMPT, {**first, "body_sha256": "b" * 64}).json
        assert (refused["code"], refused["field"]) == ("conflict", "message_id")
        assert len(server.requests) == 1


def test_the_id_that_the_api_writes_names_the_conversation(tmp_path: Path) -> None:
    with talking(tmp_path, chat("ok")) as (client, server):
        play(client, {"text": "hi"})
        row = client.request(SESSION_UPDATE, {"name": "notes"}).json
        named = f"conv_{row['session_id']}"
        for request in (ATTACH, HISTORY_REQUEST, SESSION_UPDATE):
            answered = client.request(request, {"session_id": named})
            assert answered.json["session_id"] == row["session_id"], request
        client.request(PROMPT, {"text": "again", "session_id": named})
        client.event(0x25)
        assert shown(server)[-1] == ("user", "again")
        other = client.request(SESSION_NEW, {"name": named}).json["session_id"]
        assert client.request(ATTACH, {"session_id": named}).json["session_id"] == other
        client.request(SESSION_DELETE, {"session_id": f"conv_{other}"})
        assert client.request(ATTACH, {"session_id": other}).type == ERROR
