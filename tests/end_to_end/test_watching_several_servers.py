"""WATCH and SEEN where several servers share a Redis: any server tells of all conversations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.end_to_end.test_watching import answered, comparable, listed, until
from tests.support.raw_client import (
    CANCEL,
    DETACH,
    ERROR,
    PROMPT,
    SEEN,
    SESSION_CHANGED,
    SESSION_DELETE,
    SESSION_EVENT,
    SESSION_NEW,
    SESSION_UPDATE,
    WATCH,
    RawClient,
)
from tests.support.redis_server import RedisServer
from tests.support.server_cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path, redis: RedisServer) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, redis)
    yield cluster
    cluster.end()


def watching(cluster: Cluster, server: object) -> RawClient:
    client = cluster.connect(server)  # type: ignore[arg-type]
    client.hello()
    client.request(DETACH)
    assert client.request(WATCH).json["watching"] is True
    return client


def test_a_watcher_at_another_server_sees_every_change(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    watcher, writer = watching(cluster, two), cluster.connect(one)
    writer.hello()
    session_id = writer.request(PROMPT, {"text": "!slow 0.5 one two"}).json["session_id"]
    until(watcher, session_id, state="running")
    row = until(watcher, session_id, state="idle", unread=1)
    assert comparable(row) == listed(writer)[session_id] == listed(watcher)[session_id]
    writer.request(SESSION_UPDATE, {"session_id": session_id, "name": "notes"})
    until(watcher, session_id, name="notes")
    # The mark is set at the server that does not have the conversation open.
    assert watcher.request(SEEN, {"session_id": session_id, "seq": 99}).json["unread"] == 0
    until(watcher, session_id, unread=0)
    assert listed(writer)[session_id]["unread"] == 0
    writer.request(SESSION_DELETE, {"session_id": session_id})
    while (event := watcher.event(SESSION_CHANGED).json)["row"] is not None:
        pass
    assert event["session_id"] == session_id
    writer.request(SESSION_UPDATE, {"session_id": session_id, "deleted": False})
    until(watcher, session_id, name="notes")


def test_the_rows_that_need_attention_come_from_all_servers(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    writers = [cluster.connect(server) for server in (one, two)]
    ids = []
    for writer in writers:
        writer.hello()
        ids.append(answered(writer)["session_id"])
        writer.request(SESSION_NEW, {})
        ids.append(writer.request(PROMPT, {"text": "!slow 60 one two"}).json["session_id"])
        writer.request(SESSION_NEW, {})
        answered(writer)
        writer.request(SEEN, {"seq": 99})
    reader = cluster.connect(one)
    reader.hello()
    rows = {row["session_id"]: row for row in reader.request(WATCH).json["sessions"]}
    assert {*rows} == {*ids}
    assert sorted(row["state"] for row in rows.values()) == ["idle", "idle", "running", "running"]
    first = reader.request(WATCH, {"limit": 3}).json
    second = reader.request(WATCH, {"limit": 3, "cursor": first["next_cursor"]}).json
    paged = [row["session_id"] for page in (first, second) for row in page["sessions"]]
    assert sorted(paged) == sorted(ids)
    for writer in writers:
        writer.request(CANCEL)


def test_a_watcher_sees_what_becomes_of_a_turn_whose_server_was_killed(
    cluster: Cluster,
) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    watcher, writer = watching(cluster, two), cluster.connect(one)
    writer.hello()
    session_id = writer.request(PROMPT, {"text": "!slow 60 one two three"}).json["session_id"]
    until(watcher, session_id, state="running")
    one.kill()  # the other one takes it over, although no client asks for it
    row = until(watcher, session_id, state="failed")
    assert comparable(row) == listed(watcher)[session_id]


def test_a_watcher_watches_again_after_redis_was_cut_off(
    cluster: Cluster, redis: RedisServer
) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    watcher, writer = watching(cluster, two), cluster.connect(one)
    writer.hello()
    first = answered(writer)["session_id"]
    until(watcher, first, unread=1)
    redis.restart()
    while not (event := watcher.event(SESSION_EVENT).json).get("watch"):
        pass
    assert (event["event"], event["session_id"]) == ("lagged", "")
    while (reply := watcher.request(WATCH)).type == ERROR:  # while Redis is away
        assert reply.json["retryable"] is True
    assert [row["session_id"] for row in reply.json["sessions"]] == [first]
    while writer.request(SESSION_NEW, {"name": "second"}).type == ERROR:
        pass
    second = answered(writer)["session_id"]
    row = until(watcher, second, state="idle", unread=1)
    assert comparable(row) == listed(watcher)[second] == listed(writer)[second]
