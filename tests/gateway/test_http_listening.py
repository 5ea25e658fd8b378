"""Where the server listens for HTTP, and how it says so."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Connect
from tests.gateway.server_in_process import running
from tests.support.raw_client import STATUS
from tests.support.server_process import ServerProcess, run_nplt_server

from nplt_gateway.door import HttpDoor
from nplt_server.connections.proxies import accept_directly

Start = Callable[..., ServerProcess]


def test_http_is_announced_after_the_other_port_and_in_the_status(
    shared_server: ServerProcess, connect: Connect
) -> None:
    client = connect(shared_server)
    client.hello()
    assert client.request(STATUS).json["http"] == shared_server.http_url
    assert shared_server.http_url.startswith("http://127.0.0.1:")


def test_http_false_opens_no_port(start_server: Start) -> None:
    server = start_server(listen={"http": False})
    assert server.http_url == ""
    assert _listening_ports(server.pid) == {server.port}


def test_an_http_port_that_was_asked_for_and_is_taken_ends_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_nplt_server("--port", 0, "--http-port", port, "--data-dir", tmp_path / "data")
    assert ended.returncode == 1
    assert f"can't listen on 127.0.0.1:{port}" in ended.stderr
    assert "--http-port" in ended.stderr


def test_the_libraries_for_http_are_not_imported_before_the_first_connection() -> None:
    code = (
        "import sys, nplt_server.start, nplt_server.app, nplt_gateway.door; "
        "print([name for name in ('starlette', 'uvicorn', 'h11', 'websockets') "
        "if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


async def test_an_accepted_connection_has_tcp_nodelay(tmp_path: Path) -> None:
    """The body of a response does not wait until the client has acknowledged the head."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with running(tmp_path) as server:
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            accepted = accept_directly(listening.accept()[0])
            HttpDoor([], None).admit(server, accepted)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            status = await reader.readline()
            no_delay = accepted.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()
            await writer.wait_closed()
    assert status.startswith(b"HTTP/1.1 200")
    assert no_delay


def _listening_ports(pid: int) -> set[int]:
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        target = str(entry.readlink())
        if target.startswith("socket:["):
            sockets.add(target[8:-1])
    listening = "0A"
    fields = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        int(each[1].split(":")[1], 16)
        for each in fields
        if each[3] == listening and each[9] in sockets
    }
