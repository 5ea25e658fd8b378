"""MCP servers seen from outside: how they are, and what of them can be attached."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.nplt_process import run_nplt
from tests.conftest import Connect
from tests.server.tools.mcp_house import SUPPORT, plain
from tests.support.raw_client import ERROR, FILE_METADATA, STATUS, TOOLS, RawClient
from tests.support.server_process import ServerProcess

from nplt_server.tools.executor import OFFERED_MAX

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, "-I", "-S", str(SUPPORT / "odd_mcp_server.py")]
MISSING = "it could not be started: No such file or directory"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    many = json.dumps([plain(*(f"t{number:03d}" for number in range(125)))])
    settings: dict[str, object] = {
        "mcp_servers": {
            "gone": {"command": ["/nowhere/to/be/found"]},
            "odd": {"command": [*PROGRAM, many], "env": {"SOURCES": "1"}},
            "shut": {"command": [*PROGRAM, "[[]]"], "env": {"SOURCES": "1"}, "policy": "deny"},
        }
    }
    server = ServerProcess(tmp_path_factory.mktemp("mcp") / "data", settings=settings).start()
    client = RawClient(server.port)
    client.hello()
    while not is_settled(client.request(STATUS).json["mcp_servers"]):
        pass
    client.sock.close()
    yield server
    server.terminate()


def is_settled(servers: dict[str, Any]) -> bool:
    others = [servers[name]["state"] for name in ("odd", "shut")]
    return others == ["connected"] * 2 and "error" in servers["gone"]


def test_status_and_tools_report_an_unavailable_mcp_server(connect: Connect) -> None:
    client = connect()
    client.hello()
    gone = client.request(STATUS).json["mcp_servers"]["gone"]
    assert (gone["tools"], gone.get("error", MISSING)) == (0, MISSING)
    listed = client.request(TOOLS).json["mcp_servers"]
    assert listed["gone"]["sources"] == []
    assert [source["kind"] for source in listed["odd"]["sources"]] == [
        *("resource", "resource", "template", "prompt")
    ]


def test_tools_marks_the_mcp_tools_beyond_the_vendors_limit(connect: Connect) -> None:
    client = connect()
    client.hello()
    tools = client.request(TOOLS).json["tools"]
    offered = [tool["offered"] for tool in tools]
    assert len(tools) > OFFERED_MAX
    assert offered == [True] * OFFERED_MAX + [False] * (len(tools) - OFFERED_MAX)


def test_the_mcp_commands_show_servers_resources_and_prompts(
    server: ServerProcess, tmp_path: Path
) -> None:
    url = f"nplt://127.0.0.1:{server.port}"
    listed = run_nplt("tools", server=url, home=tmp_path).stdout
    assert "of them are not offered: models take no more." in listed
    assert "MCP server odd: connected, 125 tools\n  mcp:odd/note://today  resource: What" in listed
    assert "  mcp:odd/greet?whom={whom}  prompt: \n" in listed
    status = run_nplt("status", server=url, home=tmp_path).stdout
    assert "mcp odd" in status
    assert "connected, 125 tools" in status


def test_file_metadata_with_a_source_stores_an_mcp_resource(
    connect: Connect, server: ServerProcess
) -> None:
    client = connect()
    client.hello()
    wanted = {"filename": "x", "size": 0, "source": "mcp:odd/note://monday"}
    stored = client.request(FILE_METADATA, wanted).json
    assert stored["size"] == len("read note://monday")
    [path] = (server.data_dir / "files").rglob(stored["file_id"])
    assert path.read_bytes() == b"read note://monday"


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        ("file:///etc/passwd", "malformed", "a source is mcp:SERVER/RESOURCE; TOOLS lists them"),
        ("mcp:od/note://x", "not_found", "there is no MCP server 'od'; did you mean odd?"),
        ("mcp:gone/note://x", "not_found", "gone is not connected; "),
        ("mcp:shut/note://x", "forbidden", "shut is denied by the server's settings"),
    ],
)
def test_an_mcp_resource_that_can_not_be_fetched_is_refused(
    connect: Connect, source: str, code: str, message: str
) -> None:
    client = connect()
    client.hello()
    reply = client.request(FILE_METADATA, {"filename": "x", "size": 0, "source": source})
    assert reply.type == ERROR
    assert reply.json["code"] == code
    assert reply.json["message"].startswith(message)


def test_ask_attaches_an_mcp_resource(server: ServerProcess, tmp_path: Path) -> None:
    url = f"nplt://127.0.0.1:{server.port}"
    arguments = ("ask", "what is due?", "-a", "mcp:odd/greet?whom=Ada", "--json")
    done = run_nplt(*arguments, server=url, home=tmp_path)
    assert done.returncode == 0, done.stderr
    session_id = json.loads(done.stdout)["session_id"]
    history = run_nplt("history", session_id, "--json", server=url, home=tmp_path)
    prompt = json.loads(history.stdout)["messages"][0]
    assert [file["filename"] for file in prompt["attachments"]] == ["greet.txt"]


def test_the_chat_attaches_an_mcp_resource(server: ServerProcess, tmp_path: Path) -> None:
    url = f"nplt://127.0.0.1:{server.port}"
    lines = "/attach mcp:odd/note://monday\nwhat is due?\n/history\n"
    done = run_nplt("chat", server=url, home=tmp_path, stdin=lines)
    assert done.returncode == 0, done.stderr
    assert "mcp:odd/note://monday (18 bytes) goes with your next message" in done.stderr
    assert "file monday (18 bytes, text/plain)\nwhat is due?" in done.stderr
