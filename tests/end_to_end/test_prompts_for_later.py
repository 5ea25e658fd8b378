"""Prompts for later run once, not before their time, also after restarts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from tests.support.raw_client import (
    ATTACH,
    CANCEL,
    CLEAR_REQUEST,
    ENTRY,
    ERROR,
    HISTORY_REQUEST,
    PROMPT,
    REDACT,
    ROLLBACK,
    SESSION_DELETE,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_UPDATE,
    TURN_FINISHED,
    RawClient,
)
from tests.support.server_process import ServerProcess, run_nplt_server

Start = Callable[..., ServerProcess]
SECONDS_MAX = 60.0


def welcomed(server: ServerProcess) -> RawClient:
    client = RawClient(server.port)
    client.hello()
    return client


def later(client: RawClient, text: str, not_before: object, **fields: object) -> Any:
    receipt = client.request(PROMPT, {"text": text, "not_before": not_before, **fields}).json
    assert receipt["state"] == "later", receipt
    return receipt


def texts(client: RawClient, session_id: str) -> list[str]:
    page = client.request(HISTORY_REQUEST, {"session_id": session_id, "limit": 200}).json
    return [each["content"] for each in page["messages"] if each["role"] == "user"]


def row_of(client: RawClient, session_id: str) -> Any:
    rows = client.request(SESSION_LIST).json["sessions"]
    return next(row for row in rows if row["session_id"] == session_id)


def wait_for_text(client: RawClient, session_id: str, text: str) -> None:
    stop_at = time.monotonic() + SECONDS_MAX
    while text not in texts(client, session_id):
        assert time.monotonic() < stop_at, f"{text!r} was not run"
        time.sleep(0.1)


def test_a_prompt_for_later_runs_when_its_time_has_come_and_not_before(
    server: ServerProcess,
) -> None:
    with welcomed(server) as client:
        receipt = later(client, "wake up", 1.5)
        due_at = datetime.fromisoformat(receipt["due_at"])
        assert client.ask("now") == "now"  # other prompts do not wait for it
        assert row_of(client, receipt["session_id"])["later"] == 1
        assert client.answer_of(receipt["turn_id"]) == "wake up"
        assert datetime.now(UTC) >= due_at
        assert texts(client, receipt["session_id"]) == ["now", "wake up"]
        row = row_of(client, receipt["session_id"])
        assert not {"later", "due_at"} & row.keys()


@pytest.mark.parametrize("end", ["terminate", "kill"])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_prompt_whose_time_passed_while_the_server_was_down_runs_once_at_the_start(
    server: ServerProcess, end: str, has_index: bool
) -> None:
    with welcomed(server) as client:
        session_id = later(client, "wake up", 1.0)["session_id"]
        other = later(client, "much later", 3_600)
        getattr(server, end)()
    time.sleep(1.0)
    if not has_index:
        for path in server.data_dir.glob("catalog.sqlite*"):
            path.unlink()
    server.start()
    with welcomed(server) as client:
        wait_for_text(client, session_id, "wake up")
        assert other["session_id"] == session_id
        row = row_of(client, session_id)
        assert (row["later"], row["due_at"][:19]) == (1, other["due_at"][:19])
    server.restart()
    with welcomed(server) as client:
        assert client.request(ATTACH, {"session_id": session_id}).json["later"] == [
            {
                "turn_id": other["turn_id"],
                "seq": other["seq"],
                "due_at": other["due_at"],
                "preview": "much later",
            }
        ]
        assert texts(client, session_id) == ["wake up"]


def test_a_prompt_that_is_run_late_is_marked_as_late(start_server: Start) -> None:
    server = start_server()
    with welcomed(server) as client:
        receipt = later(client, "wake up", 3_600)
        session_id = receipt["session_id"]
        server.kill()
    (path,) = (server.data_dir / "history").glob("session_*.json")
    before = datetime.fromisoformat(receipt["due_at"])
    passed = (before - timedelta(hours=2)).isoformat(timespec="microseconds")
    _set_due(path, receipt["due_at"], passed)
    server.start()
    with welcomed(server) as client:
        wait_for_text(client, session_id, "wake up")
        client.request(ATTACH, {"session_id": session_id, "after_seq": 0})
        entry = next(
            frame.json["entry"]
            for frame in client.events()
            if frame.type == ENTRY and frame.json["entry"]["kind"] == "model_input"
        )
        assert entry["late"] is True
        assert entry["later_seq"] == receipt["seq"]


def _set_due(path: Any, due_at: str, passed: str) -> None:
    """Writes another time into the file, as if the server had been down for long."""
    lines = path.read_bytes().split(b"\n")
    for place, line in enumerate(lines):
        if b'"later_prompt"' in line:
            body, _, _ = line.replace(due_at.encode(), passed.encode()).rpartition(b',"crc"')
            assert passed.encode() in body
            start = body.index(b"{")
            lines[place] = body + b',"crc":"%08x"}' % crc32(body[start:])
    path.write_bytes(b"\n".join(lines))


def test_a_prompt_for_later_is_cancelled_once_and_never_runs(server: ServerProcess) -> None:
    with welcomed(server) as client:
        receipt = later(client, "wake up", 3_600, message_id="m1")
    server.restart()
    with welcomed(server) as client:  # its conversation is not open, and not the current one
        cancel = {"turn_id": receipt["turn_id"]}
        assert client.request(CANCEL, cancel).json == {"cancelled": True}
        assert client.request(CANCEL, cancel).json == {"cancelled": False}
        assert "later" not in row_of(client, receipt["session_id"])
        again = {"text": "wake up", "not_before": 5, "message_id": "m1"}
        again["session_id"] = receipt["session_id"]
        repeated = client.request(PROMPT, again).json
        assert (repeated["state"], repeated["duplicate"]) == ("interrupted", True)


def test_attached_clients_get_the_end_of_a_cancelled_prompt_for_later(
    server: ServerProcess,
) -> None:
    with welcomed(server) as client:
        receipt = later(client, "wake up", 3_600)
        client.request(CANCEL, {"turn_id": receipt["turn_id"]})
        finished = client.event(TURN_FINISHED).json
        assert (finished["turn_id"], finished["state"]) == (receipt["turn_id"], "interrupted")


def test_entries_keep_an_attached_clients_list_of_prompts_for_later_up_to_date(
    server: ServerProcess,
) -> None:
    with welcomed(server) as client, welcomed(server) as other:
        session_id = client.request(PROMPT, {"text": "first"}).json["session_id"]
        assert "later" not in other.request(ATTACH, {"session_id": session_id}).json
        kept = later(client, "call the\nbank", 3_600)
        dropped = later(client, "never", 3_600)
        soon = later(client, "soon", 0.3)
        client.request(CANCEL, {"turn_id": dropped["turn_id"]})
        waiting: dict[str, str] = {}
        while True:
            entry = other.event(ENTRY).json["entry"]
            match entry["kind"]:
                case "later_prompt":
                    waiting[entry["turn_id"]] = entry["content"]
                case "later_change" if entry["change"] == "cancelled":
                    del waiting[entry["turn_id"]]
                case "model_input":
                    assert entry["later_seq"] == soon["seq"]
                    del waiting[entry["turn_id"]]
                    break
        assert waiting == {kept["turn_id"]: "call the\nbank"}
        attached = other.request(ATTACH, {"session_id": session_id}).json
        assert [each["preview"] for each in attached["later"]] == ["call the bank"]


def test_a_prompt_for_later_that_is_sent_twice_is_stored_once(server: ServerProcess) -> None:
    with welcomed(server) as client:
        first = later(client, "wake up", 3_600, message_id="m1")
        second = later(client, "wake up", 3_600, message_id="m1")
        assert second["duplicate"] is True
        for name in ("turn_id", "seq", "due_at"):
            assert second[name] == first[name]
        assert row_of(client, first["session_id"])["later"] == 1


def test_clear_rollback_and_replacement_leave_a_prompt_for_later_alone(
    server: ServerProcess,
) -> None:
    with welcomed(server) as client:
        client.ask("first")
        session_id = later(client, "wake up", 3_600)["session_id"]
        second = client.request(PROMPT, {"text": "second"}).json
        client.answer_of(second["turn_id"])
        replacing = {"text": "better", "replace_from": second["seq"]}
        client.answer_of(client.request(PROMPT, replacing).json["turn_id"])
        assert client.request(ROLLBACK, {"to_seq": 1}).type == ROLLBACK
        client.request(CLEAR_REQUEST)
        assert row_of(client, session_id)["later"] == 1
        soon = later(client, "soon", 0.2)
        assert client.answer_of(soon["turn_id"]) == "soon"
        assert row_of(client, session_id)["later"] == 1
    server.restart()
    with welcomed(server) as client:
        assert row_of(client, session_id)["later"] == 1


def test_redacting_a_prompt_for_later_cancels_it(server: ServerProcess) -> None:
    with welcomed(server) as client:
        receipt = later(client, "my password is 12345678x", 3_600)
        redact = {"session_id": receipt["session_id"], "seq": receipt["seq"]}
        assert client.request(REDACT, redact).type == REDACT
        assert "later" not in row_of(client, receipt["session_id"])
    files = (server.data_dir / "history").glob("session_*.json")
    assert all("12345678x" not in path.read_text() for path in files)


def test_redacting_a_prompt_that_has_run_erases_what_was_stored_before_its_time(
    server: ServerProcess,
) -> None:
    with welcomed(server) as client:
        receipt = later(client, "my password is 12345678x", 0.1)
        client.answer_of(receipt["turn_id"])
        page = client.request(HISTORY_REQUEST, {}).json
        for seq in [each["seq"] for each in page["messages"]]:
            client.request(REDACT, {"session_id": receipt["session_id"], "seq": seq})
    (path,) = (server.data_dir / "history").glob("session_*.json")
    lines = [line for line in path.read_text().splitlines() if '"renamed"' not in line]
    assert not [line for line in lines if "12345678x" in line]


def test_a_copy_holds_its_prompts_for_later_until_they_are_released(
    server: ServerProcess,
) -> None:
    with welcomed(server) as client:
        receipt = later(client, "wake up", 1.0)
        copy = client.request(SESSION_FORK, {"session_id": receipt["session_id"]}).json
        assert client.answer_of(receipt["turn_id"]) == "wake up"
        row = row_of(client, copy["session_id"])
        assert (row["later"], row.get("due_at")) == (1, None)
        attached = client.request(ATTACH, {"session_id": copy["session_id"]}).json
        assert attached["later"][0]["held"] is True
        client.request(SESSION_UPDATE, {"session_id": copy["session_id"], "release": True})
        assert client.answer_of(receipt["turn_id"]) == "wake up"


def test_a_time_in_the_past_runs_the_prompt_now_and_the_receipt_says_so(
    server: ServerProcess,
) -> None:
    with welcomed(server) as client:
        prompt = {"text": "hello", "not_before": "2020-01-01T00:00:00Z"}
        receipt = client.request(PROMPT, prompt).json
        assert (receipt["past"], receipt["state"]) == (True, "running")
        assert client.answer_of(receipt["turn_id"]) == "hello"


@pytest.mark.parametrize(
    "not_before",
    ["2026-02-30T00:00:00Z", "2026-03-01T09:00:00", "soon", "", 1e15, 400 * 86_400, True],
)
def test_an_impossible_time_is_malformed_and_names_its_field(
    server: ServerProcess, not_before: object
) -> None:
    with welcomed(server) as client:
        refused = client.request(PROMPT, {"text": "hello", "not_before": not_before})
        assert refused.type == ERROR
        assert (refused.json["code"], refused.json["field"]) == ("malformed", "not_before")


@pytest.mark.parametrize("field", ["replace_from", "continue", "system"])
def test_a_prompt_for_later_changes_nothing_else(server: ServerProcess, field: str) -> None:
    values: dict[str, object] = {"replace_from": 1, "continue": True, "system": "be brief"}
    with welcomed(server) as client:
        prompt = {"text": "hello", "not_before": 60, field: values[field]}
        assert client.request(PROMPT, prompt).json["code"] == "malformed"


def test_prompts_for_later_have_a_limit_of_their_own(start_server: Start) -> None:
    server = start_server(limits={"later_prompts_max": 2, "waiting_prompts_max": 1})
    with welcomed(server) as client:
        for number in range(2):
            later(client, f"{number}", 3_600)
        refused = client.request(PROMPT, {"text": "one more", "not_before": 60})
        assert refused.json["code"] == "busy"
        assert "2 prompts for later" in refused.json["message"]
        assert client.ask("now") == "now"


def test_a_deleted_conversation_runs_its_prompt_for_later_only_after_it_is_back(
    server: ServerProcess,
) -> None:
    with welcomed(server) as client:
        session_id = later(client, "wake up", 0.5)["session_id"]
        client.request(SESSION_DELETE, {"session_id": session_id})
        soon = later(client, "soon", 1.0)
        assert client.answer_of(soon["turn_id"]) == "soon"
        client.request(SESSION_UPDATE, {"session_id": session_id, "deleted": False})
        wait_for_text(client, session_id, "wake up")


def test_a_restored_backup_holds_its_prompts_for_later(start_server: Start, tmp_path: Path) -> None:
    server = start_server()
    with welcomed(server) as client:
        receipt = later(client, "wake up", 2.0)
        session_id = receipt["session_id"]
        copy = tmp_path / "copy"
        done = run_nplt_server("backup", copy, "--data-dir", server.data_dir)
        assert done.returncode == 0, done.stderr
        assert client.answer_of(receipt["turn_id"]) == "wake up"
    server.terminate()
    shutil.rmtree(server.data_dir)
    copy.rename(server.data_dir)
    server.start()
    with welcomed(server) as client:
        fresh = client.request(PROMPT, {"text": "soon", "not_before": 0.5})
        while fresh.type == ERROR and fresh.json["code"] == "unavailable":
            time.sleep(0.1)
            fresh = client.request(PROMPT, {"text": "soon", "not_before": 0.5})
        assert client.answer_of(fresh.json["turn_id"]) == "soon"
        row = row_of(client, session_id)
        assert (row["later"], row.get("due_at")) == (1, None)
        client.request(SESSION_UPDATE, {"session_id": session_id, "release": True})
        wait_for_text(client, session_id, "wake up")
