"""WATCH and SEEN over real sockets: states and unread answers of all conversations of a user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Connect
from tests.support.raw_client import (
    AGENT_THOUGHT,
    APPROVAL,
    APPROVAL_REQUEST,
    ATTACH,
    CANCEL,
    CHAT_TEXT,
    DETACH,
    ERROR,
    MODEL_SWITCH,
    PROMPT,
    ROLLBACK,
    SEEN,
    SESSION_CHANGED,
    SESSION_DELETE,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_NEW,
    SESSION_UPDATE,
    TEXT_DELTA,
    TURN_FINISHED,
    WATCH,
    RawClient,
)
from tests.support.scripted_vendor import chat, events, vendor
from tests.support.server_process import ServerProcess
from tests.support.server_thread import serving

Row = dict[str, Any]
MOVES = ("last_accessed", "is_current")
"""Fields that say nothing about the conversation's state."""


@pytest.fixture
def watcher(connect: Connect) -> RawClient:
    client = connect()
    client.hello()
    client.request(DETACH)
    assert client.request(WATCH).json["watching"] is True
    return client


@pytest.fixture
def writer(connect: Connect) -> RawClient:
    client = connect()
    client.hello()
    return client


def changes_of(client: RawClient, session_id: str) -> Iterator[Row | None]:
    """The rows of that conversation, as they come."""
    while True:
        event = client.event(SESSION_CHANGED).json
        if event["session_id"] == session_id:
            yield event["row"]


def until(client: RawClient, session_id: str, **wanted: object) -> Row:
    """The first row of that conversation that has these values."""
    for row in changes_of(client, session_id):
        if row is not None and all(row[name] == value for name, value in wanted.items()):
            return row
    raise AssertionError


def listed(client: RawClient) -> dict[str, Row]:
    rows: list[Row] = []
    cursor: str | None = None
    while True:
        page = client.request(SESSION_LIST, {"limit": 200, "cursor": cursor}).json
        rows += page["sessions"]
        if (cursor := page["next_cursor"]) is None:
            return {row["session_id"]: comparable(row) for row in rows}


def comparable(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in MOVES}


def answered(client: RawClient, text: str = "hello") -> Any:
    """Sends a prompt, and returns its receipt when the answer is there."""
    receipt = client.request(PROMPT, {"text": text}).json
    client.event(TURN_FINISHED)
    return receipt


def test_a_watcher_that_is_attached_to_nothing_sees_a_turn_run_and_end(
    watcher: RawClient, writer: RawClient
) -> None:
    receipt = writer.request(PROMPT, {"text": "!slow 0.6 one two"}).json
    session_id = receipt["session_id"]
    running = until(watcher, session_id, state="running")
    assert running["unread"] == 0
    assert running["running_since"] is not None
    row = until(watcher, session_id, state="idle")
    assert (row["unread"], row["seen_seq"], row["is_current"]) == (1, 0, False)
    assert "running_since" not in row
    assert comparable(row) == listed(writer)[session_id]


def test_watching_begins_with_the_rows_that_need_attention(
    watcher: RawClient, writer: RawClient, connect: Connect
) -> None:
    first = answered(writer)["session_id"]
    writer.request(SEEN, {"seq": 9})
    second = writer.request(SESSION_NEW, {"name": "second"}).json["session_id"]
    answered(writer)
    third = writer.request(SESSION_NEW, {"name": "third"}).json["session_id"]
    writer.request(PROMPT, {"text": "!slow 30 one two"})

    late = connect()
    late.hello()
    reply = late.request(WATCH).json
    assert [row["session_id"] for row in reply["sessions"]] == [third, second]
    assert [row["state"] for row in reply["sessions"]] == ["running", "idle"]
    pages = [late.request(WATCH, {"limit": 1}).json]
    pages.append(late.request(WATCH, {"limit": 1, "cursor": pages[0]["next_cursor"]}).json)
    assert [page["sessions"][0]["session_id"] for page in pages] == [third, second]
    assert pages[1]["next_cursor"] is None
    assert first in listed(late)
    writer.request(CANCEL)


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_turn_that_was_running_when_its_server_stopped_counts_as_failed_until_it_is_seen(
    start_server: Callable[..., ServerProcess], connect: Connect, end: str
) -> None:
    server = start_server(limits={"drain_seconds_max": 0.1})
    writer = connect(server)
    writer.hello()
    session_id = writer.request(PROMPT, {"text": "!slow 60 one two three"}).json["session_id"]
    writer.event(TEXT_DELTA)
    getattr(server, end)()
    server.start()
    watcher = connect(server)
    watcher.hello()
    (row,) = watcher.request(WATCH).json["sessions"]
    if row["state"] != "failed":  # the server has just begun to end the turns that it finds
        row = until(watcher, session_id, state="failed")
    watcher.request(SEEN, {"session_id": session_id, "seq": row["head_seq"]})
    assert until(watcher, session_id, state="idle")["unread"] == 0


