"""Importing the client is cheap, and loads nothing of the server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt

import nplt_client

HEAVY = (
    "pydantic", "rich", "textual", "prompt_toolkit", "markdown_it", "nplt_server", "nplt_storage",
    "openai", "anthropic",
)  # fmt: skip


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import nplt_client",
        "from nplt_client import *",
        "import nplt_client.sync",
        "import nplt_client.lines.plain_terminal",
        "import nplt_client.cli.ask, nplt_client.cli.commands",
    ],
)
def test_no_part_of_the_client_loads_the_server_or_anything_heavy(statement: str) -> None:
    assert not modules_after(statement) & set(HEAVY)


def test_the_line_mode_needs_nothing_of_the_full_screen() -> None:
    loaded = modules_after("import nplt_client.lines.composer")
    assert loaded & set(HEAVY) == {"rich", "prompt_toolkit", "markdown_it"}


def test_importing_the_package_loads_no_event_loop_and_no_protocol() -> None:
    loaded = modules_after("import nplt_client")
    assert not loaded & {"asyncio", "anyio", "orjson", "nplt_protocol", "click"}


def test_asking_from_the_shell_loads_no_event_loop_and_nothing_heavy(
    server: str, tmp_path: Path
) -> None:
    code = "import sys; from nplt_client.cli import main; main(); sys.exit(' '.join(sys.modules))"
    command = (sys.executable, "-c", code)
    done = run_nplt("ask", "hi", home=tmp_path, server=server, command=command)
    assert done.stdout == "hi\n"
    loaded = set(done.stderr.split())
    assert {"nplt_client.cli.ask", "nplt_protocol"} <= loaded
    assert not loaded & {*HEAVY, "asyncio", "anyio", "ssl", "tomllib", "platformdirs", "uuid_utils"}


def test_a_chat_in_a_pipe_loads_no_toolkit(server: str, tmp_path: Path) -> None:
    code = "import sys; from nplt_client.cli import main; main(); sys.exit(' '.join(sys.modules))"
    command = (sys.executable, "-c", code)
    done = run_nplt("chat", stdin="hi\n", home=tmp_path, server=server, command=command)
    assert done.stdout == "hi\n"
    assert not set(done.stderr.split()) & set(HEAVY)


def test_every_name_in_all_can_be_imported() -> None:
    for name in nplt_client.__all__:
        assert getattr(nplt_client, name) is not None
    assert set(nplt_client.__all__) <= set(dir(nplt_client))
    with pytest.raises(AttributeError):
        nplt_client.no_such_name  # noqa: B018


def test_every_public_error_is_an_nplt_error() -> None:
    for name in nplt_client.__all__:
        value = getattr(nplt_client, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, nplt_client.NpltError)
