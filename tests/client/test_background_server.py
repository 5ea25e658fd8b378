"""The server that nplt starts by itself: found, shared, stopped."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import anyio
import pytest
from tests.client.nplt_process import (
    NPLT,
    SECONDS_MAX,
    private_environment,
    run_nplt,
    running_server,
)
from tests.client.screen_user import ScreenPerson, at_screen
from tests.client.scripted_peer import Talk, scripted_peer

import nplt_client
from nplt_client.background import last_lines
from nplt_client.errors import CannotConnect
from nplt_client.settings import RunningServer, find_server
from nplt_protocol.version import __version__

pytestmark = pytest.mark.slow


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

    def at_screen(self, *arguments: str) -> AbstractContextManager[ScreenPerson]:
        return at_screen(
            "chat",
            *arguments,
            home=self.home,
            NPLT_LISTEN__PORT=self.environ["NPLT_LISTEN__PORT"],
            NPLT_DATA_DIR=self.environ["NPLT_DATA_DIR"],
        )


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

    described = json.loads((household.state / "server.json").read_text())
    assert stat.S_IMODE((household.state / "server.json").stat().st_mode) == 0o600
    assert described["url"] == f"nplt://127.0.0.1:{household.port}"
    assert described["version"] == __version__
    pid = described["pid"]
    status = household.nplt("server", "status")
    assert str(pid) in status.stdout
    assert f"nplt://127.0.0.1:{household.port}" in status.stdout
    assert f"version  {__version__}" in status.stdout
    assert "listening on" in household.nplt("server", "log").stdout

    stopped = household.nplt("server", "stop")
    assert (stopped.returncode, stopped.stderr) == (0, f"stopped nplt-server (pid {pid})\n")
    assert household.nplt("server", "status").returncode == 5
    assert household.nplt("server", "stop").returncode == 0


@pytest.mark.slow
def test_the_background_server_is_started_and_restarted_by_command(household: Household) -> None:
    def pid() -> int:
        return int(json.loads((household.state / "server.json").read_text())["pid"])

    started = household.nplt("server", "start")
    assert started.returncode == 0
    assert f"it listens at nplt://127.0.0.1:{household.port}" in started.stderr
    first = pid()
    assert f"it runs already at nplt://127.0.0.1:{household.port} (pid {first})" in (
        household.nplt("server", "start").stderr
    )
    assert household.nplt("server", "restart").returncode == 0
    assert pid() != first
    household.nplt("server", "stop")
    assert household.nplt("server", "restart").returncode == 0
    assert household.nplt("status").returncode == 0


@pytest.mark.slow
def test_chat_starts_a_background_server_too(household: Household) -> None:
    done = household.nplt(stdin="good morning\n")
    assert (done.stdout, done.returncode) == ("good morning\n", 0)
    assert "started nplt-server" in done.stderr


@pytest.mark.parametrize(
    "display",
    ["--plain", *(pytest.param(one, marks=pytest.mark.slow) for one in ("--no-alt-screen", ""))],
)
def test_a_chat_restarts_a_killed_background_server_and_goes_on(
    household: Household, display: str
) -> None:
    household.nplt("ask", "hello")
    with household.at_screen(*([display] if display else [])) as person:
        person.sees("you ▸" if display else "Ask something")
        person.types("before\r")
        person.sees("▸ before" if display == "--plain" else "● online · offline/echo · before")
        first = json.loads((household.state / "server.json").read_text())["pid"]
        os.kill(first, signal.SIGKILL)
        person.sees("started nplt-server in the background")
        person.types("after\r")
        answers = {"--plain": "after\nyou ▸", "--no-alt-screen": "\nafter\n● online"}
        person.sees(answers.get(display, "\n  after"))
        assert json.loads((household.state / "server.json").read_text())["pid"] != first


@pytest.mark.slow
def test_a_chat_does_not_restart_a_stopped_background_server_until_asked(
    household: Household,
) -> None:
    household.nplt("ask", "hello")
    with household.at_screen("--no-alt-screen") as person:
        person.sees("you ▸")
        person.types("before\r")
        person.sees("offline/echo · before")
        household.nplt("server", "stop")
        person.sees("attempt 3")
        assert find_server_of(household) is None
        person.types("/reconnect\r")
        person.sees("started nplt-server in the background", "● online")


def find_server_of(household: Household) -> RunningServer | None:
    return find_server({"HOME": str(household.home)})


@pytest.mark.slow
def test_of_several_commands_at_once_exactly_one_starts_the_background_server(
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
    output = [one.communicate(timeout=SECONDS_MAX) for one in asking]
    assert [one.returncode for one in asking] == [0] * 4, output
    assert [answer for answer, _ in output] == [f"number {number}\n" for number in range(4)]
    assert sum("started nplt-server" in remarks for _, remarks in output) == 1


def test_a_background_server_that_dies_at_once_is_reported_with_its_last_log_lines(
    household: Household,
) -> None:
    household.environ["NPLT_DATA_DIR"] = "/dev/null/not-a-folder"
    done = household.nplt("ask", "hello")
    assert (done.returncode, done.stdout) == (5, "")
    assert "nplt-server ended with code" in done.stderr
    assert str(household.state / "server.log") in done.stderr


def test_the_server_of_another_home_on_the_default_port_is_left_alone(
    household: Household, tmp_path: Path
) -> None:
    """Same user, same port in the settings: two profiles, containers or checkouts."""
    other = Household(tmp_path / "other")
    other.home.mkdir()
    other.port, other.environ["NPLT_LISTEN__PORT"] = household.port, str(household.port)
    household.nplt("ask", "mine")
    try:
        looked = other.nplt("status")
        assert (looked.returncode, looked.stdout) == (5, "")
        asked = other.nplt("ask", "hers")
        assert (asked.stdout, asked.returncode) == ("hers\n", 0)
        assert f"port {household.port} is taken by another program or another" in asked.stderr
        assert f"127.0.0.1:{household.port}\n" not in other.nplt("server", "status").stdout
        for house, own, foreign in ((household, "mine", "hers"), (other, "hers", "mine")):
            listed = house.nplt("sessions").stdout
            assert own in listed
            assert foreign not in listed
    finally:
        other.nplt("server", "stop")


@pytest.mark.slow
async def test_connect_without_an_address_finds_the_server_and_follows_it_to_another_port(
    household: Household, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NPLT_SERVER", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(household.home))
    with pytest.raises(CannotConnect, match="nplt server start"):
        async with nplt_client.connect():
            pass
    await anyio.to_thread.run_sync(household.nplt, "server", "start")
    async with nplt_client.connect() as client:
        await client.ask_text("before")
        first = client.session_id
        await anyio.to_thread.run_sync(household.nplt, "server", "stop")
        with socket.create_server(("127.0.0.1", household.port)):
            await anyio.to_thread.run_sync(household.nplt, "server", "start")
            assert await client.ask_text("after") == "after"
        assert client.session_id == first
        assert [each["content"] for each in (await client.history()).messages][::2] == [
            "before",
            "after",
        ]


def test_a_server_of_another_instance_than_the_runtime_file_names_is_refused(
    household: Household,
) -> None:
    def script(talk: Talk) -> None:
        talk.welcome(instance="another")
        talk.wait_until_gone()

    household.state.mkdir(parents=True)
    with (
        (household.state / "server.json").open("w") as described,
        scripted_peer(script) as peer,
    ):
        fcntl.flock(described, fcntl.LOCK_EX)
        described.write(json.dumps({"pid": 1, "url": peer.url, "instance": "expected"}))
        described.flush()
        asked = household.nplt("ask", "hello")
    assert asked.returncode == 5
    assert "another server than yours" in asked.stderr


@pytest.mark.slow
def test_a_stale_server_json_of_a_killed_server_is_ignored(household: Household) -> None:
    household.nplt("ask", "hello")
    first = json.loads((household.state / "server.json").read_text())["pid"]
    os.kill(first, signal.SIGKILL)
    while Path(f"/proc/{first}").exists():
        time.sleep(0.01)
    assert household.nplt("server", "stop").stderr.startswith("no server")
    again = household.nplt("ask", "again")
    assert (again.stdout, again.returncode) == ("again\n", 0)
    assert "started nplt-server" in again.stderr


@pytest.mark.slow
def test_the_background_server_uses_the_port_of_the_settings(household: Household) -> None:
    del household.environ["NPLT_LISTEN__PORT"]
    settings = household.home / ".config" / "nplt" / "server.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"listen: {{port: {household.port}}}")
    assert household.nplt("ask", "hello").stdout == "hello\n"
    assert f"127.0.0.1:{household.port}" in household.nplt("server", "status").stdout


@pytest.mark.slow
def test_a_server_started_by_hand_is_found(household: Household) -> None:
    with running_server(household.home) as url:
        asked = household.nplt("ask", "hello")
        assert (asked.stdout, asked.stderr) == ("hello\n", "")
        assert url in household.nplt("server", "status").stdout


@pytest.mark.parametrize("greets", [False, True])
def test_another_program_on_the_port_is_not_used_as_a_server(
    household: Household, greets: bool
) -> None:
    """It may be silent, or be the server of another user, who says whose it is."""

    def greet() -> None:
        with suppress(OSError):
            while True:
                connection, _ = stranger.accept()
                with connection:
                    connection.sendall(b"\x01\0\0\0\x0bThis is not yours")

    with socket.create_server(("127.0.0.1", household.port)) as stranger:
        if greets:
            threading.Thread(target=greet, daemon=True).start()
        looked = household.nplt("status")
        assert looked.returncode == 5
        assert "no server of yours is running" in looked.stderr
        asked = household.nplt("ask", "hello")
        assert (asked.stdout, asked.returncode) == ("hello\n", 0)
        assert f"port {household.port} is taken by another program" in asked.stderr
        status = household.nplt("server", "status").stdout
        assert "nplt://127.0.0.1:" in status
        assert f"127.0.0.1:{household.port}\n" not in status
        stranger.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow
@pytest.mark.parametrize("command", [("ask", "hello"), ("chat",)])
def test_a_remark_is_printed_soon_if_the_program_at_the_address_is_silent(
    household: Household, command: tuple[str, ...]
) -> None:
    environ = private_environment(household.home, NPLT_SERVER=f"nplt://127.0.0.1:{household.port}")
    with (
        socket.create_server(("127.0.0.1", household.port)),
        subprocess.Popen(
            [*NPLT, *command],
            env=environ,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as waiting,
    ):
        assert waiting.stderr is not None
        assert "is it an nplt server?" in waiting.stderr.readline()
        waiting.kill()


@pytest.mark.slow
def test_a_command_during_shutdown_waits_and_starts_another_background_server(
    household: Household,
) -> None:
    household.nplt("ask", "hello")
    first = json.loads((household.state / "server.json").read_text())["pid"]
    environ = private_environment(household.home, **household.environ)
    with subprocess.Popen(
        [*NPLT, "ask", "!slow 2 a b"], env=environ, stdout=subprocess.PIPE, text=True
    ) as slow:
        assert slow.stdout is not None
        assert slow.stdout.read(1) == "a"
        os.kill(first, signal.SIGTERM)
        again = household.nplt("ask", "again")
        assert (again.stdout, again.returncode) == ("again\n", 0)
        assert slow.wait(SECONDS_MAX) == 0


def test_another_version_of_the_background_server_is_reported(household: Household) -> None:
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
        (household.state / "server.json").open("w") as described,
        scripted_peer(script, script, is_asked_how_it_is) as peer,
    ):
        fcntl.flock(described, fcntl.LOCK_EX)
        described.write(json.dumps({"pid": 1, "url": peer.url, "version": "0.0.1"}))
        described.flush()
        done = household.nplt("chat", stdin="hello\n")
        asked = household.nplt("ask", "hello")
        status = household.nplt("server", "status")
    assert (done.stdout, asked.stdout) == ("hi\n", "hi\n")
    assert "version  0.0.1" in status.stdout
    for output in (done.stderr, asked.stderr, status.stderr):
        assert "the server in the background is nplt 0.0.1" in output
        assert "nplt server restart" in output


def test_the_last_lines_of_a_log_are_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 3) == []
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert last_lines(log, 3) == ["line 9997", "line 9998", "line 9999"]
    size = log.stat().st_size
    assert last_lines(log, 3, after=size - len("line 9999\n")) == ["line 9999"]
    assert last_lines(log, 3, after=size) == []
    assert len(last_lines(log, 3, after=size + 1)) == 3, "it was rotated meanwhile"
