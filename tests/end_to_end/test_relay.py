"""Several servers over one Redis: a client may be at any of them."""

from __future__ import annotations

import hashlib
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import make_certificate
from tests.support.raw_client import (
    AGENT_THOUGHT,
    ATTACH,
    CANCEL,
    CHAT_TEXT,
    CLEAR_REQUEST,
    ERROR,
    FILE_DATA,
    FILE_GET,
    FILE_METADATA,
    HELLO,
    HISTORY_REQUEST,
    MODEL_SWITCH,
    PROMPT,
    SEARCH,
    SESSION_DELETE,
    SESSION_EVENT,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_SWITCH,
    SESSION_UPDATE,
    TEXT_DELTA,
    TOOL_FINISHED,
    TURN_FINISHED,
    TURN_STARTED,
    Frame,
    RawClient,
)
from tests.support.redis_server import RedisServer
from tests.support.server_cluster import Cluster
from tests.support.server_process import ServerProcess

APPROVAL, APPROVAL_REQUEST = 0x1D, 0x27
LEASE_SECONDS = 3.0
UNREACHABLE = "127.0.0.1:1"
WORDS = " ".join(f"word{number}" for number in range(40))


@pytest.fixture
def cluster(tmp_path: Path, redis: RedisServer) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, redis, lease=LEASE_SECONDS)
    yield cluster
    cluster.end()


def prompts_of(client: RawClient, session_id: str) -> list[str]:
    page = client.request(
        HISTORY_REQUEST, {"session_id": session_id, "limit": 200, "roles": ["user"]}
    )
    return [message["content"] for message in page.json["messages"]]


def events_of_turn(client: RawClient, turn_id: str) -> list[Frame]:
    """Up to its end."""
    found = []
    for frame in client.events():
        is_of_turn = frame.type in (TURN_STARTED, TEXT_DELTA, TURN_FINISHED)
        if is_of_turn and frame.json["turn_id"] == turn_id:
            found.append(frame)
            if frame.type == TURN_FINISHED:
                return found
    raise AssertionError("unreachable")


def test_a_client_at_another_server_prompts_and_both_receive_the_same_events(
    cluster: Cluster,
) -> None:
    owner, edge = cluster.start("owner"), cluster.start("edge")
    here, session_id = cluster.begin(owner)
    there, attached = cluster.attach(edge, session_id)
    assert attached["session_id"] == session_id
    assert attached["head_seq"] >= 2
    assert len(attached["clients"]) == 2
    receipt = there.request(PROMPT, {"text": "from the edge"}).json
    at_edge = events_of_turn(there, receipt["turn_id"])
    at_owner = events_of_turn(here, receipt["turn_id"])
    assert [frame[::2] for frame in at_edge] == [frame[::2] for frame in at_owner]
    assert at_edge[-1].json["state"] == "completed"
    again = here.request(PROMPT, {"text": "from the owner"}).json
    assert events_of_turn(there, again["turn_id"])[-1].json["state"] == "completed"
    assert prompts_of(there, session_id) == ["hello", "from the edge", "from the owner"]


def test_hello_and_a_prompt_may_name_a_conversation_of_another_server(
    cluster: Cluster,
) -> None:
    owner, edge = cluster.start("owner"), cluster.start("edge")
    _, session_id = cluster.begin(owner)
    with cluster.connect(edge) as client:
        welcome = client.hello({"session_id": session_id})
        assert welcome["session_id"] == session_id
        assert client.ask("one")
    with cluster.connect(edge) as client:
        assert client.hello()["session_id"] != session_id
        receipt = client.request(PROMPT, {"text": "two", "session_id": session_id})
        assert receipt.type == PROMPT
        assert receipt.json["session_id"] == session_id
        assert receipt.json["message_id"]  # given by the edge, so that it can be sent again
        client.request(SESSION_SWITCH, {"session_id": session_id})
        assert prompts_of(client, session_id) == ["hello", "one", "two"]


