"""Watchers that do not read, and watchers of a server on which nothing happens."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.conftest import Connect
from tests.end_to_end.test_watching import answered, comparable, listed, until
from tests.gateway.test_metrics import samples
from tests.support.raw_client import (
    DETACH,
    ERROR,
    SESSION_CHANGED,
    SESSION_EVENT,
    SESSION_NEW,
    SESSION_UPDATE,
    WATCH,
)
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow

Start = Callable[..., ServerProcess]
CONVERSATIONS = 200
ROUNDS_MAX = 200


def test_a_watcher_that_never_reads_is_sent_lagged_and_watches_again(
    start_server: Start, connect: Connect
) -> None:
    server = start_server(limits={"event_bytes_max": 65_536, "write_seconds_max": 120})
    writer, sleeper = connect(server), connect(server)
    writer.hello()
    sleeper.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    sleeper.hello()
    sleeper.request(DETACH)
    assert sleeper.request(WATCH).json["watching"] is True
    ids = [writer.request(SESSION_NEW, {}).json["session_id"] for _ in range(CONVERSATIONS)]
    rounds = 0
    while not samples(server.http_url).get(("nplt_lagged_total", ())):
        rounds += 1
        assert rounds < ROUNDS_MAX
        for place, session_id in enumerate(ids):
            name = f"{rounds} {place} " + "\N{PILE OF POO}" * 60
            writer.send(SESSION_UPDATE, place + 1, {"session_id": session_id, "name": name})
        for place in range(CONVERSATIONS):
            assert writer.reply_to(place + 1).type != ERROR
    memory = psutil.Process(server.pid).memory_info().rss
    assert memory < 300 * 2**20
    # It wakes up: changes up to a point, then `lagged`, and no change after it.
    while (frame := sleeper.event(SESSION_CHANGED, SESSION_EVENT)).type == SESSION_CHANGED:
        pass
    assert (frame.json["event"], frame.json["watch"]) == ("lagged", True)
    last = answered(writer)["session_id"]
    reply = sleeper.request(WATCH).json
    assert not [each for each in sleeper.pushed if each.type == SESSION_CHANGED]
    assert [row["session_id"] for row in reply["sessions"]] == [last]
    writer.request(SESSION_UPDATE, {"session_id": ids[0], "name": "awake again"})
    row = until(sleeper, ids[0], name="awake again")
    assert comparable(row) == listed(writer)[ids[0]]


def test_a_server_with_watchers_does_nothing_while_nothing_happens(
    start_server: Start, connect: Connect
) -> None:
    server = start_server()
    process = psutil.Process(server.pid)

    def switches_in(seconds: float) -> int:
        before = _switches(process)
        time.sleep(seconds)
        return _switches(process) - before

    writer = connect(server)
    writer.hello()
    answered(writer)
    switches_in(1.0)  # the start is over
    without = switches_in(5.0)
    for _ in range(20):
        watcher = connect(server)
        watcher.hello()
        watcher.request(WATCH)
    switches_in(1.0)
    assert switches_in(5.0) <= 1.5 * without + 20


def _switches(process: psutil.Process) -> int:
    """The voluntary context switches of all threads of the process."""
    total = 0
    for thread in process.threads():
        status = Path(f"/proc/{process.pid}/task/{thread.id}/status").read_text()
        counts = [line.split()[1] for line in status.splitlines() if line.startswith("voluntary")]
        total += sum(map(int, counts))
    return total
