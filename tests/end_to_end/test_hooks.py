"""`hooks`: commands that the server runs when something happens."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Connect
from tests.gateway.test_metrics import samples
from tests.support.raw_client import APPROVAL, PROMPT, TURN_FINISHED, RawClient
from tests.support.redis_server import wait_until
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
ECHO = "offline/echo"


class Noted:
    """A hook that writes what it gets into files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    @property
    def command(self) -> list[str]:
        return ["sh", "-c", f"cat > {self._folder}/tmp.$$ && mv {self._folder}/tmp.$$ $0.$$", str(
            self._folder / "done"
        )]  # fmt: skip

    def got(self, number: int) -> list[dict[str, Any]]:
        wait_until(lambda: len(self._files) >= number, f"{number} hooks have run")
        return [json.loads(file.read_text()) for file in self._files]

    @property
    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("done.*"), key=lambda file: file.stat().st_mtime_ns)


@pytest.fixture
def noted(tmp_path: Path) -> Noted:
    return Noted(tmp_path / "hooks")


def attached(server: ServerProcess, connect: Connect) -> RawClient:
    client = connect(server)
    client.hello()
    return client


def test_a_finished_turn_runs_its_hook_with_json_and_without_its_text(
    start_server: Start, connect: Connect, noted: Noted
) -> None:
    server = start_server(hooks={"turn_finished": [noted.command]})
    client = connect(server)
    session_id = client.hello()["session_id"]
    client.ask("a secret question")
    (details,) = noted.got(1)
    assert details["event"] == "turn_finished"
    assert details["session_id"] == session_id
    assert (details["state"], details["model"], details["user"]) == ("completed", ECHO, "local")
    assert "a secret question" not in json.dumps(details | {"name": ""})


def test_a_failed_turn_runs_both_hooks(start_server: Start, connect: Connect, noted: Noted) -> None:
    server = start_server(hooks={"turn_finished": [noted.command], "failed": [noted.command]})
    attached(server, connect).ask("!fail")
    events = {details["event"]: details for details in noted.got(2)}
    assert set(events) == {"turn_finished", "failed"}
    assert events["failed"]["error"]["code"] == "provider_unavailable"


def test_an_approval_runs_the_hook_named_asking(
    start_server: Start, connect: Connect, noted: Noted
) -> None:
    server = start_server(hooks={"asking": [noted.command]}, tools={"now": "ask"})
    client = attached(server, connect)
    client.request(PROMPT, {"text": "!tool now {}"})
    (details,) = noted.got(1)
    assert details["tool_name"] == "now"
    assert "arguments" not in details
    client.request(APPROVAL, {"approval_id": details["approval_id"], "decision": "deny"})
    client.event(TURN_FINISHED)


def test_messages_have_their_text_only_with_content(
    start_server: Start, connect: Connect, noted: Noted
) -> None:
    server = start_server(hooks={"content": True, "message": [noted.command]})
    attached(server, connect).ask("hello")
    got = [(details["role"], details["text"]) for details in noted.got(2)]
    assert sorted(got) == [("assistant", "hello"), ("user", "hello")]


def test_hanging_flooding_dying_and_missing_hooks_leave_turns_alone(
    start_server: Start, connect: Connect
) -> None:
    commands = [
        ["sleep", "600"],
        [sys.executable, "-c", "import sys\nwhile True: sys.stderr.write('flood' * 10_000)"],
        ["sh", "-c", "kill -9 $$"],
        ["/nonexistent/program"],
        ["sh", "-c", "exec <&-; exit 3"],
    ]
    server = start_server(hooks={"turn_finished": commands, "timeout": 1, "at_once": 2})
    client = attached(server, connect)
    for number in range(5):
        assert client.ask(f"hello {number}") == f"hello {number}"

    def outcomes() -> dict[str, float]:
        found = samples(server.http_url)
        return {
            outcome: found.get(("nplt_hooks_total", ("turn_finished", outcome)), 0)
            for outcome in ("succeeded", "failed", "timed_out", "dropped")
        }

    wait_until(lambda: sum(outcomes().values()) == 25, "every hook has ended")
    assert outcomes() == {"succeeded": 0, "failed": 15, "timed_out": 10, "dropped": 0}
    assert "the hook /nonexistent/program can't be run" in server.log
    assert client.ask("still here") == "still here"


def test_what_a_hook_starts_ends_with_it(
    start_server: Start, connect: Connect, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    command = ["sh", "-c", f"sleep 600 & echo $! > {pid_file}"]
    server = start_server(hooks={"turn_finished": [command], "timeout": 2})
    attached(server, connect).ask("hello")
    wait_until(lambda: pid_file.exists() and pid_file.read_text().strip(), "the hook has run")
    child = Path("/proc") / pid_file.read_text().strip()

    def is_gone() -> bool:
        try:
            return " Z " in (child / "stat").read_text()
        except OSError:
            return True

    wait_until(is_gone, "its child is gone")


def test_a_hook_gets_no_keys(start_server: Start, connect: Connect, tmp_path: Path) -> None:
    seen = tmp_path / "environment"
    command = ["sh", "-c", f"env > {seen}.tmp; mv {seen}.tmp {seen}"]
    server = start_server(hooks={"turn_finished": [command]})
    attached(server, connect).ask("hello")
    wait_until(seen.exists, "the hook has run")
    names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
    assert "PATH" in names
    assert not any(name.startswith(("OPENAI", "ANTHROPIC", "NPLT")) for name in names)
