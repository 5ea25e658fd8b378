"""`kill -9` while an answer streams: what people saw is what the record holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.raw_client import (
    ATTACH,
    CANCEL,
    HISTORY_REQUEST,
    PROMPT,
    TEXT_DELTA,
    TURN_FINISHED,
    RawClient,
)
from tests.support.server_process import ServerProcess

SLOW = {"id": "slow", "type": "offline", "words_per_second": 5}
THOUGHTS = "!think " + "thought " * 600


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(
        tmp_path / "data",
        settings={"providers": [{"id": "offline", "type": "offline", "words_per_second": 0}, SLOW]},
    ).start()
    yield server
    server.kill()


def shown_before_the_kill(server: ServerProcess, prompt: str, deltas: int) -> tuple[str, str]:
    """The conversation, and the text that reached a client before the server died."""
    with RawClient(server.port) as client:
        client.hello()
        receipt = client.request(PROMPT, {"text": prompt}).json
        shown = ""
        for _ in range(deltas):
            shown += client.event(TEXT_DELTA).json["text"]
        server.kill()
        for frame in client.until_closed():
            if frame.type == TEXT_DELTA:
                shown += frame.json["text"]
    return receipt["session_id"], shown


def last_answer(server: ServerProcess, session_id: str) -> dict[str, object]:
    with RawClient(server.port) as client:
        client.hello()
        client.request(ATTACH, {"session_id": session_id})
        page = client.request(HISTORY_REQUEST, {"session_id": session_id}).json
        answers = [each for each in page["messages"] if each["role"] == "assistant"]
        assert len(answers) == 1
        return dict(answers[0])


@pytest.mark.parametrize("deltas", [1, 7])
def test_after_a_kill_the_streamed_text_is_kept_as_an_interrupted_answer(
    server: ServerProcess, deltas: int
) -> None:
    session_id, shown = shown_before_the_kill(server, "!slow 60 " + "word " * 600, deltas)
    server.start()
    answer = last_answer(server, session_id)
    assert answer["state"] == "interrupted"
    content = answer["content"]
    assert isinstance(content, str)
    # All that was shown is there; a piece may have been noted and not have arrived.
    assert content.startswith(shown)
    assert shown


def begin_to_think(client: RawClient) -> tuple[dict[str, str], str]:
    """The receipt of a prompt, and the reasoning that came first."""
    client.hello()
    receipt = client.request(PROMPT, {"text": THOUGHTS, "model": "slow/echo"}).json
    return receipt, next(
        each.json["text"] for each in client.events() if each.json.get("type") == "reasoning"
    )


def outputs(server: ServerProcess, session_id: str) -> list[dict[str, Any]]:
    with RawClient(server.port) as client:
        client.hello()
        client.request(ATTACH, {"session_id": session_id})
        page = client.request(HISTORY_REQUEST, {"session_id": session_id, "view": "entries"}).json
        return [each for each in page["messages"] if each["kind"] != "model_input"]


def test_reasoning_without_text_is_kept_after_a_kill(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        receipt, shown = begin_to_think(client)
        server.kill()
    server.start()
    (output,) = outputs(server, receipt["session_id"])
    assert (output["kind"], output["state"], output["content"]) == (
        "model_output",
        "interrupted",
        "",
    )
    assert output["reasoning"].startswith(shown)


def test_reasoning_without_text_is_kept_when_its_turn_is_cancelled(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        receipt, shown = begin_to_think(client)
        client.request(CANCEL, {"turn_id": receipt["turn_id"]})
        assert client.event(TURN_FINISHED).json["state"] == "interrupted"
    (output,) = outputs(server, receipt["session_id"])
    assert (output["kind"], output["state"]) == ("model_output", "interrupted")
    assert output["reasoning"].startswith(shown)
    with RawClient(server.port) as client:
        client.hello()
        client.request(ATTACH, {"session_id": receipt["session_id"]})
        assert client.ask("and now?") == "and now?"


def test_after_a_kill_in_mid_answer_the_conversation_continues(server: ServerProcess) -> None:
    session_id, _ = shown_before_the_kill(server, "!slow 60 " + "word " * 600, 2)
    server.start()
    last_answer(server, session_id)
    with RawClient(server.port) as client:
        client.hello()
        client.request(ATTACH, {"session_id": session_id})
        assert client.ask("and now?") == "and now?"
    server.restart()
    with RawClient(server.port) as client:
        client.hello()
        page = client.request(HISTORY_REQUEST, {"session_id": session_id}).json
        states = [each.get("state") for each in page["messages"] if each["role"] == "assistant"]
        assert states == ["interrupted", "completed"]


def test_a_finished_answer_leaves_no_live_journal_behind(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.hello()
        client.ask("a few words to echo")
    server.terminate()
    assert not list((server.data_dir / "history").rglob("*.live"))
