"""Proxies in `listen.proxies` name the clients behind them; nobody else may."""

from __future__ import annotations

import hashlib
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.http_client import request
from tests.support.ports import free_port
from tests.support.raw_client import CHAT_TEXT, HELLO, Closed, RawClient
from tests.support.server_process import ServerProcess

TOKEN = "a-long-token-for-tests"
USERS = [{"name": "ada", "token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}]
V2 = b"\r\n\r\n\x00\r\nQUIT\n"


def v1(address: str = "192.0.2.7") -> bytes:
    return f"PROXY TCP4 {address} 198.51.100.1 4711 9999\r\n".encode()


def v2(address: str = "192.0.2.7", *, extra: bytes = b"") -> bytes:
    body = socket.inet_aton(address) + socket.inet_aton("198.51.100.1")
    body += struct.pack("!HH", 4711, 9999) + extra
    return V2 + struct.pack("!BBH", 0x21, 0x11, len(body)) + body


def v2_ipv6(address: str) -> bytes:
    body = socket.inet_pton(socket.AF_INET6, address) + bytes(16) + struct.pack("!HH", 1, 2)
    return V2 + struct.pack("!BBH", 0x21, 0x21, len(body)) + body


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    listen = {"proxies": ["127.0.0.1"]}
    settings: dict[str, object] = {
        "listen": listen,
        "users": USERS,
        "limits": {"connections_per_address_max": 2},
    }
    running = ServerProcess(tmp_path_factory.mktemp("proxied") / "data", settings=settings).start()
    yield running
    running.terminate()


def opened(server: ServerProcess, header: bytes) -> RawClient:
    client = RawClient(server.port)
    client.sock.sendall(header)
    return client


def log_in(client: RawClient, token: str = TOKEN) -> Any:
    client.send(HELLO, 1, {"token": token})
    while (frame := client.receive()).type == CHAT_TEXT:
        pass
    return frame.json


@pytest.mark.parametrize(
    "header",
    [
        v1(),
        v2(),
        v2(extra=b"\x04\x00\x01\x00"),
        v2_ipv6("2001:db8::7"),
        b"PROXY UNKNOWN\r\n",
        V2 + struct.pack("!BBH", 0x20, 0, 0),
        V2 + struct.pack("!BBH", 0x21, 0x31, 4) + bytes(4),
    ],
)
def test_a_client_behind_a_proxy_is_served_with_its_token(
    server: ServerProcess, header: bytes
) -> None:
    with opened(server, header) as client:
        assert log_in(client)["user"] == "ada"


def test_a_header_that_comes_byte_by_byte_is_read(server: ServerProcess) -> None:
    for header in (v1("192.0.2.8"), v2("192.0.2.8")):
        with RawClient(server.port) as client:
            for byte in header:
                client.sock.sendall(bytes([byte]))
            assert log_in(client)["user"] == "ada"


def test_the_limit_per_address_counts_the_clients_and_not_the_proxy(
    server: ServerProcess,
) -> None:
    address = "192.0.2.30"
    with opened(server, v2(address)) as one, opened(server, v2(address)) as two:
        assert log_in(one)["user"] == log_in(two)["user"] == "ada"
        with opened(server, v2(address)) as third:
            assert "connections from your address" in third.receive().text
        with opened(server, v2("192.0.2.31")) as other:
            assert log_in(other)["user"] == "ada"


@pytest.mark.parametrize(
    "header",
    [
        b"\x02\x00\x01\x00\x00",  # a HELLO without a header
        b"PROXY TCP4 nonsense\r\n",
        b"PROXY " + b"x" * 200,
        V2 + struct.pack("!BBH", 0x21, 0x11, 2) + b"ab",
        V2 + struct.pack("!BBH", 0x41, 0x11, 12) + bytes(12),
        V2 + struct.pack("!BBH", 0x21, 0x11, 65_535),
    ],
)
def test_a_connection_of_a_proxy_without_a_good_header_is_closed(
    server: ServerProcess, header: bytes
) -> None:
    with opened(server, header) as client, pytest.raises((Closed, ConnectionError)):
        client.receive()


def test_a_header_from_elsewhere_is_not_believed(tmp_path: Path) -> None:
    settings: dict[str, object] = {"listen": {"proxies": ["192.0.2.0/24"]}}
    running = ServerProcess(tmp_path / "data", settings=settings).start()
    try:
        with opened(running, v1()) as client:
            client.until_closed()
        with RawClient(running.port) as client:
            assert client.hello()["user"] == "local"
    finally:
        running.terminate()


def test_a_proxy_of_the_servers_own_user_does_not_replace_the_token(tmp_path: Path) -> None:
    settings: dict[str, object] = {"listen": {"proxies": ["127.0.0.1"]}}
    running = ServerProcess(tmp_path / "data", settings=settings).start()
    try:
        with opened(running, v2()) as client:
            assert "no users with tokens" in client.receive().text
        for headers in ({}, {"x-forwarded-for": "192.0.2.7"}):
            refused = request(f"{running.http_url}v1/models", headers=headers)
            assert refused.status == 403
    finally:
        running.terminate()


def test_http_takes_the_client_from_either_header(server: ServerProcess) -> None:
    url, bearer = f"{server.http_url}v1/models", {"authorization": f"Bearer {TOKEN}"}
    assert request(url).status == 401
    assert request(url, headers={**bearer, "x-forwarded-for": "192.0.2.9"}).status == 200
    refused = request(url, headers={"x-forwarded-for": "1.1.1.1, 192.0.2.50, 127.0.0.1"})
    assert refused.status == 401
    assert "192.0.2.50" in server.log
    assert "1.1.1.1" not in server.log
    port = int(server.http_url.rstrip("/").rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
        raw.sendall(v2("192.0.2.51") + b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 401")
    assert "192.0.2.51" in server.log


def test_a_network_in_the_settings_that_is_none_is_a_mistake(tmp_path: Path) -> None:
    settings: dict[str, object] = {"listen": {"proxies": ["balancer"]}}
    with pytest.raises(AssertionError, match=r"10\.0\.0\.0/24"):
        ServerProcess(tmp_path / "data", settings=settings).start()


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
@pytest.mark.parametrize("version", ["send-proxy", "send-proxy-v2"])
def test_haproxy_brings_its_clients(server: ServerProcess, tmp_path: Path, version: str) -> None:
    port = free_port()
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        f"defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\n"
        f"listen nplt\n  bind 127.0.0.1:{port}\n"
        f"  server one 127.0.0.1:{server.port} {version}\n"
    )
    balancer = subprocess.Popen(["haproxy", "-f", str(config), "-db"])
    try:
        client = _connected(port)
        with client:
            assert log_in(client)["user"] == "ada"
    finally:
        balancer.terminate()
        balancer.wait(30)


def _connected(port: int) -> RawClient:
    until = time.monotonic() + 30
    while True:
        try:
            return RawClient(port)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
