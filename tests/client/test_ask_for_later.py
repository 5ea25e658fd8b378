"""`nplt ask --at` and `--in` store a prompt that runs later."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt
from tests.support.raw_client import SESSION_LIST, RawClient
from tests.support.server_process import ServerProcess


@pytest.fixture
def own_server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    return start_server()


def url_of(server: ServerProcess) -> str:
    return f"nplt://127.0.0.1:{server.port}"


@pytest.mark.parametrize("option", [("--at", "2026-03-01T18:30:00Z"), ("--in", "0s")])
def test_a_time_that_has_passed_runs_the_prompt_now_and_says_so(
    own_server: ServerProcess, tmp_path: Path, option: tuple[str, str]
) -> None:
    done = run_nplt("ask", *option, "hello", home=tmp_path, server=url_of(own_server))
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "this time has passed; the prompt runs now" in done.stderr


def test_ask_in_a_while_prints_the_ids_and_the_time_and_leaves(
    own_server: ServerProcess, tmp_path: Path
) -> None:
    done = run_nplt("ask", "--in", "1h", "hello", home=tmp_path, server=url_of(own_server))
    assert done.returncode == 0, done.stderr
    session_id, _ = done.stdout.split()
    assert "the prompt runs at 20" in done.stderr
    with RawClient(own_server.port) as client:
        client.hello()
        (row,) = client.request(SESSION_LIST).json["sessions"]
    assert (row["session_id"], row["later"], row["message_count"]) == (session_id, 1, 0)


def test_ask_in_a_while_with_json_prints_when_the_prompt_is_due(
    own_server: ServerProcess, tmp_path: Path
) -> None:
    done = run_nplt(
        "ask", "--json", "--in", "1h", "hello", home=tmp_path, server=url_of(own_server)
    )
    printed = json.loads(done.stdout)
    assert printed["state"] == "later"
    assert printed["due_at"]


@pytest.mark.parametrize(
    "options", [("--at", "25:00"), ("--in", "soon"), ("--at", "18:30", "--in", "5m")]
)
def test_an_impossible_time_is_a_usage_error(
    own_server: ServerProcess, tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = run_nplt("ask", *options, "hello", home=tmp_path, server=url_of(own_server))
    assert (done.returncode, done.stdout) == (2, "")


def test_prompts_for_later_are_listed_and_cancelled(
    own_server: ServerProcess, tmp_path: Path
) -> None:
    nplt = partial(run_nplt, home=tmp_path, server=url_of(own_server))
    nplt("ask", "-s", "notes", "--create", "--in", "1h", "hello")
    done = nplt("ask", "-s", "notes", "--in", "2h", "goodbye")
    _, turn_id = done.stdout.split()
    assert "due 20" in nplt("sessions").stdout
    printed = json.loads(nplt("later", "notes", "--json").stdout)
    assert [each["turn_id"] for each in printed][1:] == [turn_id]
    assert turn_id in nplt("later", "notes").stdout
    assert "goodbye" in nplt("later", "notes").stdout
    assert nplt("later", "notes", "--cancel", turn_id).returncode == 0
    assert turn_id not in nplt("later", "notes").stdout
    assert nplt("later", "notes", "--cancel", turn_id).returncode != 0
