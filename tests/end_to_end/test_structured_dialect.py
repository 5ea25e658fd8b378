"""The structured dialect over real sockets, with a client that is only a script."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.conftest import Connect
from tests.support.raw_client import (
    ATTACH,
    CANCEL,
    CLEAR_REQUEST,
    CONTEXT_REQUEST,
    DETACH,
    ENTRY,
    ERROR,
    HELLO,
    HISTORY_REQUEST,
    MODEL_SWITCH,
    PING,
    PONG,
    PROMPT,
    SESSION_DELETE,
    SESSION_EVENT,
    SESSION_LIST,
    SESSION_NEW,
    SESSION_SWITCH,
    SESSION_UPDATE,
    STATUS,
    TEXT_DELTA,
    TOOL_FINISHED,
    TOOL_STARTED,
    TURN_FINISHED,
    TURN_STARTED,
    RawClient,
)
from tests.support.server_process import ServerProcess


@pytest.fixture
def server(request: pytest.FixtureRequest) -> ServerProcess:
    """Shared, unless a test cares who else has conversations there."""
    alone = request.node.get_closest_marker("alone")
    name = "start_server" if alone else "shared_server"
    found = request.getfixturevalue(name)
    started: ServerProcess = found() if alone else found
    return started


def test_an_empty_hello_gets_a_welcome(connect: Connect) -> None:
    welcome = connect().hello()
    assert welcome["version"] == 3
    assert welcome["server"].startswith("nplt/")
    assert welcome["user"] == "local"
    assert welcome["model"] in welcome["models"]
    assert welcome["limits"]["message_bytes_max"] == 1024 * 1024


def test_a_turn_is_receipt_entry_started_deltas_entry_finished(client: RawClient) -> None:
    receipt = client.request(PROMPT, {"text": "to be or not to be"})
    assert receipt.type == PROMPT
    assert receipt.json["position"] == 0
    frames = client.pushed + client.until_finished()
    kinds = [frame.type for frame in frames]
    deltas = [frame for frame in frames if frame.type == TEXT_DELTA]
    expected = [ENTRY, TURN_STARTED, *[TEXT_DELTA] * len(deltas), ENTRY, TURN_FINISHED]
    assert kinds == expected
    assert all(frame.seq == 0 for frame in frames)
    assert len({frame.json["session_id"] for frame in frames}) == 1
    stored = frames[-2].json["entry"]["content"]
    assert "".join(delta.json["text"] for delta in deltas) == stored == "to be or not to be"
    assert frames[-1].json["state"] == "completed"
    assert frames[-1].json["seq"] == frames[-2].json["entry"]["seq"]


def test_a_chat_text_is_shorthand_for_a_prompt(client: RawClient) -> None:
    client.send(0x01, 9, "short")
    receipt = client.reply_to(9)
    assert receipt.type == PROMPT
    assert client.answer_of(receipt.json["turn_id"]) == "short"


def test_requests_may_follow_hello_without_waiting(connect: Connect) -> None:
    client = connect()
    client.send(HELLO, 1)
    client.send(PING, 2, b"early")
    client.send(PROMPT, 3, {"text": "early too"})
    seen = [client.receive() for _ in range(2)]
    assert [frame.type for frame in seen] == [0x01, HELLO]
    pong = client.reply_to(2)
    assert (pong.type, pong.payload) == (PONG, b"early")
    assert client.answer_of(client.reply_to(3).json["turn_id"]) == "early too"


def test_an_unknown_version_is_refused_with_the_known_ones(connect: Connect) -> None:
    refusal = connect().hello({"versions": [4, 5]})
    assert refusal["code"] == "unsupported"
    assert refusal["versions"] == [3]


def test_a_second_hello_is_a_conflict_and_the_connection_lives(client: RawClient) -> None:
    again = client.request(HELLO)
    assert (again.type, again.json["code"]) == (ERROR, "conflict")
    assert client.ask("still here") == "still here"


def test_reasoning_and_tool_calls_are_events_in_their_order(client: RawClient) -> None:
    client.request(PROMPT, {"text": '!tool now {"timezone": "Asia/Tokyo"}'})
    frames = client.pushed + client.until_finished()
    started = next(frame.json for frame in frames if frame.type == TOOL_STARTED)
    finished = next(frame.json for frame in frames if frame.type == TOOL_FINISHED)
    assert started["arguments"] == {"timezone": "Asia/Tokyo"}
    assert started["tool_call_id"] == finished["tool_call_id"]
    assert finished["status"] == "success"
    answer = [frame.json for frame in frames if frame.type == ENTRY][-1]
    assert answer["entry"]["content"] == finished["result"]
    client.pushed.clear()
    client.request(PROMPT, {"text": "!think deep thoughts"})
    thoughts = [f.json for f in client.pushed + client.until_finished() if f.type == 0x0A]
    assert "".join(thought.get("text", "") for thought in thoughts) == "deep thoughts"


@pytest.mark.parametrize(
    "prompt",
    [
        "!tool nothing {}",
        "!tool now {broken",
        "!tool now " + '{"a":' * 200 + "1" + "}" * 200,
        '!tool now {"timezone": "Mars/North"}',
    ],
)
def test_a_tool_that_fails_is_a_result_and_the_turn_completes(
    client: RawClient, prompt: str
) -> None:
    client.request(PROMPT, {"text": prompt})
    frames = client.pushed + client.until_finished()
    assert next(f.json for f in frames if f.type == TOOL_FINISHED)["status"] == "failed"
    assert frames[-1].json["state"] == "completed"


def test_a_provider_failure_ends_the_turn_as_failed(client: RawClient) -> None:
    client.request(PROMPT, {"text": "!fail"})
    finished = client.until_finished()[-1].json
    assert finished["state"] == "failed"
    assert finished["error"]["code"] == "provider_unavailable"
    assert client.ask("next") == "next"


def test_a_prompt_of_300_kilobytes_arrives_in_fragments(client: RawClient) -> None:
    text = " ".join(f"word{number}" for number in range(32_000))
    assert len(text) > 300_000
    assert client.ask(text) == text
    page = client.request(HISTORY_REQUEST, {"limit": 2, "max_bytes": 1_000_000}).json
    assert [message["content"] for message in page["messages"]] == [text, text]


def test_a_message_too_large_for_a_page_is_truncated_and_can_be_read_in_ranges(
    client: RawClient,
) -> None:
    text = " ".join(f"word{number}" for number in range(20_000))
    client.ask(text)
    cut = client.request(HISTORY_REQUEST, {"limit": 1}).json["messages"][0]
    assert cut["truncated"] is True
    assert cut["size"] == len(text)
    read = ""
    while len(read) < len(text):
        part = client.request(HISTORY_REQUEST, {"seq": cut["seq"], "offset": len(read)}).json
        read += part["content"]
    assert read == text


def test_a_message_beyond_the_size_limit_is_refused_and_the_connection_lives(
    client: RawClient,
) -> None:
    client.ask("before")
    refusal = client.request(PROMPT, {"text": "x" * 1_100_000})
    assert (refusal.type, refusal.json["code"]) == (ERROR, "too_large")
    assert client.ask("after") == "after"


def test_a_duplicate_message_id_gets_the_same_receipt(client: RawClient) -> None:
    first = client.request(PROMPT, {"text": "once", "message_id": "m1"}).json
    client.until_finished()
    second = client.request(PROMPT, {"text": "once", "message_id": "m1"}).json
    assert (second["turn_id"], second["seq"]) == (first["turn_id"], first["seq"])
    assert second["duplicate"] is True
    assert second["state"] == "completed"
    other = client.request(PROMPT, {"text": "another", "message_id": "m1"})
    assert other.json["code"] == "conflict"
    assert client.request(HISTORY_REQUEST).json["message_count"] == 2


def test_prompts_queue_in_order_and_the_seventeenth_is_busy(client: RawClient) -> None:
    first = client.request(PROMPT, {"text": "!slow 30 slow"}).json
    waiting = [client.request(PROMPT, {"text": f"p{n}"}).json for n in range(16)]
    assert [receipt["position"] for receipt in waiting] == list(range(1, 17))
    refused = client.request(PROMPT, {"text": "one too many"})
    assert refused.json["code"] == "busy"
    assert refused.json["retryable"] is True
    client.request(CANCEL, {"turn_id": first["turn_id"]})
    finished = [client.event(TURN_FINISHED).json["turn_id"] for _ in range(17)]
    assert finished == [first["turn_id"], *(receipt["turn_id"] for receipt in waiting)]


def test_a_queued_prompt_can_be_cancelled(client: RawClient) -> None:
    first = client.request(PROMPT, {"text": "!slow 30 slow"}).json
    second = client.request(PROMPT, {"text": "never mind"}).json
    assert client.request(CANCEL, {"turn_id": second["turn_id"]}).json == {"cancelled": True}
    finished = client.event(TURN_FINISHED).json
    assert (finished["turn_id"], finished["state"]) == (second["turn_id"], "interrupted")
    assert client.request(CANCEL).json == {"cancelled": True}
    assert client.event(TURN_FINISHED).json["turn_id"] == first["turn_id"]
    account = client.request(CONTEXT_REQUEST).json["entries"]
    reasons = {row["seq"]: row.get("reason") for row in account}
    assert reasons[second["seq"]] == "cancelled"


def test_history_pages_give_every_message_once_while_another_client_appends(
    client: RawClient, connect: Connect
) -> None:
    session_id = client.request(SESSION_NEW, {"name": "long"}).json["session_id"]
    for number in range(500):
        client.send(PROMPT, 100 + number, {"text": f"m{number}"})
        client.event(TURN_FINISHED)
    client.pushed.clear()
    client.request(DETACH)
    stop = threading.Event()

    def append() -> None:
        with RawClient(client.port) as other:
            other.hello()
            while not stop.is_set():
                other.request(PROMPT, {"text": "meanwhile", "session_id": session_id})

    appending = threading.Thread(target=append)
    appending.start()
    try:
        back = walk(client, session_id, "before", None, 1_000, order="log")
        forth = walk(client, session_id, "after", 0, 1_000, order="log")
        by_turns = walk(client, session_id, "after", 0, 1_000, order="turns")
    finally:
        stop.set()
        appending.join()
    assert len(back) == len(set(back))
    assert sorted(back) == back[::-1]
    assert len(forth) == len(set(forth))
    assert sorted(forth) == forth
    assert set(forth[:1_000]) <= set(back)
    assert len(by_turns) == len(set(by_turns))  # not ascending where prompts were queued
    assert by_turns[:1_000] == forth[:1_000]


def walk(
    client: RawClient, session_id: str, side: str, cursor: int | None, at_least: int, *, order: str
) -> list[int]:
    """Every seq on the way, in the order the pages gave them."""
    seen: list[int] = []
    while True:
        request = {"session_id": session_id, "limit": 37, "order": order}
        if cursor is not None:
            request[side] = cursor
        page = client.request(HISTORY_REQUEST, request).json
        seqs = [message["seq"] for message in page["messages"]]
        seen += seqs if side == "after" else seqs[::-1]
        cursor = page["page"][side]
        more = page["page"][f"has_more_{side}"]
        if not more or (side == "after" and len(seen) >= at_least + 100):
            return seen


@pytest.mark.alone
def test_lists_are_paged_newest_first(client: RawClient) -> None:
    names = [f"talk {number}" for number in range(7)]
    for name in names:
        client.request(SESSION_NEW, {"name": name})
    listed: list[str] = []
    cursor: str | None = None
    while True:
        request: dict[str, object] = {"limit": 3}
        if cursor:
            request["cursor"] = cursor
        page = client.request(SESSION_LIST, request).json
        listed += [row["name"] for row in page["sessions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert listed == names[::-1]
    found = client.request(SESSION_LIST, {"query": "TALK 4"}).json["sessions"]
    assert [row["name"] for row in found] == ["talk 4"]


@pytest.mark.alone
def test_session_switch_takes_an_id_a_name_or_a_unique_prefix(client: RawClient) -> None:
    first = client.request(SESSION_NEW, {"name": "one"}).json["session_id"]
    client.request(SESSION_NEW, {"name": "twin"})
    client.request(SESSION_NEW, {"name": "twin"})
    for wanted in (first, "one", first[:12]):
        assert client.request(SESSION_SWITCH, {"session_id": wanted}).json["session_id"] == first
    ambiguous = client.request(SESSION_SWITCH, {"session_id": "twin"}).json
    assert ambiguous["code"] == "ambiguous"
    assert [each["name"] for each in ambiguous["candidates"]] == ["twin", "twin"]
    assert client.request(SESSION_SWITCH, {"session_id": "nobody"}).json["code"] == "not_found"


@pytest.mark.alone
def test_a_fresh_conversation_is_listed_with_its_first_message(connect: Connect) -> None:
    client = connect()
    session_id = client.hello()["session_id"]
    assert client.request(SESSION_LIST).json["sessions"] == []
    # From whichever connection it comes:
    other = connect()
    other.hello()
    other.request(PROMPT, {"text": "hello from afar", "session_id": session_id})
    assert client.event(ENTRY).json["entry"]["content"] == "hello from afar"
    row = client.request(SESSION_LIST).json["sessions"][0]
    assert (row["session_id"], row["is_current"]) == (session_id, True)
    assert row["name"] == "hello from afar"


@pytest.mark.alone
def test_a_rename_is_an_event_for_every_attached_client(
    client: RawClient, connect: Connect
) -> None:
    client.ask("hello")
    session_id = (
        client.request(STATUS).json
        and client.request(SESSION_LIST).json["sessions"][0]["session_id"]
    )
    other = connect()
    other.hello()
    other.request(ATTACH, {"session_id": session_id})
    row = client.request(SESSION_UPDATE, {"name": "greetings"}).json
    assert row["name"] == "greetings"
    event = other.event(SESSION_EVENT).json
    assert (event["event"], event["name"]) == ("renamed", "greetings")


def test_clear_hides_the_past_from_the_model_and_keeps_the_record(client: RawClient) -> None:
    client.ask("a secret")
    cleared = client.request(CLEAR_REQUEST).json
    assert cleared["cleared_through_seq"] == 2
    assert client.ask("next") == "next"
    page = client.request(HISTORY_REQUEST).json
    assert page["message_count"] == 4
    assert page["messages"][0]["content"] == "a secret"


def test_clear_waits_for_the_running_turn_without_blocking_other_requests(
    client: RawClient,
) -> None:
    client.request(PROMPT, {"text": "!slow 0.5 take your time"})
    client.send(CLEAR_REQUEST, 50)
    client.send(PING, 51, b"x")
    assert client.reply_to(51).payload == b"x"
    frames = client.until_finished()
    assert all(frame.seq != 50 for frame in frames)
    assert client.reply_to(50).type == CLEAR_REQUEST


def test_a_model_switch_is_stored_and_broadcast(
    start_server: Callable[..., ServerProcess], connect: Connect
) -> None:
    server = start_server(
        providers=[
            {"id": "one", "type": "offline", "words_per_second": 0},
            {"id": "two", "type": "offline", "words_per_second": 0},
        ]
    )
    client = connect(server)
    assert client.hello()["models"] == ["one/echo", "two/echo"]
    client.ask("hello")
    switched = client.request(MODEL_SWITCH, {"model": "two/echo"}).json
    assert (switched["model"], switched["previous_model"]) == ("two/echo", "one/echo")
    client.pushed.clear()
    client.request(PROMPT, {"text": "who are you"})
    assert client.event(TURN_STARTED).json["model"] == "two/echo"
    client.event(TURN_FINISHED)
    client.request(PROMPT, {"text": "just this once", "model": "one/echo"})
    assert client.event(TURN_STARTED).json["model"] == "one/echo"
    client.event(TURN_FINISHED)
    server.restart()
    again = connect(server)
    again.hello()
    assert again.request(SESSION_SWITCH, {"session_id": "hello"}).json["model"] == "two/echo"
    unknown = again.request(MODEL_SWITCH, {"model": "two/ecco"}).json
    assert unknown["code"] == "not_found"
    assert "two/echo" in unknown["message"]


@pytest.mark.alone
def test_deleting_moves_every_attached_client_to_a_fresh_conversation(
    client: RawClient, connect: Connect, server: ServerProcess
) -> None:
    client.ask("goodbye")
    session_id = client.request(SESSION_LIST).json["sessions"][0]["session_id"]
    other = connect()
    other.hello()
    other.request(ATTACH, {"session_id": session_id})
    deleted = client.request(SESSION_DELETE, {"session_id": session_id}).json
    assert deleted["session_id"] == session_id
    assert deleted["current_session_id"] not in ("", session_id)
    assert other.event(SESSION_EVENT).json["event"] == "deleted"
    assert other.ask("life goes on") == "life goes on"
    listed = [r["session_id"] for r in client.request(SESSION_LIST).json["sessions"]]
    assert session_id not in listed
    assert any(session_id in path.name for path in (server.data_dir / "trash").rglob("*"))


@pytest.mark.alone
def test_status_reports_uptime_connections_and_turns(client: RawClient) -> None:
    client.ask("hello")
    status = client.request(STATUS).json
    assert status["connections"] == 1
    assert status["turns"]["finished"] == {"completed": 1}
    assert status["storage"]["backend"] == "json"
    assert status["uptime"] >= 0