def test_a_plain_client_talks_in_a_conversation_of_another_server(cluster: Cluster) -> None:
    sessions = {"create": True, "default": "common"}
    owner, edge = (
        cluster.start("owner", sessions=sessions),
        cluster.start("edge", sessions=sessions),
    )
    with cluster.connect(owner) as first, cluster.connect(edge) as second:
        first.greeting()
        second.greeting()
        assert "one" in "".join(frame.text for frame in first.chat("one"))
        frames = second.chat("two")
        assert "two" in "".join(frame.text for frame in frames if frame.type == CHAT_TEXT)
        assert frames[0].type == AGENT_THOUGHT
        second.send(HISTORY_REQUEST, 0, "10")
        page = second.receive().json
        assert [each["content"] for each in page["messages"] if each["role"] == "user"] == [
            "one",
            "two",
        ]


def lagged(client: RawClient) -> Any:
    """Waits until the client is sent `lagged`, and gives that event."""
    for frame in client.events():
        if frame.type == SESSION_EVENT and frame.json["event"] == "lagged":
            return frame.json
    raise AssertionError("unreachable")


def text_seen(client: RawClient, turn_id: str, characters: int) -> str:
    """The first deltas of a turn."""
    text = ""
    while len(text) < characters:
        delta = client.event(TEXT_DELTA).json
        assert (delta["turn_id"], delta["offset"]) == (turn_id, len(text))
        text += delta["text"]
    return text


def answers_of(client: RawClient, session_id: str) -> dict[str, list[dict[str, Any]]]:
    """The entries of each turn, as they are in the record, by the text of its prompt."""
    page = client.request(
        HISTORY_REQUEST,
        {"session_id": session_id, "limit": 200, "view": "entries", "roles": []},
    )
    entries = page.json["messages"]
    prompts = {each["turn_id"]: each for each in entries if each["kind"] == "model_input"}
    assert len(prompts) == len({each["content"] for each in prompts.values()})
    return {
        prompt["content"]: [
            each
            for each in entries
            if each.get("turn_id") == turn_id and each["kind"] != "model_input"
        ]
        for turn_id, prompt in prompts.items()
    }


def test_when_the_owner_is_killed_the_edge_becomes_the_owner(cluster: Cluster) -> None:
    owner, edge = cluster.start("owner"), cluster.start("edge")
    _, session_id = cluster.begin(owner)
    client, _ = cluster.attach(edge, session_id)
    running = client.request(PROMPT, {"text": WORDS, "model": "slow/echo"}).json
    waiting = client.request(PROMPT, {"text": "and then?"}).json
    assert (running["state"], waiting["state"]) == ("running", "waiting")
    seen = text_seen(client, running["turn_id"], 10)
    owner.kill()
    event = lagged(client)
    attached = client.request(ATTACH, {"session_id": session_id, "after_seq": event["head_seq"]})
    assert attached.type == ATTACH, attached
    other, _ = cluster.attach(edge, session_id)
    assert other.ask("still there?")
    answers = answers_of(other, session_id)
    assert list(answers) == ["hello", WORDS, "and then?", "still there?"]
    cut = answers[WORDS]
    assert [each["state"] for each in cut] == ["interrupted"]
    assert cut[0]["content"].startswith(seen)
    assert [each["state"] for each in answers["and then?"]] == ["completed"]


@pytest.mark.slow
def test_an_owner_that_was_stopped_past_its_lease_writes_nothing_more(
    cluster: Cluster,
) -> None:
    owner, edge = cluster.start("owner"), cluster.start("edge")
    direct, session_id = cluster.begin(owner)
    client, _ = cluster.attach(edge, session_id)
    running = client.request(PROMPT, {"text": WORDS, "model": "slow/echo"}).json
    seen = text_seen(client, running["turn_id"], 10)
    owner.signal(signal.SIGSTOP)
    client.next_seq += 1
    client.send(PROMPT, client.next_seq, {"text": "while it is stopped"})
    receipt = client.reply_to(client.next_seq)  # from the edge, when the lease has lapsed
    assert receipt.type == PROMPT, receipt
    other, _ = cluster.attach(edge, session_id)
    owner.signal(signal.SIGCONT)
    event = lagged(direct)
    attached = direct.request(ATTACH, {"session_id": session_id, "after_seq": event["head_seq"]})
    assert attached.type == ATTACH, attached
    receipt = direct.request(PROMPT, {"text": "at the old owner"}).json
    assert events_of_turn(other, receipt["turn_id"])[-1].json["state"] == "completed"
    assert events_of_turn(direct, receipt["turn_id"])[-1].json["state"] == "completed"
    answers = answers_of(direct, session_id)
    assert list(answers) == ["hello", WORDS, "while it is stopped", "at the old owner"]
    cut = answers[WORDS]
    assert [each["state"] for each in cut] == ["interrupted"]
    assert cut[0]["content"].startswith(seen)
    assert [each["state"] for each in answers["while it is stopped"]] == ["completed"]
    assert "another server has taken the conversation over" in owner.log


