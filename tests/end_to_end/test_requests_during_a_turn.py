"""Reading goes on while a turn runs, and conversations don't wait for each other."""

from __future__ import annotations

import pytest
from tests.conftest import Connect
from tests.support.raw_client import (
    ATTACH,
    CANCEL,
    ENTRY,
    HISTORY_REQUEST,
    PING,
    PROMPT,
    SESSION_LIST,
    SESSION_SWITCH,
    TEXT_DELTA,
    TURN_FINISHED,
    TURN_STARTED,
    RawClient,
)
from tests.support.server_process import ServerProcess


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


def in_mid_answer(client: RawClient, text: str = "!slow 60 one two three four five") -> str:
    turn_id: str = client.request(PROMPT, {"text": text}).json["turn_id"]
    client.event(TEXT_DELTA)
    return turn_id


def test_ping_history_and_cancel_get_replies_during_a_slow_answer(
    connect: Connect,
) -> None:
    client = connect()
    client.hello()
    in_mid_answer(client)
    assert client.request(PING, b"are you there").payload == b"are you there"
    page = client.request(HISTORY_REQUEST).json
    assert [message["role"] for message in page["messages"]] == ["user"]
    assert client.request(CANCEL).json == {"cancelled": True}
    finished = client.event(TURN_FINISHED).json
    assert finished["state"] == "interrupted"


def test_a_cancelled_answer_keeps_its_partial_text(connect: Connect) -> None:
    client = connect()
    client.hello()
    in_mid_answer(client)
    client.request(CANCEL)
    client.event(TURN_FINISHED)
    answer = client.request(HISTORY_REQUEST).json["messages"][-1]
    assert (answer["role"], answer["state"]) == ("assistant", "interrupted")
    assert ["!slow", "60", "one two three four five"][2].startswith(answer["content"].strip())
    assert answer["content"]


def test_turns_of_two_conversations_run_concurrently(connect: Connect) -> None:
    slow, quick = connect(), connect()
    slow.hello()
    quick.hello()
    in_mid_answer(slow)
    for number in range(5):
        assert quick.ask(f"quick {number}") == f"quick {number}"
    assert slow.request(CANCEL).json == {"cancelled": True}


def test_switching_is_per_connection_and_stops_no_turn(connect: Connect) -> None:
    here, there = connect(), connect()
    session_id = here.hello()["session_id"]
    there.hello()
    there.request(ATTACH, {"session_id": session_id})
    in_mid_answer(here, "!slow 1 a few words that take a second")
    here.request(
        SESSION_SWITCH,
        {"session_id": there.request(SESSION_LIST).json["sessions"][0]["session_id"]},
    )
    assert there.event(TURN_FINISHED).json["state"] == "completed"


def test_closing_the_connection_stops_no_turn(connect: Connect) -> None:
    watcher, leaver = connect(), connect()
    watcher.hello()
    session_id = leaver.hello()["session_id"]
    in_mid_answer(leaver, "!slow 1 said to the end although nobody asked again")
    leaver.sock.close()
    watcher.request(ATTACH, {"session_id": session_id})
    watcher.event(TURN_FINISHED)
    page = watcher.request(HISTORY_REQUEST).json
    assert page["messages"][-1]["content"] == "said to the end although nobody asked again"


def test_all_attached_clients_get_the_same_events_in_the_same_order(connect: Connect) -> None:
    first, second, third = connect(), connect(), connect()
    session_id = first.hello()["session_id"]
    for client in (second, third):
        client.hello()
        client.request(ATTACH, {"session_id": session_id})
    turns = [first.request(PROMPT, {"text": "from the first"}).json["turn_id"]]
    turns += [second.request(PROMPT, {"text": "from the second"}).json["turn_id"]]
    seen = [events_until(client, turns[-1]) for client in (first, second, third)]
    assert seen[0] == seen[1] == seen[2]
    typed = [kind for kind, _ in seen[2]]
    assert typed.count(ENTRY) == 4
    assert typed.count(TURN_FINISHED) == 2


def events_until(client: RawClient, turn_id: str) -> list[tuple[int, bytes]]:
    """But for who came: that is told to those who were there before."""
    seen = []
    for frame in client.events():
        if frame.seq == 0 and b'"event":"presence"' not in frame.payload:
            seen.append((frame.type, frame.payload))
        if frame.type == TURN_FINISHED and frame.json["turn_id"] == turn_id:
            return seen
    raise AssertionError("unreachable")


def test_attaching_in_mid_answer_replays_the_deltas_and_streams_the_rest(connect: Connect) -> None:
    prompter, late = connect(), connect()
    session_id = prompter.hello()["session_id"]
    late.hello()
    turn_id = in_mid_answer(prompter, "!slow 1 what you say to one you say to all")
    attached = late.request(ATTACH, {"session_id": session_id, "after_seq": 0}).json
    assert attached["active_turn"]["turn_id"] == turn_id
    entries, text = [], ""
    for frame in late.events():
        if frame.type == ENTRY:
            entries.append(frame.json["entry"]["content"])
        if frame.type == TEXT_DELTA:
            assert frame.json["offset"] == len(text)
            text += frame.json["text"]
        if frame.type == TURN_FINISHED:
            break
    assert text == entries[-1] == "what you say to one you say to all"
    assert entries[0] == "!slow 1 what you say to one you say to all"


def test_a_reconnecting_client_resumes_at_its_delta_offset(connect: Connect) -> None:
    client = connect()
    session_id = client.hello()["session_id"]
    turn_id = in_mid_answer(client, "!slow 1 a rolling stone gathers no moss")
    client.sock.close()
    back = connect()
    back.hello()
    cursor = {"session_id": session_id, "turn_id": turn_id, "call": 0, "offset": 1}
    back.request(ATTACH, cursor)
    text = "a"
    for frame in back.events():
        if frame.type == TEXT_DELTA:
            assert frame.json["offset"] == len(text)
            text += frame.json["text"]
        if frame.type == TURN_FINISHED:
            break
    assert text == "a rolling stone gathers no moss"


def test_an_observer_gets_events_but_may_not_prompt(connect: Connect) -> None:
    speaker, observer = connect(), connect()
    session_id = speaker.hello()["session_id"]
    observer.hello()
    observer.request(ATTACH, {"session_id": session_id, "observer": True})
    assert observer.request(PROMPT, {"text": "me too"}).json["code"] == "forbidden"
    speaker.ask("hello")
    assert observer.event(TURN_STARTED)


def test_a_prompt_to_a_conversation_not_attached_to_gets_only_its_receipt(connect: Connect) -> None:
    here, there = connect(), connect()
    here.hello()
    session_id = there.hello()["session_id"]
    there.ask("hello")
    receipt = here.request(PROMPT, {"text": "a letter", "session_id": session_id}).json
    assert receipt["session_id"] == session_id
    there.event(TURN_FINISHED)
    assert here.request(PING).type == 0x05
    assert here.pushed == []
