"""The server that nplt starts by itself: found, shared, stopped."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.nplt_process import NPLT, SECONDS_MAX, private_environment, run_nplt
from tests.client.scripted_peer import Talk, scripted_peer

from nplt_client.background import last_lines
from nplt_protocol.version import __version__


class Household:
    """A person's home and a port of its own, on which nothing listens yet."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with socket.create_server(("127.0.0.1", 0)) as unused:
            self.port = int(unused.getsockname()[1])
        self.environ = {"NPLT_LISTEN__PORT": str(self.port), "NPLT_DATA_DIR": str(home / "data")}
        self.state = home / ".local" / "state" / "nplt"

    def nplt(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return run_nplt(*arguments, home=self.home, stdin=stdin, environ=self.environ)


@pytest.fixture
def household(tmp_path: Path) -> Iterator[Household]:
    house = Household(tmp_path)
    yield house
    house.nplt("server", "stop")


def test_a_server_is_started_found_again_and_stopped(household: Household) -> None:
    first = household.nplt("ask", "hello")
    assert (first.stdout, first.returncode) == ("hello\n", 0)
    assert "started nplt-server in the background (pid " in first.stderr
    assert "nplt server stop" in first.stderr

    second = household.nplt("ask", "again")
    assert (second.stdout, second.stderr) == ("again\n", "")

    pid = int((household.state / "server.pid").read_text().split()[0])
    status = household.nplt("server", "status")
    assert str(pid) in status.stdout
    assert f"nplt://127.0.0.1:{household.port}" in status.stdout
    assert f"version  {__version__}" in status.stdout
    assert "listening on" in household.nplt("server", "log").stdout

    stopped = household.nplt("server", "stop")
    assert (stopped.returncode, stopped.stderr) == (0, f"stopped nplt-server (pid {pid})\n")
    assert household.nplt("server", "status").returncode == 5
    assert household.nplt("server", "stop").returncode == 0


def test_chat_starts_a_server_too(household: Household) -> None:
    done = household.nplt(stdin="good morning\n")
    assert (done.stdout, done.returncode) == ("good morning\n", 0)
    assert "started nplt-server" in done.stderr


def test_of_several_started_at_once_none_fails_and_one_starts_the_server(
    household: Household,
) -> None:
    environ = private_environment(household.home, **household.environ)
    asking = [
        subprocess.Popen(
            [*NPLT, "ask", f"number {number}"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    said = [one.communicate(timeout=SECONDS_MAX) for one in asking]
    assert [one.returncode for one in asking] == [0] * 4, said
    assert [answer for answer, _ in said] == [f"number {number}\n" for number in range(4)]
    assert sum("started nplt-server" in remarks for _, remarks in said) == 1


def test_a_server_that_dies_at_once_is_told_with_its_last_words(household: Household) -> None:
    household.environ["NPLT_DATA_DIR"] = "/dev/null/not-a-folder"
    done = household.nplt("ask", "hello")
    assert (done.returncode, done.stdout) == (5, "")
    assert "nplt-server ended with code" in done.stderr
    assert str(household.state / "server.log") in done.stderr


def test_a_pid_that_belongs_to_someone_else_is_left_alone(household: Household) -> None:
    household.state.mkdir(parents=True)
    (household.state / "server.pid").write_text(f"{os.getpid()}\nnplt://127.0.0.1:1\n")
    done = household.nplt("server", "stop")
    assert done.returncode == 0
    assert "no server" in done.stderr


def test_another_version_in_the_background_is_mentioned(household: Household) -> None:
    """Whoever upgraded nplt still talks to the server from before."""

    def script(talk: Talk) -> None:
        talk.welcome(server="nplt/0.0.1")
        talk.answer("hi")
        talk.wait_until_gone()

    def is_asked_how_it_is(talk: Talk) -> None:
        talk.welcome(server="nplt/0.0.1")
        talk.wait_until_gone()

    household.state.mkdir(parents=True)
    with (
        subprocess.Popen(["sh", "-c", "read wait", "nplt_server"], stdin=subprocess.PIPE) as old,
        scripted_peer(script, script, is_asked_how_it_is) as peer,
    ):
        (household.state / "server.pid").write_text(f"{old.pid}\n{peer.url}\n")
        household.environ["NPLT_LISTEN__PORT"] = str(peer.port)
        done = household.nplt("chat", stdin="hello\n")
        asked = household.nplt("ask", "hello")
        status = household.nplt("server", "status")
        (household.state / "server.pid").unlink()
        old.communicate()
    assert (done.stdout, asked.stdout) == ("hi\n", "hi\n")
    assert "version  0.0.1" in status.stdout
    for said in (done.stderr, asked.stderr, status.stderr):
        assert "the server in the background is nplt 0.0.1" in said
        assert "nplt server stop" in said


def test_the_last_lines_of_a_log_are_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 3) == []
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert last_lines(log, 3) == ["line 9997", "line 9998", "line 9999"]