def plain_chat_through_an_edge(
    cluster: Cluster,
) -> tuple[ServerProcess, ServerProcess, RawClient]:
    """Returns the owner of a conversation, another server, and a plain client of the latter."""
    sessions = {"create": True, "default": "common"}
    owner = cluster.start("owner", sessions=sessions)
    edge = cluster.start("edge", sessions=sessions)
    first, second = cluster.connect(owner), cluster.connect(edge)
    first.greeting()
    second.greeting()
    first.chat("one")
    return owner, edge, second


def test_a_plain_client_is_sent_the_end_of_its_answer_when_the_owner_was_killed(
    cluster: Cluster,
) -> None:
    owner, _, second = plain_chat_through_an_edge(cluster)
    second.send(CHAT_TEXT, 0, "!slow 3600 this answer takes an hour")
    assert second.receive().type == AGENT_THOUGHT
    owner.kill()
    frames = second.chat_frames()
    assert "interrupted" in frames[-2].text
    assert "two" in "".join(frame.text for frame in second.chat("two"))


def begin_plain_chat(client: RawClient, text: str) -> str:
    """Sends a prompt, and gives the first pieces of the answer."""
    client.send(CHAT_TEXT, 0, text)
    seen = ""
    while len(seen) < 40:
        frame = client.receive()
        seen += frame.text if frame.type == CHAT_TEXT else ""
    return seen


def end_plain_chat(client: RawClient) -> str:
    """The other pieces."""
    return "".join(frame.text for frame in client.chat_frames() if frame.type == CHAT_TEXT)


def test_a_plain_client_of_the_edge_gets_each_word_once_when_the_owner_is_killed(
    cluster: Cluster,
) -> None:
    owner, edge, second = plain_chat_through_an_edge(cluster)
    prompt = f"!slow 10 {WORDS}"
    shown = begin_plain_chat(second, prompt)
    owner.kill()
    shown += end_plain_chat(second)
    reader, _ = cluster.attach(edge, "common")
    (cut,) = answers_of(reader, "common")[prompt]
    assert cut["state"] == "interrupted"
    assert shown.split("\n\n(interrupted")[0].rstrip() == cut["content"].rstrip()


def test_a_client_that_closed_its_side_gets_text_and_end_when_the_owner_is_killed(
    cluster: Cluster,
) -> None:
    owner, edge = cluster.start("owner"), cluster.start("edge")
    _, session_id = cluster.begin(owner)
    client, _ = cluster.attach(edge, session_id)
    turn_id = client.request(PROMPT, {"text": WORDS, "model": "slow/echo"}).json["turn_id"]
    text = text_seen(client, turn_id, 10)
    client.sock.shutdown(socket.SHUT_WR)
    owner.kill()
    for frame in events_of_turn(client, turn_id):
        if frame.type == TEXT_DELTA:
            assert frame.json["offset"] == len(text)
            text += frame.json["text"]
        elif frame.type == TURN_FINISHED:
            assert frame.json["state"] == "interrupted"
    reader, _ = cluster.attach(edge, session_id)
    (cut,) = answers_of(reader, session_id)[WORDS]
    assert cut["content"] == text


