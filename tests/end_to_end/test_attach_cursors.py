"""ATTACH from a place the server can't serve: attached all the same, and told what to do."""

from __future__ import annotations

import pytest
from tests.conftest import Connect
from tests.support.raw_client import (
    ATTACH,
    CANCEL,
    ENTRY,
    HISTORY_REQUEST,
    PROMPT,
    TEXT_DELTA,
    TURN_STARTED,
    RawClient,
)
from tests.support.server_process import ServerProcess


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


def conversation(client: RawClient) -> str:
    session_id = str(client.hello()["session_id"])
    client.ask("one")
    client.ask("two")
    return session_id


def test_a_cursor_beyond_the_head_gets_resync(connect: Connect) -> None:
    speaker, returning = connect(), connect()
    session_id = conversation(speaker)
    returning.hello()
    reply = returning.request(ATTACH, {"session_id": session_id, "after_seq": 99}).json
    assert (reply["resync"], reply["head_seq"]) == (True, 4)
    speaker.ask("three")
    assert returning.event(ENTRY).json["entry"]["seq"] == 5, "it is attached all the same"


def test_a_valid_cursor_gets_the_missed_entries_without_resync(connect: Connect) -> None:
    speaker, returning = connect(), connect()
    session_id = conversation(speaker)
    returning.hello()
    reply = returning.request(ATTACH, {"session_id": session_id, "after_seq": 2}).json
    assert "resync" not in reply
    assert [returning.event(ENTRY).json["entry"]["seq"] for _ in range(2)] == [3, 4]


def test_a_cursor_further_back_than_the_replay_limit_gets_resync(connect: Connect) -> None:
    speaker, returning = connect(), connect()
    session_id = str(speaker.hello()["session_id"])
    for _ in range(4):
        speaker.ask("x" * 600_000)  # twice each, above the 4 MiB of a replay
    returning.hello()
    reply = returning.request(ATTACH, {"session_id": session_id, "after_seq": 0}).json
    assert (reply["resync"], reply["head_seq"]) == (True, 8)
    page = returning.request(
        HISTORY_REQUEST, {"session_id": session_id, "after": 6, "max_bytes": 1_000_000}
    ).json
    assert page["messages"][0]["seq"] == 7


@pytest.mark.parametrize("offset", [1_000_000, 3])
def test_an_unknown_delta_offset_is_replayed_from_the_beginning(
    connect: Connect, offset: int
) -> None:
    speaker, returning = connect(), connect()
    session_id = str(speaker.hello()["session_id"])
    receipt = speaker.request(PROMPT, {"text": "!slow 60 one two three"}).json
    speaker.event(TURN_STARTED)
    delta = speaker.event(TEXT_DELTA).json
    returning.hello()
    turn_id = receipt["turn_id"] if offset > len(delta["text"]) else "of another life"
    place = {"turn_id": turn_id, "call": 0, "offset": offset}
    returning.request(ATTACH, {"session_id": session_id, **place})
    first = returning.event(TEXT_DELTA).json
    assert (first["offset"], first["replay_from"]) == (0, 0)
    speaker.request(CANCEL)
