"""`nplt ask` when time runs out, nobody reads, or the server dies: it ends, and says how."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import orjson
from tests.client.nplt_process import NPLT, SECONDS_MAX, private_environment, run_nplt
from tests.support.faulty_network import open_road
from tests.support.raw_client import ATTACH, HISTORY_REQUEST, SESSION_LIST, TEXT_DELTA, RawClient
from tests.support.server_process import ServerProcess


def test_a_timeout_is_reported_as_a_json_object(server: str, tmp_path: Path) -> None:
    asked = ("ask", "--json", "--timeout", "0.5", "!slow 60 one two three")
    done = run_nplt(*asked, home=tmp_path, server=server)
    result = orjson.loads(done.stdout)
    assert done.returncode == 7
    assert result["error"]["code"] == "timed_out"
    assert result["session_id"]


def test_the_conversation_of_a_first_turn_that_failed_is_moved_to_the_trash(
    server: str, tmp_path: Path
) -> None:
    failed = run_nplt("ask", "--json", "!fail", home=tmp_path, server=server)
    session_id = orjson.loads(failed.stdout)["session_id"]
    assert failed.returncode == 6
    assert f"in the trash: nplt undelete {session_id[:8]}" in failed.stderr
    assert (
        session_id in run_nplt("sessions", "--trash", "--json", home=tmp_path, server=server).stdout
    )
    named = ("ask", "-s", f"named {session_id}", "--create", "!fail")
    assert run_nplt(*named, home=tmp_path, server=server).returncode == 6
    rows = run_nplt("sessions", "--query", f"named {session_id}", home=tmp_path, server=server)
    assert f"named {session_id}"[:30] in rows.stdout, "a conversation that was named stays"


def test_a_conversation_stays_if_the_failed_command_timed_out(server: str, tmp_path: Path) -> None:
    asked = ("ask", "--json", "--timeout", "0.5", "!slow 60 one")
    session_id = orjson.loads(run_nplt(*asked, home=tmp_path, server=server).stdout)["session_id"]
    assert session_id in run_nplt("sessions", "--json", home=tmp_path, server=server).stdout


def test_a_schema_file_that_is_missing_is_a_usage_error(tmp_path: Path) -> None:
    done = run_nplt("ask", "--schema", "missing.json", "hi", home=tmp_path)
    assert done.returncode == 2
    assert "can't read missing.json" in done.stderr


def test_a_full_pipe_on_stdout_does_not_outlast_the_timeout(server: str, tmp_path: Path) -> None:
    closed_reader, stdout = os.pipe()
    asking = subprocess.Popen(
        [*NPLT, "ask", "--timeout", "1", "x" * 100_000],
        env=private_environment(tmp_path, NPLT_SERVER=server),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
    )
    os.close(stdout)
    try:
        assert asking.wait(timeout=SECONDS_MAX) == 7
    finally:
        os.close(closed_reader)


def test_ask_resumes_an_answer_after_the_server_was_killed_and_restarted(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    home = start_server()
    words = " ".join(f"word{number}" for number in range(200))
    with open_road(home.port) as road:
        asking = subprocess.Popen(
            [*NPLT, "ask", "--json", f"!slow 60 {words}"],
            env=private_environment(tmp_path, NPLT_SERVER=road.url),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        with RawClient(home.port) as watcher:
            watcher.hello()
            while not (rows := watcher.request(SESSION_LIST).json["sessions"]):
                pass
            watcher.request(ATTACH, {"session_id": rows[0]["session_id"]})
            watcher.event(TEXT_DELTA)
        home.kill()
        road.target = home.start().port
        stdout, _ = asking.communicate(timeout=SECONDS_MAX)
    error_json = orjson.loads(stdout)
    assert (asking.returncode, error_json["state"]) == (130, "interrupted")
    with RawClient(home.port) as reader:
        reader.hello()
        page = reader.request(HISTORY_REQUEST, {"session_id": error_json["session_id"]}).json
    assert [message["content"] for message in page["messages"]][1:] == [error_json["text"]]
    assert error_json["text"].startswith("word0 ")