@pytest.mark.slow
def test_a_plain_client_of_an_overtaken_owner_gets_each_word_once(cluster: Cluster) -> None:
    sessions = {"create": True, "default": "common"}
    owner = cluster.start("owner", sessions=sessions)
    edge = cluster.start("edge", sessions=sessions)
    client = cluster.connect(owner)
    client.greeting()
    client.chat("one")
    prompt = f"!slow 20 {WORDS}"
    shown = begin_plain_chat(client, prompt)
    reader, _ = cluster.attach(edge, "common")
    owner.signal(signal.SIGSTOP)
    reader.next_seq += 1
    reader.send(PROMPT, reader.next_seq, {"text": "while it is stopped"})
    receipt = reader.reply_to(reader.next_seq)  # from the edge, when the lease has lapsed
    assert receipt.type == PROMPT, receipt
    owner.signal(signal.SIGCONT)
    shown += end_plain_chat(client)
    other, _ = cluster.attach(edge, "common")
    (cut,) = answers_of(other, "common")[prompt]
    assert cut["state"] == "interrupted"
    words = shown.split("\n\n(interrupted")[0].rstrip()
    assert WORDS.startswith(words), "none twice, none left out"
    assert words.startswith(cut["content"].rstrip())


def test_cancel_presence_and_observers_work_over_the_relay(cluster: Cluster) -> None:
    owner, edge = cluster.start("owner"), cluster.start("edge")
    here, session_id = cluster.begin(owner)
    there, _ = cluster.attach(edge, session_id)
    onlooker, attached = cluster.attach(edge, session_id, observer=True)
    assert [each["observer"] for each in attached["clients"]] == [False, False, True]
    refused = onlooker.request(PROMPT, {"text": "may I?"})
    assert (refused.type, refused.json["code"]) == (ERROR, "forbidden")
    turn_id = there.request(PROMPT, {"text": "!slow 3600 for ever"}).json["turn_id"]
    there.event(TEXT_DELTA)
    assert there.request(CANCEL).json == {"cancelled": True}
    for client in (here, there, onlooker):
        assert events_of_turn(client, turn_id)[-1].json["state"] == "interrupted"
    onlooker.sock.close()
    for frame in here.events():
        if frame.type == SESSION_EVENT and "left" in frame.json:
            assert frame.json["count"] == 2
            break


def test_an_approval_and_an_upload_work_over_the_relay(cluster: Cluster) -> None:
    tools: dict[str, Any] = {"tools": {"now": "ask"}}
    owner, edge = cluster.start("owner", **tools), cluster.start("edge", **tools)
    here, session_id = cluster.begin(owner)
    there, _ = cluster.attach(edge, session_id)
    there.request(PROMPT, {"text": "!tool now {}"})
    asked = there.event(APPROVAL_REQUEST).json
    decided = there.request(
        APPROVAL, {"approval_id": asked["approval_id"], "decision": "allow"}
    ).json
    assert decided["decision"] == "allow"
    assert there.event(TOOL_FINISHED).json["status"] == "success"
    assert here.event(TURN_FINISHED).json["state"] == "completed"
    data = bytes(range(256)) * 1_000
    there.next_seq += 1
    there.send(FILE_METADATA, there.next_seq, {"filename": "a.bin", "size": len(data)})
    for start in range(0, len(data), 60_000):
        there.send(FILE_DATA, there.next_seq, data[start : start + 60_000])
    stored = there.reply_to(there.next_seq)
    assert stored.type == FILE_METADATA, stored
    file_id = stored.json["file_id"]
    for client in (here, there):
        assert client.request(FILE_GET, {"file_id": file_id}).payload == data
    receipt = there.request(PROMPT, {"text": "look", "attachments": [file_id]})
    assert receipt.type == PROMPT, receipt


def test_a_conversation_is_changed_and_deleted_over_the_relay(cluster: Cluster) -> None:
    owner, edge = cluster.start("owner"), cluster.start("edge")
    here, session_id = cluster.begin(owner)
    there, _ = cluster.attach(edge, session_id)
    row = there.request(SESSION_UPDATE, {"name": "renamed there", "pinned": True}).json
    assert (row["name"], row["is_current"]) == ("renamed there", True)
    (listed,) = there.request(SESSION_LIST).json["sessions"]
    assert (listed["name"], listed["is_current"]) == ("renamed there", True)
    assert there.request(CLEAR_REQUEST).json["cleared_through_seq"] > 0
    assert there.request(MODEL_SWITCH, {"model": "slow/echo"}).json["model"] == "slow/echo"
    deleted = there.request(SESSION_DELETE, {"session_id": session_id}).json
    assert deleted["session_id"] == session_id
    assert deleted["current_session_id"] not in ("", session_id)
    assert there.ask("in a fresh one")
    for frame in here.events():
        if frame.type == SESSION_EVENT and frame.json["event"] == "deleted":
            break


