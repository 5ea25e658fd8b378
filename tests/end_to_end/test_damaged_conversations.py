"""A damaged conversation is listed as such, with its name and the command that repairs it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults.sabotage import cut_before
from tests.client.nplt_process import run_nplt
from tests.support.raw_client import (
    ATTACH,
    CHAT_TEXT,
    ERROR,
    HISTORY_REQUEST,
    SESSION_DELETE,
    SESSION_LIST,
    SESSION_NEW,
    SESSION_UPDATE,
    STATUS,
    RawClient,
)
from tests.support.server_process import ServerProcess, clean_environment


def conversation(server: ServerProcess) -> str:
    with RawClient(server.port) as client:
        session_id = str(client.hello()["session_id"])
        for text in ("the first words", "the second", "the third"):
            client.ask(text)
        return session_id


def file_of(server: ServerProcess, session_id: str) -> Path:
    (path,) = (server.data_dir / "history").glob(f"*_{session_id}.json")
    return path


def flip_a_bit(path: Path, near: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(near)] ^= 1
    path.write_bytes(data)


def row(server: ServerProcess, session_id: str) -> dict[str, object]:
    with RawClient(server.port) as client:
        client.hello()
        rows = client.request(SESSION_LIST).json["sessions"]
        found: dict[str, object] = next(row for row in rows if row["session_id"] == session_id)
        return found


@pytest.mark.slow
@pytest.mark.parametrize("near", [b"first words", b"the third"])
def test_it_is_listed_after_a_start_under_its_name_and_the_command_repairs_it(
    server: ServerProcess, near: bytes
) -> None:
    session_id = conversation(server)
    server.terminate()
    flip_a_bit(file_of(server, session_id), near)
    server.start()
    listed = row(server, session_id)
    assert listed["damaged"] is True
    assert listed["name"] == "the first words"
    command = shlex.split(str(listed["repair"]))
    assert command == [
        *("nplt-server", "repair", "--data-dir"),
        *(str(server.data_dir), session_id),
    ]
    server.terminate()
    done = subprocess.run(
        [sys.executable, "-m", "nplt_server", *command[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=clean_environment(),
    )
    assert done.returncode == 0, done.stderr
    server.start()
    repaired = row(server, session_id)
    assert repaired["damaged"] is False
    assert "repair" not in repaired


@pytest.mark.slow
def test_it_is_listed_at_once_if_the_file_changes_while_the_server_runs(
    server: ServerProcess,
) -> None:
    session_id = conversation(server)
    server.restart()  # so that nobody has it open
    assert row(server, session_id)["damaged"] is False
    flip_a_bit(file_of(server, session_id), b"the second")
    give_up = time.monotonic() + 30
    while row(server, session_id)["damaged"] is False:  # it is looked at once a second
        assert time.monotonic() < give_up
    server.restart()
    assert row(server, session_id)["damaged"] is True


def test_a_file_that_was_only_touched_is_not_damaged(server: ServerProcess) -> None:
    session_id = conversation(server)
    server.restart()
    file_of(server, session_id).touch()
    for _ in range(2):
        assert row(server, session_id)["damaged"] is False
    with RawClient(server.port) as client:
        client.hello()
        page = client.request(HISTORY_REQUEST, {"session_id": session_id}).json
        assert page["message_count"] == 6


def test_whoever_opens_it_is_told_the_command(server: ServerProcess) -> None:
    session_id = conversation(server)
    flip_a_bit(file_of(server, session_id), b"the second")
    for _ in range(2):
        with RawClient(server.port) as client:
            client.hello()
            refused = client.request(HISTORY_REQUEST, {"session_id": session_id})
            assert refused.type == ERROR
            assert refused.json["code"] == "read_only"
            assert (
                f"nplt-server repair --data-dir {server.data_dir} {session_id}"
                in (refused.json["message"])
            )
        server.restart()  # closing it does not make it sound


def test_a_plain_client_sees_it_too(server: ServerProcess) -> None:
    session_id = conversation(server)
    server.terminate()
    flip_a_bit(file_of(server, session_id), b"the second")
    server.start()
    with RawClient(server.port) as client:
        client.greeting()
        client.send(SESSION_LIST, 1)
        shown = client.receive()
        assert shown.type == CHAT_TEXT
        assert "damaged" in shown.text
        assert f"nplt-server repair --data-dir {server.data_dir} {session_id}" in shown.text


def test_an_older_copy_of_a_file_is_served_with_a_warning_and_old_cursors_get_resync(
    server: ServerProcess,
) -> None:
    session_id = conversation(server)
    server.terminate()
    path = file_of(server, session_id)
    path.write_bytes(cut_before(path.read_bytes(), 5))
    server.start()
    listed = row(server, session_id)
    assert (listed["damaged"], listed["message_count"]) == (False, 4)
    assert listed["warning"] == "entries 5 to 6 are gone: an older copy of its file was put back"
    assert "entries 5 to 6 are gone" in server.log
    with RawClient(server.port) as client:
        client.hello()
        assert client.request(STATUS).json["conversations"]["older_copies"] == 1
        asked = {"session_id": session_id, "after_seq": 6}
        assert client.request(ATTACH, asked).json["resync"] is True
        client.ask("the third, again")  # which gives other entries the numbers 5 and 6
        assert client.request(ATTACH, asked).json["resync"] is True
        assert "resync" not in client.request(ATTACH, {**asked, "after_seq": 4}).json


def test_deleted_conversations_are_listed_page_by_page(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.hello()
        ids = []
        for number in range(5):
            ids.append(client.request(SESSION_NEW, {"name": f"number {number}"}).json["session_id"])
            client.request(SESSION_DELETE, {"session_id": ids[-1]})
        found, cursor = [], None
        while True:
            asked = {"trash": True, "limit": 2, **({"cursor": cursor} if cursor else {})}
            page = client.request(SESSION_LIST, asked).json
            found += [row["session_id"] for row in page["sessions"]]
            assert all(row["deleted_at"] for row in page["sessions"])
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert sorted(found) == sorted(ids)
        assert client.request(SESSION_LIST, {"trash": True, "cursor": "x"}).json["code"] == (
            "malformed"
        )
        (one,) = client.request(SESSION_LIST, {"trash": True, "query": "ber 3"}).json["sessions"]
        assert one["name"] == "number 3"
        back = client.request(SESSION_UPDATE, {"session_id": "number 3", "deleted": False}).json
        assert back["session_id"] == ids[3]


@pytest.mark.slow
def test_nplt_lists_the_command_and_can_delete_it(server: ServerProcess, tmp_path: Path) -> None:
    session_id = conversation(server)
    server.terminate()
    flip_a_bit(file_of(server, session_id), b"the second")
    server.start()
    address = f"nplt://127.0.0.1:{server.port}"
    shown = run_nplt("sessions", home=tmp_path, server=address).stdout
    assert "idle, damaged" in shown
    assert (
        "To repair 'the first words', stop the server, then: "
        f"nplt-server repair --data-dir {server.data_dir} {session_id}\n"
    ) in shown
    (listed,) = json.loads(run_nplt("sessions", "--json", home=tmp_path, server=address).stdout)
    assert listed["damaged"] is True
    assert listed["repair"].endswith(session_id)
    assert run_nplt("delete", session_id[:10], home=tmp_path, server=address).returncode == 0
    assert run_nplt("sessions", home=tmp_path, server=address).stdout == ""
    assert "the first words" in (
        run_nplt("sessions", "--trash", home=tmp_path, server=address).stdout
    )
