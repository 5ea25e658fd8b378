"""A damaged conversation is listed as such, with its name and the command that repairs it."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest
from faults.sabotage import cut_before
from tests.client.nplt_process import run_nplt
from tests.support.raw_client import (
    ATTACH,
    CHAT_TEXT,
    ERROR,
    FILE_METADATA,
    HISTORY_REQUEST,
    PROMPT,
    REPAIR,
    SESSION_DELETE,
    SESSION_EVENT,
    SESSION_LIST,
    SESSION_NEW,
    SESSION_UPDATE,
    STATUS,
    RawClient,
)
from tests.support.server_process import ServerProcess, run_nplt_server


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
def test_a_damaged_conversation_is_listed_by_name_after_a_start_with_its_repair_command(
    server: ServerProcess, near: bytes, tmp_path: Path
) -> None:
    session_id = conversation(server)
    server.terminate()
    flip_a_bit(file_of(server, session_id), near)
    server.start()
    listed = row(server, session_id)
    assert listed["damaged"] is True
    assert listed["name"] == "the first words"
    assert (listed["message_count"], listed["repair"]) == (6, f"nplt repair {session_id}")
    command = shlex.split(str(listed["repair"]))
    address = f"nplt://127.0.0.1:{server.port}"
    done = run_nplt(*command[1:], home=tmp_path, server=address)
    assert done.returncode == 0, done.stderr
    assert "can't be read: a tombstone stands in its place" in done.stdout
    assert "before-repair-1" in done.stdout
    repaired = row(server, session_id)
    assert repaired["damaged"] is False
    assert "repair" not in repaired


@pytest.mark.slow
def test_a_file_damaged_while_the_server_runs_is_listed_as_damaged_at_once(
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


def test_attaching_to_a_damaged_conversation_names_repair_and_sound_entries_are_readable(
    server: ServerProcess,
) -> None:
    session_id = conversation(server)
    server.restart()  # so that nobody has it open
    flip_a_bit(file_of(server, session_id), b"the second")
    for _ in range(2):
        with RawClient(server.port) as client:
            client.hello()
            page = client.request(HISTORY_REQUEST, {"session_id": session_id}).json
            contents = [message["content"] for message in page["messages"]]
            first, second, third = "the first words", "the second", "the third"
            assert contents == [first, first, second, third, third]
            refused = client.request(ATTACH, {"session_id": session_id})
            assert refused.type == ERROR
            assert refused.json["code"] == "read_only"
            assert f"nplt repair {session_id}" in refused.json["message"]
        server.restart()  # closing it does not make it sound


def test_a_user_repairs_a_damaged_conversation_while_the_server_runs(server: ServerProcess) -> None:
    session_id = conversation(server)
    server.restart()
    flip_a_bit(file_of(server, session_id), b"the second")
    with RawClient(server.port) as client, RawClient(server.port) as other:
        client.hello()
        other.hello()
        done = client.request(REPAIR, {"session_id": session_id[:10]}).json
        assert (done["session_id"], done["kept"], done["lost"]) == (session_id, 5, [[3, 3]])
        assert (server.data_dir / "history" / done["original"]).exists()
        assert client.request(ATTACH, {"session_id": session_id}).json["head_seq"] == 6
        other.request(ATTACH, {"session_id": session_id})
        client.ask("and on")
        again = client.request(REPAIR).json
        assert (again["says"], again["kept"]) == ([], 8)
        while other.event(SESSION_EVENT).json["event"] != "lagged":
            pass
        attached = other.request(ATTACH, {"session_id": session_id, "after_seq": 8}).json
        assert (attached["head_seq"], "resync" in attached) == (8, False)
    assert row(server, session_id)["damaged"] is False
    looked = run_nplt_server("doctor", str(server.data_dir))
    assert looked.returncode == 0, looked.stdout


def test_another_user_may_not_repair_a_damaged_conversation(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.hello()
        refused = client.request(REPAIR, {"session_id": "nothing"})
        assert (refused.type, refused.json["code"]) == (ERROR, "not_found")


def test_a_plain_client_lists_a_damaged_conversation(server: ServerProcess) -> None:
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
        assert f"to repair it: nplt repair {session_id}" in shown.text


def test_a_restored_older_file_is_served_with_a_warning_and_old_cursors_get_resync(
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
def test_nplt_lists_the_repair_command_and_can_delete_a_damaged_conversation(
    server: ServerProcess, tmp_path: Path
) -> None:
    session_id = conversation(server)
    server.terminate()
    flip_a_bit(file_of(server, session_id), b"the second")
    server.start()
    address = f"nplt://127.0.0.1:{server.port}"
    shown = run_nplt("sessions", home=tmp_path, server=address).stdout
    assert "idle, damaged" in shown
    assert f"To repair 'the first words': nplt repair {session_id}\n" in shown
    read = run_nplt("history", session_id[:10], home=tmp_path, server=address)
    assert "the third" in read.stdout
    (listed,) = json.loads(run_nplt("sessions", "--json", home=tmp_path, server=address).stdout)
    assert listed["damaged"] is True
    assert listed["repair"].endswith(session_id)
    assert run_nplt("delete", session_id[:10], home=tmp_path, server=address).returncode == 0
    assert run_nplt("sessions", home=tmp_path, server=address).stdout == ""
    assert "the first words" in (
        run_nplt("sessions", "--trash", home=tmp_path, server=address).stdout
    )


def test_a_data_directory_that_is_gone_makes_requests_unavailable_and_status_says_so(
    tmp_path: Path,
) -> None:
    server = ServerProcess(tmp_path / "data").start()
    elsewhere = tmp_path / "elsewhere"
    try:
        with RawClient(server.port) as old, RawClient(server.port) as fresh:
            session_id = old.hello()["session_id"]
            old.ask("hello")
            fresh.hello()
            server.data_dir.rename(elsewhere)
            for client, request, payload in (
                (old, PROMPT, {"text": "again"}),
                (old, HISTORY_REQUEST, {}),
                (old, HISTORY_REQUEST, {"seq": 1}),
                (fresh, PROMPT, {"text": "hello"}),
                (fresh, SESSION_NEW, {"name": "notes"}),
                (fresh, FILE_METADATA, {"filename": "a.txt", "size": 0}),
            ):
                refused = client.request(request, payload).json
                assert (refused["code"], refused["retryable"]) == ("unavailable", True)
                assert "data directory is gone" in refused["message"]
                assert "restart the server" in refused["message"]
            storage = old.request(STATUS).json["storage"]
            assert "data directory is gone" in storage["read_only"]
            assert not server.data_dir.exists(), "nothing is kept where nobody would look for it"
            elsewhere.rename(server.data_dir)
            assert old.ask("again") == "again"
            assert old.request(STATUS).json["storage"].get("read_only") is None
            page = old.request(HISTORY_REQUEST, {"session_id": session_id}).json
            contents = [each["content"] for each in page["messages"]]
            assert contents == ["hello", "hello", "again", "again"]
    finally:
        server.kill()
