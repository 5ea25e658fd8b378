"""The commands that the documents show are run, one after the other, as a reader would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.documents.pages import lines
from tests.support.server_process import ServerProcess, clean_environment

from nplt_client import sync

pytestmark = pytest.mark.slow

PAGES = ("README.md", "docs/commands.md", "docs/context.md", "docs/storage.md", "docs/providers.md")
NOT_HERE = ("nplt server", "nplt-server")
"""They are about the reader's own server, or the files of one that does not run."""


def commands(page: str) -> list[str]:
    shown = [line for line in lines(page) if "nplt " in line and not line.startswith(NOT_HERE)]
    return [line for line in shown if line.partition(" ")[0] in ("nplt", "git", "source")]


@pytest.mark.parametrize(
    "page", [PAGES[0], *(pytest.param(page, marks=pytest.mark.slow) for page in PAGES[1:])]
)
def test_every_command_runs(
    page: str, start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    address = f"nplt://127.0.0.1:{start_server().port}"
    with sync.connect(address) as client:
        client.new("my notes")
        client.ask_text("it does not care about trailing newlines")
        session_id = client.session_id
    environment = clean_environment() | {
        "NPLT_SERVER": address,
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    assert commands(page)
    for command in commands(page):
        words = command.replace(" ID", f" {session_id}").replace(" SEQ", " 2")
        done = subprocess.run(
            ["bash", "-c", words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment,
            cwd=tmp_path,
        )
        # An echo of the question holds no code.
        expected = 6 if " -x " in command else 0
        assert done.returncode == expected, (command, done.stdout, done.stderr)


def test_the_servers_maintenance_runs(tmp_path: Path) -> None:
    shown = [line for line in lines("docs/commands.md") if line.startswith("nplt-server ")]
    ending = [line for line in shown if any(w in line for w in ("--check", "token", "doctor"))]
    assert len(ending) == 3
    for command in ending:
        words = command.partition("#")[0].split()
        if "doctor" in words:
            (tmp_path / "data" / "history").mkdir(parents=True)
            words.append(str(tmp_path / "data"))
        done = subprocess.run(
            [sys.executable, "-m", "nplt_server", *words[1:]],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=clean_environment() | {"HOME": str(tmp_path)},
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