def test_a_watcher_is_asked_about_a_conversation_to_which_no_client_is_attached(
    start_server: Callable[..., ServerProcess], connect: Connect
) -> None:
    server = start_server(tools={"now": "ask"})
    watcher, writer = connect(server), connect(server)
    for client in (watcher, writer):
        client.hello()
    watcher.request(WATCH)
    session_id = answered(writer)["session_id"]
    writer.request(DETACH)
    receipt = watcher.request(PROMPT, {"text": "!tool now {}", "session_id": session_id}).json
    until(watcher, session_id, state="asking")
    (asked,) = watcher.request(ATTACH, {"session_id": session_id}).json["pending_approvals"]
    decision = {"approval_id": asked["approval_id"], "decision": "allow"}
    assert watcher.request(APPROVAL, decision).json["decision"] == "allow"
    watcher.answer_of(receipt["turn_id"])


def test_a_turn_that_fails_after_some_text_counts_as_failed(tmp_path: Path) -> None:
    broken_off = events(*chat("some").body.split(b"\n\n")[:1])
    with (
        vendor(broken_off) as box,
        serving(tmp_path / "data", {"providers": [box.provider()]}) as port,
        RawClient(port) as client,
    ):
        client.hello()
        session_id = client.request(PROMPT, {"text": "hello"}).json["session_id"]
        end = client.event(TURN_FINISHED).json
        assert (end["state"], listed(client)[session_id]["state"]) == ("failed", "failed")


def test_an_approval_makes_a_conversation_ask_until_it_is_decided(
    start_server: Callable[..., ServerProcess], connect: Connect
) -> None:
    server = start_server(tools={"now": "ask"})
    watcher, writer = connect(server), connect(server)
    for client in (watcher, writer):
        client.hello()
    watcher.request(WATCH)
    session_id = writer.request(PROMPT, {"text": "!tool now {}"}).json["session_id"]
    until(watcher, session_id, state="asking")
    question = writer.event(APPROVAL_REQUEST).json
    decision = {"approval_id": question["approval_id"], "decision": "allow"}
    assert watcher.request(APPROVAL, decision).json["decision"] == "allow"
    assert until(watcher, session_id, state="idle")["unread"] == 1


def test_a_prompt_without_a_slot_waits_until_it_gets_one(
    start_server: Callable[..., ServerProcess], connect: Connect
) -> None:
    server = start_server(limits={"turns_max": 1})
    watcher, first, second = connect(server), connect(server), connect(server)
    for client in (watcher, first, second):
        client.hello()
    watcher.request(WATCH)
    busy = first.request(PROMPT, {"text": "!slow 60 one two"}).json
    until(watcher, busy["session_id"], state="running")
    waiting = second.request(PROMPT, {"text": "!slow 60 one two"}).json["session_id"]
    until(watcher, waiting, state="waiting")
    assert listed(watcher)[waiting]["state"] == "waiting"
    first.request(CANCEL)
    until(watcher, waiting, state="running")
    second.request(CANCEL)


def test_a_failed_turn_is_failed_until_it_is_seen_or_prompted_again(
    watcher: RawClient, writer: RawClient
) -> None:
    session_id = answered(writer, "!fail")["session_id"]
    row = until(watcher, session_id, state="failed")
    assert row["unread"] == 0
    assert writer.request(SEEN, {"seq": row["head_seq"]}).json["seen_seq"] == row["head_seq"]
    assert until(watcher, session_id, state="idle")["seen_seq"] == row["head_seq"]
    answered(writer, "!fail")
    until(watcher, session_id, state="failed")
    answered(writer)
    assert until(watcher, session_id, state="idle")["unread"] == 1


def test_failed_and_unread_survive_kill_9(server: ServerProcess, connect: Connect) -> None:
    client = connect()
    client.hello()
    failed = answered(client, "!fail")["session_id"]
    unread = client.request(SESSION_NEW, {}).json["session_id"]
    answered(client)
    answered(client)
    seen = client.request(SESSION_NEW, {}).json["session_id"]
    answered(client)
    client.request(SEEN, {"seq": 99})
    before = listed(client)
    assert [before[each]["state"] for each in (failed, unread, seen)] == ["failed", "idle", "idle"]
    assert [before[each]["unread"] for each in (failed, unread, seen)] == [0, 2, 0]
    server.kill()
    server.start()
    again = connect()
    again.hello()
    assert listed(again) == before
    rows = again.request(WATCH).json["sessions"]
    assert {row["session_id"] for row in rows} == {failed, unread}


def test_marks_survive_the_deletion_of_the_index(server: ServerProcess, connect: Connect) -> None:
    client = connect()
    client.hello()
    unread = answered(client)["session_id"]
    seen = client.request(SESSION_NEW, {}).json["session_id"]
    answered(client)
    client.request(SEEN, {"seq": 99})
    before = listed(client)
    server.terminate()
    for name in server.data_dir.glob("catalog.sqlite*"):
        name.unlink()
    server.start()
    again = connect()
    again.hello()
    assert listed(again) == before
    assert (before[unread]["unread"], before[seen]["unread"]) == (1, 0)


