"""A conversation that was closed because it was idle is opened again, and nobody notices."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.raw_client import (
    APPROVAL,
    APPROVAL_REQUEST,
    ATTACH,
    DETACH,
    HISTORY_REQUEST,
    MODEL_SWITCH,
    PROMPT,
    ROLLBACK,
    SESSION_LIST,
    SESSION_NEW,
    TURN_FINISHED,
    RawClient,
)
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
SECONDS_MAX = 30.0


@pytest.fixture
def server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    return start_server(limits={"idle_conversation_seconds_max": 1}, tools={"now": "ask"})


@pytest.fixture
def client(server: ServerProcess) -> Iterator[RawClient]:
    with RawClient(server.port) as client:
        client.hello()
        yield client


def open_files(server: ServerProcess, session_id: str) -> list[str]:
    found: list[str] = []
    for link in Path(f"/proc/{server.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            found.append(str(link.readlink()))
    return [path for path in found if session_id in path]


def wait_until_closed(server: ServerProcess, session_id: str) -> None:
    until = time.monotonic() + SECONDS_MAX
    while open_files(server, session_id):
        assert time.monotonic() < until, "the file is still open"
        time.sleep(0.05)


def leave(server: ServerProcess, client: RawClient, session_id: str) -> None:
    """Detaches, and waits until the server has closed the conversation."""
    client.request(DETACH)
    wait_until_closed(server, session_id)
    client.pushed.clear()


def test_attach_after_an_idle_close_has_missed_nothing(
    server: ServerProcess, client: RawClient
) -> None:
    session_id = client.request(SESSION_NEW).json["session_id"]
    client.ask("first")
    assert open_files(server, session_id)
    leave(server, client, session_id)
    attached = client.request(ATTACH, {"session_id": session_id}).json
    assert attached["active_turn"] is None
    assert client.ask("second") == "second"
    page = client.request(HISTORY_REQUEST).json
    said = [message["content"] for message in page["messages"]]
    assert said == ["first", "first", "second", "second"]


def test_a_prompt_by_session_id_opens_an_idle_conversation(
    server: ServerProcess, client: RawClient
) -> None:
    session_id = client.request(SESSION_NEW).json["session_id"]
    sent = {"text": "once", "message_id": "m1", "session_id": session_id}
    first = client.request(PROMPT, sent).json
    client.event(TURN_FINISHED)
    leave(server, client, session_id)
    again = client.request(PROMPT, sent).json
    assert (again["duplicate"], again["turn_id"]) == (True, first["turn_id"])
    leave(server, client, session_id)
    other = client.request(PROMPT, {"text": "twice", "session_id": session_id}).json
    assert other["seq"] > first["seq"]


def test_choices_and_rollbacks_outlive_an_idle_close(
    server: ServerProcess, client: RawClient
) -> None:
    session_id = client.request(SESSION_NEW, {"name": "kept"}).json["session_id"]
    client.request(MODEL_SWITCH, {"options": {"temperature": 0.5}})
    client.ask("one")
    client.ask("two")
    client.request(ROLLBACK, {"to_seq": 0})
    leave(server, client, session_id)
    client.request(ROLLBACK, {"session_id": session_id, "redo": True})
    client.request(ATTACH, {"session_id": session_id})
    assert client.request(MODEL_SWITCH).json["options"] == {"temperature": 0.5}
    (row,) = client.request(SESSION_LIST, {"query": "kept"}).json["sessions"]
    assert (row["message_count"], row["state"]) == (4, "idle")


def test_a_remembered_approval_outlives_an_idle_close(
    server: ServerProcess, client: RawClient
) -> None:
    session_id = client.request(SESSION_NEW).json["session_id"]
    client.request(PROMPT, {"text": "!tool now {}"})
    question = client.event(APPROVAL_REQUEST).json["approval_id"]
    decision = {"approval_id": question, "decision": "allow", "remember": True}
    client.request(APPROVAL, decision)
    client.event(TURN_FINISHED)
    leave(server, client, session_id)
    client.request(ATTACH, {"session_id": session_id})
    client.request(PROMPT, {"text": "!tool now {}"})
    assert client.event(TURN_FINISHED, APPROVAL_REQUEST).type == TURN_FINISHED
