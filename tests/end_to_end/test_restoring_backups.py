"""The commands of docs/operations.md that back up and restore, run as they are written there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
PROGRAMS = Path(sys.executable).parent
Shell = Callable[[str], str]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Runs commands in a home of their own, with a disk of their own."""
    (tmp_path / "disk").mkdir()
    environ = {
        "HOME": str(tmp_path / "home"),
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
        "NPLT_DISCOVER": "false",
        "NPLT_DEFAULT_MODEL": "offline/echo",
        "LANG": "C.UTF-8",
    }
    (tmp_path / "home").mkdir()

    def run(commands: str) -> str:
        commands = re.sub(r"#.*", "", commands).replace("/mnt/disk", str(tmp_path / "disk"))
        done = subprocess.run(
            ["sh", "-ec", commands], env=environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    yield run
    run("nplt server stop")


def blocks_of(title: str) -> list[str]:
    """The commands of a section, block by block."""
    section = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    found = re.findall(r"(?:^    .*\n)+", section, re.M)
    return [re.sub("^    ", "", block, flags=re.M) for block in found]


def texts(shell: Shell, name: str) -> list[str]:
    page = json.loads(shell(f"nplt history '{name}' --json"))
    return [message["content"] for message in page["messages"] if message["role"] == "user"]


def test_a_backup_is_made_and_restored_by_the_commands_of_the_page(
    shell: Shell, tmp_path: Path
) -> None:
    back_up, restore, restore_one = blocks_of("Back up and restore")
    shell("nplt ask -q -s notes --create 'before the backup'")
    shell(back_up)
    shell("nplt ask -q -s notes 'after the backup'")
    assert texts(shell, "notes") == ["before the backup", "after the backup"]

    (copy,) = (tmp_path / "disk").iterdir()
    shell(restore.replace("nplt-2026-11-18", copy.name))
    assert texts(shell, "notes") == ["before the backup"]

    (file,) = (copy / "history").glob("session_*.json")
    command = re.sub(r"\S*/session_\S*", str(file), restore_one.splitlines()[-1])
    shell("nplt delete notes")
    shell(command)
    assert texts(shell, "notes") == ["before the backup"]
