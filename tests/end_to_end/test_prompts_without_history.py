"""What of the history a model is shown, and what people are told of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.raw_client import RawClient
from tests.support.server_process import ServerProcess
from tests.support.server_thread import serving_here

from nplt_client import AgentThought, RequestRefused, sync
from nplt_client.render.text import number_in
from nplt_protocol.json_text import JsonObject


def test_a_prompt_can_be_answered_without_the_history(shared_server: ServerProcess) -> None:
    """`offline/echo` reports the words of its context as tokens."""

    def words(client: sync.Client, prompt: str, **options: bool) -> int:
        turn = client.ask(prompt, options=dict(options))
        for _ in turn:
            pass
        assert turn.finished is not None
        return number_in(turn.finished.usage, "input_tokens")

    with sync.connect(f"nplt://127.0.0.1:{shared_server.port}") as client:
        client.new(system="Be brief.")
        assert words(client, "one") == 3
        assert words(client, "two") == 3 + 2
        assert words(client, "three", use_history=False) == 3
        assert words(client, "four", use_history=True) == 3 + 2 + 2 + 2, "it is stored like others"
        epochs = [
            entry for entry in client.history(view="entries").messages if entry["kind"] == "epoch"
        ]
        assert epochs == []
        with pytest.raises(RequestRefused, match="use_history"):
            client.ask_text("five", options={"use_history": "no"})


def test_cleared_messages_stay_in_the_history_and_are_marked(shared_server: ServerProcess) -> None:
    with sync.connect(f"nplt://127.0.0.1:{shared_server.port}") as client:
        client.ask_text("one")
        assert all("cleared" not in message for message in client.history().messages)
        client.clear()
        client.ask_text("two")
        marks = [(m["content"], m.get("cleared", False)) for m in client.history().messages]
        assert marks == [("one", True), ("one", True), ("two", False), ("two", False)]
        older = client.history(limit=1, before=3).messages
        assert [message.get("cleared") for message in older] == [True]
        client.roll_back(2)
        assert all("cleared" not in message for message in client.history().messages)


def test_a_session_has_the_history_of_its_conversation(tmp_path: Path) -> None:
    with serving_here(tmp_path, {}) as (port, server), RawClient(port) as client:
        client.hello()
        (session,) = server.sessions
        before = session.conversation_history
        assert before is None, "nothing is stored yet"
        client.ask("hello")
        history = session.conversation_history
        assert history is not None
        assert [message.content for message in history.messages] == ["hello", "hello"]


def test_metadata_keys_that_are_not_snake_case_are_refused_by_their_field(
    shared_server: ServerProcess,
) -> None:
    with sync.connect(f"nplt://127.0.0.1:{shared_server.port}") as client:
        with pytest.raises(RequestRefused, match="'camelCase' is not snake_case") as refused:
            client.ask_text("hi", metadata={"camelCase": 1})
        assert (refused.value.code, refused.value.field) == ("malformed", "metadata")


def test_people_are_told_when_older_turns_are_shortened_for_the_first_time(tmp_path: Path) -> None:
    def ask(client: sync.Client, prompt: str) -> tuple[JsonObject | None, list[str]]:
        turn = client.ask(prompt)
        thoughts = [event for event in turn if isinstance(event, AgentThought)]
        assert turn.finished is not None
        return turn.finished.cut, [one.content or "" for one in thoughts if one.type == "cut"]

    settings = {"models": {"offline/echo": {"context_tokens": 4_000}}}
    with (
        serving_here(tmp_path, settings) as (port, _),
        sync.connect(f"nplt://127.0.0.1:{port}") as client,
    ):
        cut: JsonObject | None = None
        told: list[str] = []
        for number in range(30):
            cut, told = ask(client, f"!slow 0.01 {number} {'words and more words ' * 40}")
            if cut:
                break
        assert cut is not None
        counts = number_in(cut, "shortened_turns"), number_in(cut, "omitted_turns")
        assert sum(counts) > 0
        assert told == [
            "to make room, offline/echo is shown older turns in less detail from now on: "
            f"{counts[0]} shortened, {counts[1]} left out (nplt context lists them)"
        ]
        assert "tokens" not in cut, "the prompt itself was not cut"
        assert ask(client, "short") == (None, [])
