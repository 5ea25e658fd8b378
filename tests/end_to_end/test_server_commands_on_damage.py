"""The operator's commands on directories in which something is odd: lost first lines, links,
pipes, and files of others."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import anyio
import pytest
from tests.end_to_end.test_server_commands import run
from tests.storage.care_samples import all_entries, file_store, put, the_file
from tests.storage.conversations import START, chat
from tests.support.raw_client import HISTORY_REQUEST, SESSION_LIST, RawClient
from tests.support.server_process import ServerProcess, run_nplt_server

from nplt_server.cli import backup, doctor, repair
from nplt_storage.entries import Entry
from nplt_storage.store import Origin


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "data"

    async def furnish() -> None:
        async with file_store(directory) as store:
            await put(store, chat(3), "s1", origin=Origin(user="ada", created_at=START))
            await put(store, chat(1), "s2", origin=Origin(user="bob", created_at=START))

    anyio.run(furnish)
    return directory


def lose_the_first_line(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[data.index(b"\n") + 1 :])


def entries_of(data_dir: Path, user: str) -> list[Entry]:
    async def read() -> list[Entry]:
        async with file_store(data_dir) as store:
            assert (await store.origin("s1")).user == user
            return await all_entries(store)

    return anyio.run(read)


def test_a_repair_takes_the_user_of_a_lost_first_line_from_the_index(data_dir: Path) -> None:
    lose_the_first_line(the_file(data_dir))
    result = run(repair, the_file(data_dir))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "the first line is lost: a new one is written, for user 'ada'\n" in result.stdout
    assert entries_of(data_dir, "ada") == chat(3)
    assert run(doctor, data_dir).exit_code == 0


def test_without_an_index_a_repair_needs_the_user_option(data_dir: Path) -> None:
    lose_the_first_line(the_file(data_dir))
    (data_dir / "catalog.sqlite").unlink()
    damaged = the_file(data_dir).read_bytes()
    result = run(repair, the_file(data_dir))
    assert (result.exit_code, the_file(data_dir).read_bytes()) == (1, damaged)
    assert "give --user NAME" in result.stderr
    result = run(repair, the_file(data_dir), "--user", "ada")
    assert (result.exit_code, result.stderr) == (0, "")
    assert entries_of(data_dir, "ada") == chat(3)


def test_a_repair_refuses_a_symbolic_link(data_dir: Path, tmp_path: Path) -> None:
    path = the_file(data_dir)
    there = path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(there)
    before = there.read_bytes()
    result = run(repair, path)
    assert (result.exit_code, there.read_bytes()) == (1, before)
    assert "symbolic link" in result.stderr


@pytest.mark.parametrize("kind", ["pipe", "directory", "link", "dangling link", "socket"])
def test_a_backup_reports_a_special_file_and_copies_the_rest(
    data_dir: Path, tmp_path: Path, kind: str
) -> None:
    odd = "session_20260102_odd.json"
    path = data_dir / "history" / odd
    server = socket.socket(socket.AF_UNIX)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to("/etc/passwd")
        case "dangling link":
            path.symlink_to("nowhere")
        case _:
            (tmp_path / "short").symlink_to(data_dir / "history")
            server.bind(str(tmp_path / "short" / odd))
    with server:
        result = run(backup, tmp_path / "copy", "--data-dir", data_dir)
    assert result.exit_code == 3
    assert f"left out: history/{odd}: it is a" in result.stderr
    assert result.stdout.startswith("2 conversations, ")
    assert run(doctor, tmp_path / "copy").exit_code == 0
    assert not (tmp_path / "copy" / "history" / odd).exists()


def test_a_device_and_a_malformed_trash_do_not_stop_a_backup(
    data_dir: Path, tmp_path: Path
) -> None:
    (data_dir / "trash" / "20260101T000000_s9").write_bytes(b"no folder")
    os.mkfifo(data_dir / "trash" / "days.json")
    (data_dir / "files" / "s1").write_bytes(b"no folder either")
    names = {"trash/20260101T000000_s9", "trash/days.json"}
    if os.geteuid() == 0:
        os.mknod(data_dir / "history" / "session_20260102_odd.json", 0o20600, os.makedev(1, 5))
        names.add("history/session_20260102_odd.json")
    result = run(backup, tmp_path / "copy", "--data-dir", data_dir)
    assert result.exit_code == 3
    left = [line.split(": ")[2] for line in result.stderr.splitlines()]
    assert set(left) == names
    assert run(doctor, tmp_path / "copy").exit_code == 0


def test_the_help_of_backup_names_exit_code_3() -> None:
    assert "3 a backup left something out" in " ".join(run(backup, "--help").stdout.split())


def test_a_conversation_with_a_lost_first_line_is_readable_over_the_wire(
    server: ServerProcess,
) -> None:
    with RawClient(server.port) as client:
        session_id = str(client.hello()["session_id"])
        client.ask("the first words")
    server.terminate()
    (path,) = (server.data_dir / "history").glob(f"*_{session_id}.json")
    lose_the_first_line(path)
    (server.data_dir / "catalog.sqlite").unlink()
    server.start()
    with RawClient(server.port) as client:
        client.hello()
        rows = {row["session_id"]: row for row in client.request(SESSION_LIST).json["sessions"]}
        assert rows[session_id]["damaged"] is True
        assert rows[session_id]["name"] == "the first words"
        page = client.request(HISTORY_REQUEST, {"session_id": session_id}).json
        assert [message["content"] for message in page["messages"]] == ["the first words"] * 2
    assert run_nplt_server("doctor", str(server.data_dir)).returncode == 1