def test_a_client_switches_between_conversations_of_both_servers(cluster: Cluster) -> None:
    owner, edge = cluster.start("owner"), cluster.start("edge")
    here, session_id = cluster.begin(owner)
    client, own_id = cluster.begin(edge)
    for number in range(5):
        assert client.request(ATTACH, {"session_id": session_id}).type == ATTACH
        assert f"there {number}" in client.ask(f"there {number}")
        assert client.request(ATTACH, {"session_id": own_id}).type == ATTACH
        turn_id = here.request(PROMPT, {"text": f"beside {number}"}).json["turn_id"]
        assert f"here {number}" in client.ask(f"here {number}")
        events_of_turn(here, turn_id)
        assert all(
            frame.json["session_id"] != session_id for frame in client.pushed if not frame.seq
        )


def test_a_server_with_a_wrong_cluster_secret_gets_no_link(cluster: Cluster) -> None:
    owner = cluster.start("owner")
    with cluster.connect(owner) as stranger:
        refusal = stranger.hello({"peer": "0123456789"})
        assert refusal["code"] == "unauthorized"
        stranger.send(HELLO, 2, {"peer": "0123456789", "proof": refusal["proof"]})
        while (frame := stranger.receive()).seq != 2:
            pass
        assert (frame.type, frame.json["code"]) == (ERROR, "unauthorized")


def test_a_server_without_a_cluster_refuses_the_hello_of_another_server(
    cluster: Cluster,
) -> None:
    alone = cluster.start("alone", cluster={})
    with cluster.connect(alone) as stranger:
        refusal = stranger.hello({"peer": "0123456789"})
        assert refusal["code"] == "unauthorized"
        assert "cluster.secret_file" in refusal["message"]


def test_a_draining_server_hands_over_idle_conversations_while_another_turn_runs(
    cluster: Cluster,
) -> None:
    limits = {"drain_seconds_max": 3600}
    owner, edge = cluster.start("owner", limits=limits), cluster.start("edge")
    _, session_id = cluster.begin(owner)
    busy, _ = cluster.begin(owner)
    busy.request(PROMPT, {"text": "!slow 3600 for ever"})
    client, _ = cluster.attach(edge, session_id)
    owner.signal(signal.SIGTERM)
    event = lagged(client)
    attached = client.request(ATTACH, {"session_id": session_id, "after_seq": event["head_seq"]})
    assert attached.type == ATTACH, attached
    assert client.ask("at the edge now")
    assert prompts_of(client, session_id) == ["hello", "at the edge now"]


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where somebody listens, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("link", ["refused", "silent"])
def test_an_owner_that_the_edge_cannot_reach_hands_over_through_redis(
    cluster: Cluster, silent: str, link: str
) -> None:
    owner = cluster.start("owner", advertise=UNREACHABLE if link == "refused" else silent)
    edge = cluster.start("edge")
    here, session_id = cluster.begin(owner)
    there = cluster.connect(edge)
    there.hello()
    receipt = there.request(PROMPT, {"text": "from the edge", "session_id": session_id})
    assert receipt.type == PROMPT, receipt
    event = lagged(here)
    attached = here.request(ATTACH, {"session_id": session_id, "after_seq": event["head_seq"]})
    assert attached.type == ATTACH, attached
    assert there.request(ATTACH, {"session_id": session_id}).type == ATTACH
    last = here.request(PROMPT, {"text": "from the old owner"}).json  # which is an edge now
    for client in (here, there):
        assert events_of_turn(client, last["turn_id"])[-1].json["state"] == "completed"
    answers = answers_of(here, session_id)
    assert list(answers) == ["hello", "from the edge", "from the old owner"]
    states = [[entry["state"] for entry in entries] for entries in answers.values()]
    assert states == [["completed"]] * 3
    assert "another server has asked for it" in owner.log


