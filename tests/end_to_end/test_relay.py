"""Several servers over one Redis: a client may be at any of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.raw_client import (
    AGENT_THOUGHT,
    ATTACH,
    CHAT_TEXT,
    HISTORY_REQUEST,
    PROMPT,
    SESSION_SWITCH,
    TEXT_DELTA,
    TURN_FINISHED,
    TURN_STARTED,
    Frame,
    RawClient,
)
from tests.support.redis_server import RedisServer, free_port
from tests.support.server_process import ServerProcess

LEASE_SECONDS = 3.0
WORDS = " ".join(f"word{number}" for number in range(40))


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", appendfsync="always").start()
    yield server
    server.kill()


class Cluster:
    """Servers that relay to each other, and their clients."""

    def __init__(self, directory: Path, redis: RedisServer) -> None:
        self._directory = directory
        self._redis = redis
        self._secret = directory / "secret"
        self._secret.write_text("a secret of this cluster\n")
        self._servers: list[ServerProcess] = []
        self._clients: list[RawClient] = []

    def start(self, name: str, **settings: object) -> ServerProcess:
        port = free_port()
        backend = {"type": "redis", "url": self._redis.url, "lease": LEASE_SECONDS}
        every: dict[str, object] = {
            "histories": [{"id": "team", "backend": backend}],
            "cluster": {"advertise": f"127.0.0.1:{port}", "secret_file": str(self._secret)},
            "providers": [
                {"id": "offline", "type": "offline", "words_per_second": 0},
                {"id": "slow", "type": "offline", "words_per_second": 10},
            ],
            **settings,
        }
        server = ServerProcess(self._directory / name, "--port", str(port), settings=every)
        self._servers.append(server.start())
        return server

    def connect(self, server: ServerProcess) -> RawClient:
        self._clients.append(RawClient(server.port))
        return self._clients[-1]

    def begin(self, server: ServerProcess, text: str = "hello") -> tuple[RawClient, str]:
        """A client with a conversation that this server owns."""
        client = self.connect(server)
        session_id = client.hello()["session_id"]
        assert client.ask(text)
        return client, session_id

    def attach(
        self, server: ServerProcess, session_id: str, **cursor: object
    ) -> tuple[RawClient, Any]:
        client = self.connect(server)
        client.hello()
        reply = client.request(ATTACH, {"session_id": session_id, **cursor})
        assert reply.type == ATTACH, reply
        return client, reply.json

    def end(self) -> None:
        for client in self._clients:
            client.sock.close()
        for server in self._servers:
            server.kill()


@pytest.fixture
def cluster(tmp_path: Path, redis: RedisServer) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, redis)
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


def test_a_client_at_another_server_prompts_and_both_hear_the_same(cluster: Cluster) -> None:
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


def test_hello_and_a_prompt_may_name_a_conversation_of_another_server(cluster: Cluster) -> None:
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
        said = second.receive().json
        assert [each["content"] for each in said["messages"] if each["role"] == "user"] == [
            "one",
            "two",
        ]