def test_conversations_without_marks_count_as_seen(server: ServerProcess, connect: Connect) -> None:
    client = connect()
    client.hello()
    session_id = answered(client)["session_id"]
    server.terminate()
    (server.data_dir / "seen.jsonl").unlink()  # as earlier versions left it
    server.start()
    again = connect()
    again.hello()
    assert again.request(WATCH).json["sessions"] == []
    again.request(ATTACH, {"session_id": session_id})
    answered(again)
    row = until(again, session_id, state="idle")
    assert (row["unread"], row["seen_seq"]) == (1, row["head_seq"] - 2)


def test_seen_moves_forward_only_unless_it_says_unread(
    watcher: RawClient, writer: RawClient
) -> None:
    session_id = answered(writer)["session_id"]
    answered(writer)
    head_seq = until(watcher, session_id, unread=2)["head_seq"]

    def seen(**fields: object) -> tuple[int, int]:
        reply = writer.request(SEEN, fields).json
        assert reply["session_id"] == session_id
        return reply["seen_seq"], reply["unread"]

    assert seen(seq=head_seq - 2) == (head_seq - 2, 1)
    assert seen(seq=1) == (head_seq - 2, 1)
    assert seen(seq=10**12) == (head_seq, 0)
    assert until(watcher, session_id, unread=0)["seen_seq"] == head_seq
    assert seen(seq=0, unread=True) == (0, 2)
    assert until(watcher, session_id, unread=2)["seen_seq"] == 0
    assert seen(seq=head_seq, session_id=session_id) == (head_seq, 0)


def test_answers_that_were_rolled_back_are_not_unread(
    watcher: RawClient, writer: RawClient
) -> None:
    session_id = answered(writer)["session_id"]
    second = answered(writer)
    until(watcher, session_id, unread=2)
    writer.request(ROLLBACK, {"turns": [second["turn_id"]]})
    until(watcher, session_id, unread=1)
    writer.request(ROLLBACK, {"redo": True})
    until(watcher, session_id, unread=2)


def test_changes_of_every_kind_are_sent(watcher: RawClient, writer: RawClient) -> None:
    session_id = writer.request(SESSION_NEW, {"name": "notes"}).json["session_id"]
    until(watcher, session_id, name="notes")
    writer.request(SESSION_UPDATE, {"session_id": session_id, "name": "ideas", "pinned": True})
    assert until(watcher, session_id, name="ideas", pinned=True)
    writer.request(MODEL_SWITCH, {"model": "offline/echo"})
    answered(writer)
    until(watcher, session_id, unread=1)
    copy = writer.request(SESSION_FORK, {"session_id": session_id, "name": "copy"}).json
    row = until(watcher, copy["session_id"], name="copy")
    assert (row["unread"], row["seen_seq"]) == (0, row["head_seq"])
    writer.request(SESSION_DELETE, {"session_id": copy["session_id"]})
    assert next(row for row in changes_of(watcher, copy["session_id"]) if row is None) is None
    writer.request(SESSION_UPDATE, {"session_id": copy["session_id"], "deleted": False})
    assert until(watcher, copy["session_id"])["name"] == "copy"


def test_a_client_that_does_not_watch_gets_no_changes(
    writer: RawClient, watcher: RawClient
) -> None:
    answered(writer)
    assert watcher.event(SESSION_CHANGED)
    assert not [frame for frame in writer.pushed if frame.type == SESSION_CHANGED]
    reply = watcher.request(WATCH, {"watch": False}).json
    assert reply == {"watching": False, "sessions": [], "next_cursor": None}
    answered(writer)
    listed(watcher)
    watcher.pushed.clear()
    answered(writer)
    listed(watcher)
    assert not [frame for frame in watcher.pushed if frame.type == SESSION_CHANGED]


def test_a_plain_client_gets_no_changes(connect: Connect, watcher: RawClient) -> None:
    plain = connect()
    plain.greeting()
    for text in ("one", "two"):
        assert {frame.type for frame in plain.chat(text)} == {AGENT_THOUGHT, CHAT_TEXT}
        assert watcher.event(SESSION_CHANGED)


def test_bad_input_is_refused_with_the_field(writer: RawClient) -> None:
    for type_, fields, code, field in (
        (WATCH, {"cursor": "no cursor"}, "malformed", "cursor"),
        (WATCH, {"limit": 0}, "malformed", "limit"),
        (SEEN, {}, "malformed", "seq"),
        (SEEN, {"seq": -1}, "malformed", "seq"),
        (SEEN, {"seq": 1, "session_id": "nowhere"}, "not_found", "session_id"),
    ):
        refused = writer.request(type_, fields)
        assert refused.type == ERROR
        assert (refused.json["code"], refused.json.get("field")) == (code, field), fields
    assert writer.request(SEEN, {"seq": 1}).json["seen_seq"] == 0  # not stored yet
    assert writer.request(WATCH).json["watching"] is True
    assert writer.request(WATCH).json["watching"] is True