@pytest.mark.slow
def test_a_long_turn_is_interrupted_when_another_server_asks_for_the_conversation(
    cluster: Cluster,
) -> None:
    owner, edge = cluster.start("owner", advertise=UNREACHABLE), cluster.start("edge")
    here, session_id = cluster.begin(owner)
    long = f"!slow 3600 {WORDS}"
    running = here.request(PROMPT, {"text": long}).json
    here.request(PROMPT, {"text": "and then?"})
    seen = text_seen(here, running["turn_id"], 1)
    there = cluster.connect(edge)
    there.hello()
    receipt = there.request(PROMPT, {"text": "from the edge", "session_id": session_id})
    assert receipt.type == PROMPT, receipt
    for frame in here.events():
        if frame.type == TEXT_DELTA:
            seen += frame.json["text"]
        if frame.type == TURN_FINISHED:
            assert (frame.json["turn_id"], frame.json["state"]) == (
                running["turn_id"],
                "interrupted",
            )
            break
    lagged(here)
    assert there.request(ATTACH, {"session_id": session_id}).type == ATTACH
    assert there.ask("is that all?")
    answers = answers_of(there, session_id)
    assert list(answers) == ["hello", long, "and then?", "from the edge", "is that all?"]
    (cut,) = answers[long]
    assert (cut["state"], cut["content"]) == ("interrupted", seen)
    for text in ("and then?", "from the edge"):
        assert [each["state"] for each in answers[text]] == ["completed"]


@pytest.mark.slow
def test_plain_clients_notice_only_a_pause_during_a_handover(cluster: Cluster) -> None:
    sessions = {"create": True, "default": "common"}
    owner = cluster.start("owner", advertise=UNREACHABLE, sessions=sessions)
    edge = cluster.start("edge", sessions=sessions)
    first, second = cluster.connect(owner), cluster.connect(edge)
    first.greeting()
    second.greeting()
    assert "one" in "".join(frame.text for frame in first.chat("one"))
    assert "two" in "".join(frame.text for frame in second.chat("two"))
    assert "three" in "".join(frame.text for frame in first.chat("three"))
    assert "four" in "".join(frame.text for frame in second.chat("four"))
    second.send(HISTORY_REQUEST, 0, "20")
    found = second.receive().json["messages"]
    asked = [each["content"] for each in found if each["role"] == "user"]
    assert asked == ["one", "two", "three", "four"]


@pytest.mark.slow
def test_an_open_approval_survives_a_handover(cluster: Cluster) -> None:
    tools: dict[str, Any] = {"tools": {"now": "ask"}}
    owner = cluster.start("owner", advertise=UNREACHABLE, **tools)
    edge = cluster.start("edge", **tools)
    here, session_id = cluster.begin(owner)
    here.request(PROMPT, {"text": "!tool now {}"})
    asked = here.event(APPROVAL_REQUEST).json
    there, attached = cluster.attach(edge, session_id)
    assert [each["approval_id"] for each in attached["pending_approvals"]] == [asked["approval_id"]]
    there.request(APPROVAL, {"approval_id": asked["approval_id"], "decision": "allow"})
    assert there.event(TOOL_FINISHED).json["status"] == "success"
    assert there.event(TURN_FINISHED).json["state"] == "completed"


@pytest.mark.slow
def test_servers_that_cannot_reach_each_other_hand_over_once_per_request(
    cluster: Cluster, redis: RedisServer
) -> None:
    servers = [
        cluster.start(name, advertise=f"127.0.0.1:{port}")
        for port, name in enumerate(("one", "two"), 1)
    ]
    _, session_id = cluster.begin(servers[0])
    clients = [cluster.connect(server) for server in servers]
    for client in clients:
        client.hello()
    for number in (1, 0):
        prompt = {"text": f"from {number}", "session_id": session_id}
        receipt = clients[number].request(PROMPT, prompt)
        assert receipt.type == PROMPT, receipt
    assert prompts_of(clients[0], session_id) == ["hello", "from 1", "from 0"]
    with redis.client() as client:
        (key,) = client.keys(f"*{{{session_id}}}:meta")
        token: Any = client.hget(key, "token")
        assert token.partition(b":")[0] == b"3"


