"""Slow readers, silent peers and a shortage of descriptors cost nobody else anything."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest
from tests.conftest import Connect
from tests.support.raw_client import (
    ATTACH,
    CHAT_TEXT,
    ENTRY,
    HISTORY_REQUEST,
    PING,
    PROMPT,
    SESSION_EVENT,
    SESSION_LIST,
    SESSION_NEW,
    STATUS,
    TURN_FINISHED,
    RawClient,
)
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow

Start = Callable[..., ServerProcess]


def test_a_lagging_client_is_sent_lagged_and_catches_up_from_the_record(
    start_server: Start, connect: Connect
) -> None:
    server = start_server(limits={"event_bytes_max": 65_536, "write_seconds_max": 60})
    reader, sleeper = connect(server), connect(server)
    session_id = reader.hello()["session_id"]
    sleeper.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    sleeper.hello()
    sleeper.request(ATTACH, {"session_id": session_id})
    prompt, prompts = "x" * 60_000, 0
    while prompts < 100:  # 18 MB, more than the system will keep for it
        prompts += 1
        assert reader.ask(f"{prompts} {prompt}").endswith(prompt)
    # It wakes up: everything in order up to a point, then `lagged`.
    last_seq, event = 0, None
    for frame in sleeper.events():
        if frame.type == ENTRY:
            assert frame.json["entry"]["seq"] == last_seq + 1
            last_seq += 1
        if frame.type == SESSION_EVENT:
            event = frame.json
            break
    assert event
    assert event["event"] == "lagged"
    assert event["head_seq"] >= last_seq
    assert last_seq < 2 * prompts
    seqs = []
    cursor = last_seq
    while True:
        page = sleeper.request(HISTORY_REQUEST, {"session_id": session_id, "after": cursor}).json
        seqs += [message["seq"] for message in page["messages"]]
        cursor = page["page"]["after"]
        if not page["page"]["has_more_after"]:
            break
    assert seqs == list(range(last_seq + 1, 2 * prompts + 1))
    sleeper.request(ATTACH, {"session_id": session_id, "after_seq": cursor})
    reader.ask("awake again?")
    assert sleeper.event(TURN_FINISHED)


def test_a_client_that_never_reads_its_replies_costs_bounded_memory(server: ServerProcess) -> None:
    process = psutil.Process(server.pid)
    with RawClient(server.port) as greedy, RawClient(server.port) as other:
        other.hello()
        other.ask("warm")
        before = process.memory_info().rss
        greedy.hello()
        greedy.sock.settimeout(1.0)
        flood = b"".join(
            b"\x04" + number.to_bytes(2, "big") + b"\x10\x00" + bytes(4_096)
            for number in range(1, 65)
        )
        with suppress(TimeoutError):
            while True:
                greedy.sock.sendall(flood)
        assert other.ask("served") == "served"
        assert process.memory_info().rss - before < 16 * 1024 * 1024


def test_a_client_silent_beyond_its_keepalive_is_disconnected(
    start_server: Start, connect: Connect
) -> None:
    server = start_server()
    silent, talkative = connect(server), connect(server)
    silent.hello({"keepalive": 0.5})
    talkative.hello()
    assert silent.until_closed()
    assert talkative.ask("I named none") == "I named none"


def test_a_silent_plain_client_gets_a_heartbeat_and_is_disconnected_later(
    start_server: Start, connect: Connect
) -> None:
    limits = {"plain_heartbeat_seconds": 0.5, "plain_silence_seconds_max": 3}
    client = connect(start_server(limits=limits))
    client.greeting()
    client.chat("hello")
    texts = [frame.text for frame in client.until_closed() if frame.type == CHAT_TEXT]
    assert texts[0] == "HEARTBEAT"
    assert "Nothing came from you" in texts[-1]


def test_a_plain_client_is_not_disconnected_during_a_long_answer(
    start_server: Start, connect: Connect
) -> None:
    client = connect(start_server(limits={"plain_silence_seconds_max": 1}))
    client.greeting()
    frames = client.chat("!slow 4 a long answer to a silent listener")
    assert "".join(f.text for f in frames if f.type == CHAT_TEXT) == (
        "a long answer to a silent listener"
    )


def test_out_of_file_descriptors_the_accept_loop_backs_off_and_recovers(
    server: ServerProcess, connect: Connect
) -> None:
    first = connect()
    first.hello()
    used = psutil.Process(server.pid).num_fds()
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + 5, hard))
    crowd = [connect() for _ in range(30)]
    assert first.request(PING, b"x").payload == b"x"
    for client in crowd:
        client.sock.close()
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (hard, hard))
    newcomer = connect()
    newcomer.hello()
    assert newcomer.ask("serving again") == "serving again"
    assert first.ask("and me") == "and me"


def test_closed_connections_leak_no_file_descriptors(server: ServerProcess) -> None:
    process = psutil.Process(server.pid)
    with RawClient(server.port) as keeper:
        keeper.hello()
        keeper.ask("hello")
        before = process.num_fds()
        for number in range(50):
            with RawClient(server.port) as client:
                client.hello()
                client.request(PROMPT, {"text": f"turn {number}"})
        while keeper.request(STATUS).json["connections"] > 1:
            pass
        # Conversations stay open a while, two descriptors each; connections don't.
        assert process.num_fds() <= before + 100


def test_a_client_that_attaches_repeatedly_and_never_reads_costs_bounded_memory(
    server: ServerProcess, connect: Connect
) -> None:
    writer, greedy = connect(), connect()
    session_id = writer.hello()["session_id"]
    for _ in range(20):
        writer.ask("y" * 60_000)
    greedy.hello()
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    for seq in range(2, 252):
        greedy.send(ATTACH, seq, {"session_id": session_id, "after_seq": 0})
    assert writer.request(PING, b"x").payload == b"x"
    writer.ask("served")
    assert process.memory_info().rss - before < 32 * 1024 * 1024


def test_messages_larger_than_the_default_limit_are_received_if_configured(
    start_server: Start, connect: Connect
) -> None:
    client = connect(start_server(limits={"message_bytes_max": 4 * 1024 * 1024}))
    client.hello()
    assert client.ask("z" * 2_000_000) == "z" * 2_000_000


def test_a_session_list_fits_the_message_limit(start_server: Start, connect: Connect) -> None:
    client = connect(start_server(limits={"message_bytes_max": 65_536}))
    client.hello()
    for number in range(40):
        client.request(SESSION_NEW, {"name": f"{number} " + "n" * 190})
    page = client.request(SESSION_LIST, {"limit": 200}).json
    assert page["next_cursor"]
    assert page["sessions"]
