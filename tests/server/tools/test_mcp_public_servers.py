"""Seven MCP servers that others wrote, from PyPI and npm, each installed into a folder of its own.

Skipped, with the reason, where one can't be installed.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.server.tools.mcp_house import mcp_house

from nplt_protocol import JsonObject
from nplt_server.tools.mcp import McpServerConfig

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

INSTALL_SECONDS_MAX = 400
Installed = Callable[..., tuple[str, ...]]


@pytest.fixture(scope="module")
def from_pypi(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    def install(name: str, *more: str) -> tuple[str, ...]:
        folder = tmp_path_factory.mktemp(name)
        _run(sys.executable, "-m", "venv", str(folder))
        pip = (str(folder / "bin/python"), "-m", "pip", "install", "-q")
        _run(*pip, f"mcp-server-{name}", *more)
        return (str(folder / "bin" / f"mcp-server-{name}"),)

    return install


@pytest.fixture(scope="module")
def from_npm(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    def install(name: str) -> tuple[str, ...]:
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed")
        folder = tmp_path_factory.mktemp(name)
        package = f"@modelcontextprotocol/server-{name}"
        _run(npm, "install", "--silent", "--prefix", str(folder), package)
        return (str(folder / "node_modules/.bin" / f"mcp-server-{name}"),)

    return install


def _run(*command: str) -> None:
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX
        )
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{' '.join(command[-2:])} failed: {error.stderr.strip()[-300:]}")
    except subprocess.TimeoutExpired:
        pytest.skip(f"{' '.join(command[-2:])} took more than {INSTALL_SECONDS_MAX} s")


def config(name: str, *command: str, **more: str) -> McpServerConfig:
    return McpServerConfig(name=name, command=command, env=more, connect_seconds_max=120)


async def test_time_tells_the_time(from_pypi: Installed) -> None:
    async with mcp_house(config("time", *from_pypi("time"))) as house:
        assert house.names == ["time__convert_time", "time__get_current_time"]
        output = json.loads(await house.call("time__get_current_time", timezone="UTC"))
        assert output["timezone"] == "UTC"


async def test_fetch_gets_a_page(from_pypi: Installed, tmp_path: Path) -> None:
    page = "<html><body><article><h1>Cranes</h1><p>They lift.</p></article></body></html>"
    (tmp_path / "page.html").write_text(page)
    command = from_pypi("fetch")
    with web_folder(tmp_path) as address:
        async with mcp_house(config("fetch", *command, "--allow-private-ips")) as house:
            output = await house.call("fetch__fetch", url=f"{address}/page.html")
            assert "They lift." in output
            assert [source.kind for source in house.server("fetch").sources] == ["prompt"]
            read = await house.servers.read(f"mcp:fetch/fetch?url={address}/page.html")
            assert b"They lift." in read.data


@contextmanager
def web_folder(folder: Path) -> Iterator[str]:
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_address[1]}"
        web.shutdown()


async def test_git_shows_what_has_changed(from_pypi: Installed, tmp_path: Path) -> None:
    _run("git", "init", "-q", str(tmp_path))
    (tmp_path / "new.txt").write_text("new")
    async with mcp_house(config("git", *from_pypi("git"))) as house:
        assert "new.txt" in await house.call("git__git_status", repo_path=str(tmp_path))


async def test_sqlite_writes_and_reads(from_pypi: Installed, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    # Its last version was written for the SDK's first.
    command = (*from_pypi("sqlite", "mcp<2"), "--db-path", str(path))
    async with mcp_house(config("sqlite", *command)) as house:
        await house.call("sqlite__create_table", query="CREATE TABLE bread (name TEXT)")
        await house.call("sqlite__write_query", query="INSERT INTO bread VALUES ('rye')")
        assert "rye" in await house.call("sqlite__read_query", query="SELECT * FROM bread")
        await house.call("sqlite__append_insight", insight="rye sells best")
        assert b"rye sells best" in (await house.servers.read("mcp:sqlite/memo://insights")).data
        shown = await house.servers.read("mcp:sqlite/mcp-demo?topic=bread")
        assert b"bread" in shown.data
    assert sqlite3.connect(path).execute("SELECT name FROM bread").fetchall() == [("rye",)]


async def test_filesystem_gives_a_file_once(from_npm: Installed, tmp_path: Path) -> None:
    text = "".join(f"line {number} of the file\n" for number in range(1_000))
    (tmp_path / "long.txt").write_text(text)
    async with mcp_house(config("files", *from_npm("filesystem"), str(tmp_path))) as house:
        path = str(tmp_path / "long.txt")
        assert await house.call("files__read_text_file", path=path) == text
        assert await house.call("files__list_directory", path=str(tmp_path)) == "[FILE] long.txt"


async def test_filesystem_gives_a_picture_once_and_no_base64(
    from_npm: Installed, tmp_path: Path
) -> None:
    picture = bytes(range(256)) * 100
    (tmp_path / "picture.png").write_bytes(picture)
    async with mcp_house(config("files", *from_npm("filesystem"), str(tmp_path))) as house:
        said = await house.call("files__read_media_file", path=str(tmp_path / "picture.png"))
        assert said == "[image/png, 25,600 bytes]"


async def test_the_mcp_memory_server_keeps_its_entities(
    from_npm: Installed, tmp_path: Path
) -> None:
    path = str(tmp_path / "memory.jsonl")
    ada: JsonObject = {"name": "Ada", "entityType": "person", "observations": ["likes rye"]}
    async with mcp_house(config("memory", *from_npm("memory"), MEMORY_FILE_PATH=path)) as house:
        await house.call("memory__create_entities", entities=[ada])
        graph = await house.call("memory__read_graph")
        assert json.loads(graph)["entities"] == [ada]


async def test_everything_has_tools_resources_prompts_and_progress(from_npm: Installed) -> None:
    started = config("all", *from_npm("everything"))
    limited = McpServerConfig(
        name="all", command=started.command, connect_seconds_max=120, call_seconds_max=10
    )
    async with mcp_house(limited) as house:
        assert await house.call("all__echo", message="hello") == "Echo: hello"
        image = next(name for name in house.names if "image" in name.lower())
        assert "[image/png, " in await house.call(image)
        kinds = {source.kind for source in house.server("all").sources}
        assert kinds == {"resource", "template", "prompt"}
        first = next(one for one in house.server("all").sources if one.kind == "resource")
        assert (await house.servers.read(first.reference)).data
        # Twenty steps of a second: longer than its limit, but never without a sign.
        long = next(name for name in house.names if "long" in name.lower())
        call = asyncio.create_task(house.call(long, duration=20, steps=20))
        assert "ompleted" in await call
