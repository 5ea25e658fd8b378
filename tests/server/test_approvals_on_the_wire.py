"""Approvals and presence over real sockets, with a real server that is killed at times."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.conftest import Connect
from tests.support.raw_client import (
    ATTACH,
    CANCEL,
    CLEAR_REQUEST,
    COMPACT,
    DETACH,
    HISTORY_REQUEST,
    PROMPT,
    REDACT,
    SESSION_EVENT,
    SESSION_LIST,
    STATUS,
    TOOL_STARTED,
    TOOLS,
    TURN_FINISHED,
    Frame,
    RawClient,
)
from tests.support.server_process import ServerProcess

APPROVAL, APPROVAL_REQUEST = 0x1D, 0x27
ROUNDS = 30


@pytest.fixture(scope="module")
def asking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data_dir = tmp_path_factory.mktemp("asking") / "data"
    server = ServerProcess(data_dir, settings={"tools": {"now": "ask"}}).start()
    yield server
    assert server.terminate() == 0


@pytest.fixture
def server(asking_server: ServerProcess) -> ServerProcess:
    return asking_server


def asked(client: RawClient, text: str = "!tool now {}") -> Any:
    client.request(PROMPT, {"text": text})
    return client.event(APPROVAL_REQUEST).json


def answer(client: RawClient, question: Any, decision: str) -> Any:
    decision_json = {"approval_id": question["approval_id"], "decision": decision}
    return client.request(APPROVAL, decision_json).json


def test_three_clients_race_to_decide_approvals_and_all_get_the_same_decisions(
    connect: Connect,
) -> None:
    dice = random.Random(6)
    clients = [connect() for _ in range(3)]
    session_id = clients[0].hello()["session_id"]
    for client in clients[1:]:
        client.hello()
        client.request(ATTACH, {"session_id": session_id})
    received: list[list[Frame]] = [[], [], []]
    for _ in range(ROUNDS):
        clients[0].send(PROMPT, 9_000, {"text": "!tool now {}"})
        question = [
            until(client, received[n], APPROVAL_REQUEST) for n, client in enumerate(clients)
        ]
        racers = dice.sample(range(3), dice.randint(1, 3))
        for place in racers:
            decision_json = {"approval_id": question[0]["approval_id"]}
            clients[place].send(
                APPROVAL, 9_001, {**decision_json, "decision": dice.choice(["allow", "deny"])}
            )
        for n, client in enumerate(clients):
            until(client, received[n], TURN_FINISHED)
    events = [[frame.payload for frame in frames if frame.seq == 0] for frames in received]
    # Presence is told to those who were there before.
    shared = [
        [decision_json for decision_json in each if b'"presence"' not in decision_json]
        for each in events
    ]
    assert shared[0] == shared[1] == shared[2]
    decided = decisions(received[0])
    assert len(decided) == ROUNDS
    for frames in received:
        replies = [frame.json for frame in frames if frame.type == APPROVAL]
        for reply in replies:
            assert reply["decision"] == decided[reply["approval_id"]]


def until(client: RawClient, received: list[Frame], last: int) -> Any:
    for frame in client.events():
        received.append(frame)
        if frame.type == last:
            return frame.json
    raise AssertionError("unreachable")


def decisions(frames: list[Frame]) -> dict[str, str]:
    """By the question; it is a mistake if there are two of one."""
    found: dict[str, str] = {}
    for frame in frames:
        if frame.type == SESSION_EVENT and frame.json["event"] == "approval":
            assert frame.json["approval_id"] not in found
            found[frame.json["approval_id"]] = frame.json["decision"]
    return found


def test_an_observer_may_not_decide_an_approval_and_another_connection_may(
    connect: Connect,
) -> None:
    here, observer, elsewhere = connect(), connect(), connect()
    session_id = here.hello()["session_id"]
    observer.hello()
    elsewhere.hello()
    question = asked(here)
    attached = observer.request(ATTACH, {"session_id": session_id, "observer": True}).json
    assert attached["pending_approvals"] == [question]
    assert answer(observer, question, "allow")["code"] == "forbidden"
    assert answer(elsewhere, {"approval_id": "nothing"}, "allow")["code"] == "not_found"
    assert answer(elsewhere, question, "allow") == {
        "approval_id": question["approval_id"],
        "decision": "allow",
        "decided_by": "local",
    }
    assert here.event(TURN_FINISHED).json["state"] == "completed"


def test_a_second_approval_from_an_unattached_connection_gets_the_decision_that_holds(
    connect: Connect,
) -> None:
    client, other = connect(), connect()
    client.hello()
    other.hello()
    question = asked(client)
    first = answer(other, question, "deny")
    client.event(TURN_FINISHED)
    assert answer(other, question, "allow") == first
    assert first["decision"] == "deny"


@pytest.mark.parametrize("request_type", [CLEAR_REQUEST, COMPACT])
def test_clear_and_compact_behind_a_pending_approval_are_busy(
    connect: Connect, request_type: int
) -> None:
    client = connect()
    client.hello()
    question = asked(client)
    refused = client.request(request_type).json
    assert (refused["code"], refused["retryable"]) == ("busy", True)
    assert "approval (now)" in refused["message"]
    answer(client, question, "deny")
    client.event(TURN_FINISHED)
    # So short a conversation can't be compacted, but that is another refusal.
    assert client.request(request_type).json.get("code") != "busy"


def test_a_redaction_behind_a_pending_approval_is_busy_and_names_the_tool(
    connect: Connect,
) -> None:
    client = connect()
    client.hello()
    client.ask("oops")
    question = asked(client)
    refused = client.request(REDACT, {"seq": 1}).json
    assert (refused["code"], refused["retryable"]) == ("busy", True)
    assert "approval (now)" in refused["message"]
    answer(client, question, "deny")
    client.event(TURN_FINISHED)
    assert client.request(REDACT, {"seq": 1}).json["seq"] == 1


def test_a_conversation_with_a_pending_approval_is_listed_as_asking(connect: Connect) -> None:
    client = connect()
    session_id = client.hello()["session_id"]
    question = asked(client)
    rows = client.request(SESSION_LIST).json["sessions"]
    assert [row["state"] for row in rows if row["session_id"] == session_id] == ["asking"]
    assert client.request(STATUS).json["conversations"]["open"]["asking"] == 1
    answer(client, question, "deny")
    client.event(TURN_FINISHED)


def test_a_remembered_approval_shows_in_the_tools_of_the_conversation(connect: Connect) -> None:
    here, elsewhere = connect(), connect()
    here.hello()
    elsewhere.hello()
    question = asked(here)
    decision_json = {"approval_id": question["approval_id"], "decision": "allow", "remember": True}
    here.request(APPROVAL, decision_json)
    here.event(TURN_FINISHED)
    policies = [
        [tool["policy"] for tool in client.request(TOOLS).json["tools"] if tool["name"] == "now"]
        for client in (here, elsewhere)
    ]
    assert policies == [["allow"], ["ask"]]
    here.request(PROMPT, {"text": "!tool now {}"})
    assert here.event(APPROVAL_REQUEST, TURN_FINISHED).type == TURN_FINISHED


def test_a_plain_client_alone_gets_a_denied_approval_with_the_reason(connect: Connect) -> None:
    client = connect()
    client.greeting()
    decision_json = "".join(
        frame.text for frame in client.chat("!tool now {}") if frame.type == 0x01
    )
    assert "nobody is here who could be asked" in decision_json


def test_a_half_closed_client_can_not_decide_approvals_and_still_gets_its_answer(
    connect: Connect,
) -> None:
    client, observer, elsewhere = connect(), connect(), connect()
    session_id = client.hello({"client": "once/1"})["session_id"]
    observer.hello()
    elsewhere.hello()
    observer.request(ATTACH, {"session_id": session_id, "observer": True})
    before = client.request(PROMPT, {"text": "!slow 60"}).json["turn_id"]
    client.send(PROMPT, 9, {"text": "!tool now {}"})
    client.sock.shutdown(socket.SHUT_WR)
    assert observer.event(SESSION_EVENT).json["left"]["client"] == "once/1"
    elsewhere.request(CANCEL, {"turn_id": before})
    received = client.until_closed()
    (reason,) = [
        frame.json["reason"]
        for frame in received
        if frame.type == SESSION_EVENT and frame.json["event"] == "approval"
    ]
    assert reason == "nobody_there"
    assert received[-1].type == TURN_FINISHED


def test_presence_events_announce_joining_and_leaving_clients(connect: Connect) -> None:
    here, guest = connect(), connect()
    session_id = here.hello({"client": "first/1"})["session_id"]
    guest.hello({"client": "second/1"})
    attached = guest.request(ATTACH, {"session_id": session_id, "observer": True}).json
    joined = here.event(SESSION_EVENT).json
    assert joined["event"] == "presence"
    assert [one["client"] for one in joined["clients"]] == ["first/1", "second/1"]
    assert joined["clients"] == attached["clients"]
    assert joined["joined"] == attached["clients"][1]
    assert (joined["joined"]["user"], joined["joined"]["observer"]) == ("local", True)

    assert guest.request(DETACH).json == {}
    assert guest.pushed == []
    left = here.event(SESSION_EVENT).json
    assert (left["left"], left["count"]) == (joined["joined"], 1)

    guest.request(ATTACH, {"session_id": session_id})
    here.event(SESSION_EVENT)
    guest.sock.close()
    assert here.event(SESSION_EVENT).json["left"]["client"] == "second/1"


@pytest.mark.parametrize("end", [ServerProcess.kill, ServerProcess.terminate])
def test_a_pending_approval_survives_a_restart(
    start_server: Callable[..., ServerProcess],
    connect: Connect,
    end: Callable[[ServerProcess], int],
) -> None:
    server = start_server(tools={"now": "ask"}, limits={"drain_seconds_max": 30})
    client = connect(server)
    session_id = client.hello()["session_id"]
    question = asked(client)
    end(server)
    server.start()
    client = connect(server)
    client.hello()
    attached = client.request(ATTACH, {"session_id": session_id}).json
    assert attached["pending_approvals"] == [question]
    assert attached["active_turn"]["turn_id"] == question["turn_id"]
    assert answer(client, question, "allow")["decision"] == "allow"
    finished = client.event(TURN_FINISHED).json
    assert (finished["turn_id"], finished["state"]) == (question["turn_id"], "completed")
    kinds = [entry["kind"] for entry in entries_of(client, session_id)]
    assert kinds == [
        "model_input",
        "model_output",
        "approval",
        "approval",
        "tool_results",
        "model_output",
    ]


def entries_of(client: RawClient, session_id: str) -> list[Any]:
    asked_for = {
        "session_id": session_id,
        "view": "entries",
        "roles": ["user", "assistant", "system"],
    }
    page = client.request(HISTORY_REQUEST, asked_for).json
    return [message for message in page["messages"] if message["kind"] != "debug"]


def test_a_server_killed_during_a_tool_records_an_unknown_outcome(
    start_server: Callable[..., ServerProcess], connect: Connect
) -> None:
    server = start_server()
    # The tool takes a tenth of a second; should the kill come later than that, once more.
    attempts = (killed_while_a_tool_ran(server, connect) for _ in range(10))
    entries = next(entries for entries in attempts if result_in(entries)["status"] != "success")
    result = result_in(entries)
    assert result["status"] == "failed"
    assert result["result"].startswith("outcome unknown: ")
    assert [(entry["kind"], entry.get("state")) for entry in entries][-2:] == [
        ("tool_results", None),
        ("fault", "interrupted"),
    ]


def killed_while_a_tool_ran(server: ServerProcess, connect: Connect) -> list[Any]:
    client = connect(server)
    session_id = client.hello()["session_id"]
    client.request(PROMPT, {"text": '!tool sys_monitor {"metric": "cpu"}'})
    client.event(TOOL_STARTED)
    server.kill()
    server.start()
    client = connect(server)
    client.hello()
    client.request(ATTACH, {"session_id": session_id})
    return entries_of(client, session_id)


def result_in(entries: list[Any]) -> Any:
    (results,) = [entry for entry in entries if entry["kind"] == "tool_results"]
    (result,) = results["tool_calls"]
    return result
