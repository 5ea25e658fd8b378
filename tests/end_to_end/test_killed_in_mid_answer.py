"""`kill -9` while an answer streams: what people saw is what the record holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.raw_client import (
    ATTACH,
    HISTORY_REQUEST,
    PROMPT,
    TEXT_DELTA,
    RawClient,
)
from tests.support.server_process import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "data").start()
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
