"""What the README shows is run here, as a reader would."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.server_process import ServerProcess, clean_environment

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def run(command: list[str], text: str) -> str:
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env=clean_environment(),
    )
    return done.stdout


def test_the_ten_line_client_gets_its_answer(shared_server: ServerProcess) -> None:
    ten_lines = blocks("python")[0]
    assert len(ten_lines.strip().splitlines()) == 10
    said = run([sys.executable, "-"], ten_lines.replace("9999", str(shared_server.port)))
    assert said == "hello from ten lines"


def test_the_library_example_runs(shared_server: ServerProcess) -> None:
    example = blocks("python")[1]
    said = run([sys.executable, "-"], example.replace("9999", str(shared_server.port)))
    assert said.startswith("hello\n")
    assert "TurnFinished" in said


def test_the_line_of_shell_gets_its_answer(shared_server: ServerProcess) -> None:
    if shutil.which("nc") is None:
        pytest.skip("needs nc")
    line = blocks("sh")[0]
    assert "hello" in run(["sh", "-c", line.replace("9999", str(shared_server.port))], "")


def test_every_place_it_names_is_there() -> None:
    rooms = {"client", "server", "protocol", "storage"}
    for target in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (ROOT / target).exists(), target
    for path in re.findall(r"`([\w./-]+/[\w./-]+)`", README):
        if path.split("/")[0] in rooms | {"tests", "config"}:
            assert (ROOT / path).exists(), path


def test_every_make_target_it_names_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:`|^    )make ([a-z-]+)", README, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_nothing_speaks_of_the_place_it_was_made_in() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("not a checkout")
    here = Path(__file__).relative_to(ROOT)
    for name in tracked:
        path = ROOT / name
        if path.suffix in (".py", ".md", ".yaml", ".toml") and Path(name) != here:
            text = path.read_text()
            for word in ("/work/", "/root/", "../shared", "pypi.org", "DESIGN.md", "WIRE.md"):
                assert word not in text, (name, word)
