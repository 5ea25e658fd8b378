"""Servers that share a Redis, and their clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.clocks import Clock
from tests.support.ports import free_port
from tests.support.raw_client import ATTACH, RawClient
from tests.support.redis_server import RedisServer
from tests.support.server_process import ServerProcess

OFFLINE = [
    {"id": "offline", "type": "offline", "words_per_second": 0},
    {"id": "slow", "type": "offline", "words_per_second": 10},
]


def redis_settings(url: str, *, lease: float, **more: object) -> dict[str, object]:
    """The settings of a server whose conversations are in that Redis."""
    backend = {"type": "redis", "url": url, "lease": lease}
    return {"histories": [{"id": "team", "backend": backend}], "providers": OFFLINE, **more}


class Cluster:
    def __init__(self, directory: Path, redis: RedisServer, *, lease: float = 3.0) -> None:
        self._directory = directory
        self._redis = redis
        self._lease = lease
        self._servers: list[ServerProcess] = []
        self._clients: list[RawClient] = []

    def start(
        self,
        name: str,
        certificate: dict[str, str] | None = None,
        *,
        advertise: str | None = None,
        secret: str | None = "a secret of this cluster",
        clock: Clock | None = None,
        **settings: object,
    ) -> ServerProcess:
        """Without a secret, the server does not relay."""
        port = free_port()
        cluster = {"advertise": advertise or f"127.0.0.1:{port}"}
        if secret is not None:
            path = self._directory / f"{name}.secret"
            path.write_text(secret)
            cluster["secret_file"] = str(path)
        if certificate is not None:
            cluster["ca_file"] = certificate["cert"]
            settings["listen"] = {"tls": certificate}
        every = {"cluster": cluster, **settings}
        server = ServerProcess(
            self._directory / name,
            "--port",
            str(port),
            settings=redis_settings(self._redis.url, lease=self._lease, **every),
            clock=clock,
        )
        self._servers.append(server)
        return server.start()

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