@pytest.mark.slow
def test_all_text_that_was_streamed_to_a_client_is_in_the_record_after_a_kill(
    cluster: Cluster,
) -> None:
    owner, edge = cluster.start("owner"), cluster.start("edge")
    text = " ".join(f"w{number}" for number in range(4_000))
    for attempt in range(5):
        _, session_id = cluster.begin(owner)
        client, _ = cluster.attach(edge, session_id)
        client.request(PROMPT, {"text": f"!slow 4 {text}"})
        seen = ""
        for frame in client.events():
            if frame.type == TEXT_DELTA:
                seen += frame.json["text"]
                if len(seen) > 1_000 * (attempt + 1) and owner.is_running:
                    owner.kill()
            if frame.type == SESSION_EVENT and frame.json["event"] == "lagged":
                break
        other, _ = cluster.attach(edge, session_id)
        (cut,) = answers_of(other, session_id)[f"!slow 4 {text}"]
        assert cut["state"] == "interrupted"
        assert cut["content"][: len(seen)] == seen
        owner.start()


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, str]:
    return make_certificate(tmp_path)


def test_links_use_tls_if_servers_do_and_keep_users_separate(
    cluster: Cluster, certificate: dict[str, str]
) -> None:
    users = [
        {"name": name, "token_sha256": hashlib.sha256(name.encode()).hexdigest()}
        for name in ("ada", "bob")
    ]
    owner = cluster.start("owner", certificate, users=users)
    edge = cluster.start("edge", certificate, users=users)
    context = ssl.create_default_context(cafile=certificate["cert"])

    def connect(server: ServerProcess, **hello: str) -> tuple[RawClient, Any]:
        client = cluster.connect(server)
        client.sock = context.wrap_socket(client.sock, server_hostname="127.0.0.1")
        return client, client.hello({**hello})

    here, welcome = connect(owner, token="ada")
    assert here.ask("hello")
    session_id = welcome["session_id"]
    there, welcome = connect(edge, token="ada", session_id=session_id)
    assert (welcome["user"], welcome["session_id"]) == ("ada", session_id)
    assert there.ask("from the edge")
    assert prompts_of(here, session_id) == ["hello", "from the edge"]
    other, _ = connect(edge, token="bob")
    refused = other.request(PROMPT, {"text": "let me in", "session_id": session_id})
    assert (refused.type, refused.json["code"]) == (ERROR, "not_found")


