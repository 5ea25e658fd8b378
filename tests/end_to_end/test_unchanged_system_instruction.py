"""The system message that is there already costs nothing when it is set again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.client.nplt_process import run_nplt
from tests.support.raw_client import (
    HISTORY_REQUEST,
    SESSION_EVENT,
    SESSION_SWITCH,
    SESSION_UPDATE,
    RawClient,
)
from tests.support.server_process import ServerProcess


def kinds(server: ServerProcess, session_id: str) -> list[str]:
    with RawClient(server.port) as client:
        client.hello()
        request = {"session_id": session_id, "view": "entries"}
        page = client.request(HISTORY_REQUEST, request).json
        return [entry["kind"] for entry in page["messages"]]


def test_the_same_system_instruction_writes_no_entry_and_begins_no_epoch(
    server: ServerProcess, tmp_path: Path
) -> None:
    url = f"nplt://127.0.0.1:{server.port}"

    def ask(*arguments: str) -> str:
        done = run_nplt("ask", "hello", "--json", *arguments, home=tmp_path, server=url)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["session_id"])

    session_id = ask("--system", "Be brief.")
    for _ in range(2):
        ask("-s", session_id, "--system", "Be brief.")
    turn = ["model_input", "model_output"]
    assert kinds(server, session_id) == ["system_instruction", *turn, *turn, *turn]
    ask("-s", session_id, "--system", "Be long.")
    assert kinds(server, session_id).count("system_instruction") == 2


def test_an_unchanged_system_instruction_emits_no_event(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server()
    with RawClient(server.port) as client, RawClient(server.port) as other:
        client.hello()
        client.ask("hello")
        session_id = client.request(SESSION_UPDATE, {"system": "Be brief."}).json["session_id"]
        other.hello()
        other.request(SESSION_SWITCH, {"session_id": session_id})
        for text in ("Be brief.", "Be long."):
            client.request(SESSION_UPDATE, {"system": text})
        while (event := other.event(SESSION_EVENT).json)["event"] != "system":
            pass
        assert event["system"] == "Be long."
