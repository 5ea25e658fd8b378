"""The examples, run as a reader would."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.client.nplt_process import SECONDS_MAX, private_environment

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(
    name: str, *arguments: str, server: str, home: Path, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env=private_environment(home, NPLT_SERVER=server),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_the_bot_answers_each_person_in_order(server: str, tmp_path: Path) -> None:
    output = "ada: hello\nbob: good morning\nnot for the bot\nada: !fail\nada: goodbye\n"
    done = run("bot.py", server=server, home=tmp_path, stdin=output)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "@bob good morning" in lines
    to_ada = [line for line in lines if line.startswith("@ada")]
    assert to_ada[0] == "@ada hello"
    assert to_ada[1].startswith("@ada (sorry: ")
    assert to_ada[2] == "@ada goodbye"


def test_a_restarted_batch_sends_no_prompt_twice(server: str, tmp_path: Path) -> None:
    file = tmp_path / f"{tmp_path.name} questions.txt"
    file.write_text("one\n\n!fail\ntwo\n")
    first = run("batch.py", str(file), server=server, home=tmp_path)
    answers = [json.loads(line) for line in first.stdout.splitlines()]
    assert [each.get("answer") for each in answers] == ["one", None, "two"]
    assert first.returncode == 1, "one of them failed"
    with file.open("a") as more:
        more.write("three\n")
    again = run("batch.py", str(file), server=server, home=tmp_path)
    answers = [json.loads(line) for line in again.stdout.splitlines()]
    assert [each.get("asked") for each in answers] == [False, None, False, True]
    assert [each.get("answer") for each in answers] == ["one", None, "two", "three"]


def test_the_batch_example_explains_itself_without_a_file(tmp_path: Path) -> None:
    done = run("batch.py", server="nplt://127.0.0.1:1", home=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "usage: python examples/batch.py FILE, with a question on each line\n"


def test_the_raw_socket_example_gets_long_answers_and_reports_failures(
    server: str, tmp_path: Path
) -> None:
    host, port = server.removeprefix("nplt://").split(":")
    long = "é" * 50_000  # more than a frame holds
    done = run("raw_socket.py", host, port, long, server=server, home=tmp_path)
    assert (done.stdout, done.returncode) == (long + "\n", 0)
    done = run("raw_socket.py", host, port, "!fail", server=server, home=tmp_path)
    assert done.returncode == 6


def test_the_raw_socket_example_imports_no_nplt_package() -> None:
    source = (EXAMPLES / "raw_socket.py").read_text()
    imported = set(re.findall(r"^(?:import|from) (\w+)", source, re.M))
    assert imported <= {"__future__"} | sys.stdlib_module_names