def test_two_servers_that_create_the_same_id_have_one_conversation(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    wanted = {"session_id": "user_123", "create": True}
    first, second = cluster.connect(one), cluster.connect(two)
    assert first.hello(wanted)["session_id"] == second.hello(wanted)["session_id"]
    assert first.ask("from one")
    receipt = second.request(PROMPT, {"text": "from two"})
    assert receipt.type == PROMPT, receipt
    lagged(second)
    attached = second.request(ATTACH, {"session_id": "user_123"})
    assert attached.type == ATTACH, attached
    assert prompts_of(second, "user_123") == ["from one", "from two"]
    assert second.ask("again from two")


def test_a_message_is_found_at_another_server_once_it_is_acknowledged(
    cluster: Cluster,
) -> None:
    owner, edge = cluster.start("owner"), cluster.start("edge")
    client, session_id = cluster.begin(owner, "hello needle")
    reader = cluster.connect(edge)
    reader.hello()
    for number in range(5):
        found = reader.request(SEARCH, {"query": "needle"}).json
        assert {hit["session_id"] for hit in found["hits"]} == {session_id}
        assert len([hit for hit in found["hits"] if hit["role"] == "user"]) == number + 1
        assert client.ask(f"needle {number}")


def upload(client: RawClient, data: bytes) -> str:
    client.send(FILE_METADATA, 900, {"filename": "notes.txt", "size": len(data)})
    for start in range(0, len(data), 50_000):
        client.send(FILE_DATA, 900, data[start : start + 50_000])
    reply = client.reply_to(900)
    assert reply.type == FILE_METADATA, reply.json
    file_id: str = reply.json["file_id"]
    return file_id


def test_a_file_can_be_read_and_prompted_at_another_server_after_the_owner_was_killed(
    cluster: Cluster,
) -> None:
    owner, edge = cluster.start("owner"), cluster.start("edge")
    client, session_id = cluster.begin(owner)
    data = bytes(range(256)) * 3_000  # more than one piece
    file_id = upload(client, data)
    fork = client.request(SESSION_FORK, {"session_id": session_id}).json["session_id"]
    owner.kill()
    for place in (session_id, fork):
        reader, _ = cluster.attach(edge, place)
        found = reader.request(FILE_GET, {"file_id": file_id, "session_id": place})
        assert found.payload == data[: len(found.payload)]
        rest = {"file_id": file_id, "session_id": place, "offset": len(data) - 9}
        assert reader.request(FILE_GET, rest).payload == data[-9:]
        receipt = reader.request(PROMPT, {"text": "look", "attachments": [file_id]})
        assert receipt.type == PROMPT, receipt.json


def test_a_prompt_with_a_file_that_only_a_dead_server_has_is_refused_with_its_name(
    cluster: Cluster,
) -> None:
    files = {"type": "directory"}
    owner, edge = cluster.start("owner", files=files), cluster.start("edge", files=files)
    client, session_id = cluster.begin(owner)
    file_id = upload(client, b"only there")
    owner.kill()
    other, _ = cluster.attach(edge, session_id)
    refused = other.request(PROMPT, {"text": "look", "attachments": [file_id]})
    assert (refused.type, refused.json["field"]) == (ERROR, "attachments")
    assert "notes.txt" in refused.json["message"]


def test_a_file_too_large_for_redis_is_fetched_from_the_server_that_has_it(
    cluster: Cluster,
) -> None:
    files = {"bytes_max": 1000}
    owner, edge = cluster.start("owner", files=files), cluster.start("edge", files=files)
    client, session_id = cluster.begin(owner)
    data = bytes(range(256)) * 5_000  # more than one piece
    file_id = upload(client, data)
    reader = cluster.connect(edge)
    reader.hello()
    last = {"file_id": file_id, "session_id": session_id, "offset": len(data) - 9}
    assert reader.request(FILE_GET, last).payload == data[-9:]
    owner.kill()
    again, _ = cluster.attach(edge, session_id)  # which has a copy by now
    receipt = again.request(PROMPT, {"text": "look", "attachments": [file_id]})
    assert receipt.type == PROMPT, receipt.json


def test_a_prompt_with_a_large_file_runs_at_another_server_once_the_one_that_has_it_is_back(
    cluster: Cluster,
) -> None:
    files = {"bytes_max": 1000}
    owner, edge = cluster.start("owner", files=files), cluster.start("edge", files=files)
    client, session_id = cluster.begin(owner)
    file_id = upload(client, b"too large " * 200)
    owner.kill()
    other, _ = cluster.attach(edge, session_id)
    prompt = {"text": "look", "attachments": [file_id]}
    refused = other.request(PROMPT, prompt)
    assert refused.json["code"] == "unavailable", refused.json
    assert "the file 'notes.txt' can't be read now" in refused.json["message"]
    assert "can't be reached" in refused.json["message"]
    owner.start()
    receipt = other.request(PROMPT, prompt)
    assert receipt.type == PROMPT, receipt.json


def test_servers_may_share_a_directory_of_files(cluster: Cluster, tmp_path: Path) -> None:
    files = {"type": "directory", "path": str(tmp_path / "shared" / "files")}
    owner, edge = cluster.start("owner", files=files), cluster.start("edge", files=files)
    client, session_id = cluster.begin(owner)
    file_id = upload(client, b"for both")
    owner.kill()
    other, _ = cluster.attach(edge, session_id)
    wanted = {"file_id": file_id, "session_id": session_id}
    assert other.request(FILE_GET, wanted).payload == b"for both"
