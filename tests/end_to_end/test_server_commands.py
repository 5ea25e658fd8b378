"""What an operator types to look after the files themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import click
import pytest
from click.testing import CliRunner, Result
from tests.storage.care_samples import (
    FILE_ID,
    LONG_RESULT,
    all_entries,
    attachment,
    file_store,
    put,
    put_attachment,
    the_file,
    with_long_result,
)
from tests.storage.conversations import START, answer, chat, ticking_clock
from tests.support.raw_client import RawClient
from tests.support.redis_server import RedisServer
from tests.support.server_process import ServerProcess

from nplt_server.cli import backup, doctor, export, import_files, migrate, repair
from nplt_storage.attachments import mark_copy
from nplt_storage.entries import Entry
from nplt_storage.redis.store import RedisStore
from nplt_storage.store import Origin

OLD = {"session_id": "old", "messages": [{"role": "user", "content": "hello"}]}


def run(command: click.Command, *arguments: object, **options: Any) -> Result:
    result = CliRunner().invoke(command, [str(each) for each in arguments], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Conversations of two users, one with all that can stand beside a file."""
    directory = tmp_path / "data"

    async def furnish() -> None:
        async with file_store(directory) as store:
            await put(store, chat(3))
            more: list[Entry] = [attachment(b"bytes"), answer("t1", call=1)]
            ada = Origin(user="ada", created_at=START)
            await put(store, with_long_result(*more), "s2", origin=ada, blobs=[LONG_RESULT])

    anyio.run(furnish)
    put_attachment(directory, "s2", b"bytes")
    return directory


def damage(data_dir: Path) -> Path:
    path = the_file(data_dir)
    path.write_bytes(path.read_bytes().replace(b"word 1", b"word 7"))
    return path


# doctor


def test_doctor_reports_a_sound_directory_as_sound(data_dir: Path) -> None:
    result = run(doctor, data_dir)
    assert result.exit_code == 0
    assert result.output.startswith("2 conversations, ")
    assert result.output.endswith(": nothing wrong, 0 notes\n")


def test_doctor_reports_each_damage_in_one_line(data_dir: Path) -> None:
    path = damage(data_dir)
    path.with_name(f"{path.name}.broken-1").write_bytes(b"x")
    result = run(doctor, data_dir)
    assert result.exit_code == 1
    wrong, noted, summary = result.output.splitlines()
    assert wrong.startswith(f"wrong history/{path.name}, byte ")
    assert wrong.endswith("entry 3 is lost")
    assert noted.startswith(f"note  history/{path.name}.broken-1: ")
    assert summary.endswith("1 wrong, 1 note")


def test_doctor_reports_as_json(data_dir: Path) -> None:
    path = damage(data_dir)
    result = run(doctor, "--json", data_dir)
    report = json.loads(result.output)
    assert (result.exit_code, report["conversations"], report["wrong"]) == (1, 2, 1)
    (finding,) = report["findings"]
    assert (finding["file"], finding["level"]) == (f"history/{path.name}", "wrong")
    assert (finding["code"], finding["seqs"]) == ("damaged", [3, 3])


def test_doctor_escapes_control_characters_in_file_names(data_dir: Path) -> None:
    (data_dir / "history" / "\x1b[2Jbell\x07").write_bytes(b"")
    assert "\x1b" not in run(doctor, data_dir).output


def test_doctor_examines_the_data_directory_of_the_settings(data_dir: Path, tmp_path: Path) -> None:
    result = run(doctor, env={"NPLT_DATA_DIR": str(data_dir)})
    assert result.output.startswith("2 conversations")
    result = run(doctor, env={"NPLT_DATA_DIR": str(tmp_path / "none")})
    assert (result.exit_code, result.output) == (0, f"{tmp_path}/none: nothing there yet\n")


@pytest.mark.parametrize("what", ["nothing", "file", "directory"])
def test_doctor_refuses_a_directory_that_is_no_data_directory(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "directory").mkdir()
    assert run(doctor, tmp_path / what).exit_code == 2


# repair


def test_repair_with_dry_run_changes_nothing_and_then_repairs(data_dir: Path) -> None:
    path = damage(data_dir)
    original = path.read_bytes()
    preview = run(repair, "--dry-run", path)
    assert (preview.exit_code, path.read_bytes()) == (0, original)
    result = run(repair, path)
    assert result.exit_code == 0
    assert result.output.splitlines()[:-1] == preview.output.splitlines()[:-1]
    assert result.output.endswith(f"the original is kept as {path.name}.before-repair-1\n")
    assert path.with_name(f"{path.name}.before-repair-1").read_bytes() == original
    after = run(doctor, data_dir)
    assert (after.exit_code, "nothing wrong" in after.output) == (0, True)


def test_a_repaired_conversation_is_served_again(data_dir: Path) -> None:
    async def is_there() -> list[Entry]:
        async with file_store(data_dir) as store:
            opened = await store.open("s1")
            await opened.record.close()
            return await all_entries(store)

    run(repair, damage(data_dir))
    entries = anyio.run(is_there)
    assert [entry for entry in entries if entry in chat(3)] == [*chat(3)[:2], *chat(3)[3:]]
    assert run(doctor, data_dir).exit_code == 0


def test_repair_of_a_sound_file_changes_nothing(data_dir: Path) -> None:
    result = run(repair, the_file(data_dir))
    assert (result.exit_code, result.output) == (0, "nothing to repair\n")
    assert not list((data_dir / "history").glob("*before-repair*"))


def test_repair_leaves_a_file_it_can_not_repair_unchanged(data_dir: Path, tmp_path: Path) -> None:
    path = the_file(data_dir)
    path.write_bytes(b"noise")
    result = run(repair, path)
    assert (result.exit_code, path.read_bytes()) == (1, b"noise")
    assert "can't be told" in result.stderr
    stranger = tmp_path / "letters.txt"
    stranger.write_text("hello")
    assert run(repair, stranger).exit_code == 1
    assert run(repair, tmp_path / "nothing").exit_code == 2


# backup


def test_a_backup_made_while_the_server_runs_can_be_served(
    server: ServerProcess, tmp_path: Path
) -> None:
    with RawClient(server.port) as client:
        session_id = client.hello()["session_id"]
        client.ask("hello")
    target = tmp_path / "copies" / "monday"
    result = run(backup, target, "--data-dir", server.data_dir)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("1 conversation, 0.0 MiB: ")
    assert run(backup, target, "--data-dir", server.data_dir).exit_code == 1
    looked = run(doctor, target)
    assert (looked.exit_code, "nothing wrong" in looked.output) == (0, True)
    shown = run(export, session_id, "--data-dir", target)
    assert len(json.loads(shown.stdout)["messages"]) == 2


def test_attachments_of_a_killed_fork_are_removed_at_the_next_start(
    server: ServerProcess,
) -> None:
    with RawClient(server.port) as client:
        session_id = client.hello()["session_id"]
        client.ask("hello")
    server.kill()
    files = server.data_dir / "files"
    for each in ("killed", session_id):
        mark_copy(files, each)
        put_attachment(server.data_dir, each, b"bytes")
    server.start()
    with RawClient(server.port) as client:
        client.hello()
    assert sorted(folder.name for folder in files.iterdir()) == [".copies", session_id]


# import and export


def test_import_takes_sound_files_and_reports_the_others(data_dir: Path, tmp_path: Path) -> None:
    old, bad = tmp_path / "old.json", tmp_path / "bad.json"
    old.write_text(json.dumps(OLD))
    bad.write_text("{}")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(OLD | {"session_id": "s1"}))
    result = run(import_files, bad, old, other, "--data-dir", data_dir)
    assert result.exit_code == 1
    assert result.stderr == f"{bad}: it holds no list of messages\n"
    first, second = result.stdout.splitlines()
    assert first == f"{old}: imported as old, 2 entries"
    assert second.endswith("(there is a conversation s1 already)")
    assert run(doctor, data_dir).output.startswith("4 conversations")


def test_import_can_assign_the_files_to_a_user(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text(json.dumps(OLD))
    result = run(import_files, old, "--user", "eve", "--data-dir", tmp_path / "data")
    assert result.exit_code == 0
    assert json.loads(the_file(tmp_path / "data", "old").read_bytes())["user"] == "eve"


def test_import_restores_everything_that_export_wrote(data_dir: Path, tmp_path: Path) -> None:
    document = tmp_path / "document.json"
    assert run(export, "s2", "-o", document, "--data-dir", data_dir).exit_code == 0
    shown = run(export, "s2", "--data-dir", data_dir)
    assert shown.stdout_bytes == document.read_bytes()
    other = tmp_path / "other"
    assert run(import_files, document, "--data-dir", other).exit_code == 0
    assert the_file(other, "s2").read_bytes() == the_file(data_dir, "s2").read_bytes()
    assert (other / "files" / "s2" / FILE_ID).read_bytes() == b"bytes"
    assert run(doctor, other).exit_code == 0


def test_an_export_of_an_unknown_conversation_leaves_no_file(
    data_dir: Path, tmp_path: Path
) -> None:
    document = tmp_path / "document.json"
    result = run(export, "nobody", "-o", document, "--data-dir", data_dir)
    assert (result.exit_code, result.stderr) == (
        1,
        "nplt-server: there is no conversation 'nobody'\n",
    )
    assert not list(tmp_path.glob("*document*"))


def test_an_export_reports_missing_attachments(data_dir: Path) -> None:
    (data_dir / "files" / "s2" / FILE_ID).unlink()
    result = run(export, "s2", "--data-dir", data_dir)
    assert result.exit_code == 1
    assert FILE_ID in result.stderr
    json.loads(result.stdout)


# migrate


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


def test_migrate_to_redis_and_back_keeps_all_users_conversations_unchanged(
    data_dir: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    redis = f"{redis_server.url}?key_prefix=[odd]*prefix:"
    there = run(migrate, data_dir, redis)
    assert (there.exit_code, there.output) == (0, "2 copied, 0 there already, 0 left\n")
    back = run(migrate, redis, tmp_path / "back")
    assert (back.exit_code, back.output) == (0, "2 copied, 0 there already, 0 left\n")
    for session_id in ("s1", "s2"):
        moved, original = the_file(tmp_path / "back", session_id), the_file(data_dir, session_id)
        assert moved.read_bytes() == original.read_bytes()
    again = run(migrate, data_dir, redis)
    assert (again.exit_code, again.output) == (0, "0 copied, 2 there already, 0 left\n")


def test_migrate_moves_a_trimmed_conversation_to_files(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    async def furnish() -> list[Entry]:
        store = await RedisStore.open_url(
            redis_server.url, clock=ticking_clock(), key_prefix="trim:", max_turns=2
        )
        record = await store.create("s1", user="ada")
        for entry in chat(6):
            await record.append(entry)
        await record.close()
        left = await all_entries(store)
        await store.close()
        return left

    left = anyio.run(furnish)
    assert left[0].seq > 1
    result = run(migrate, f"{redis_server.url}?key_prefix=trim:", tmp_path / "data")
    assert (result.exit_code, result.output) == (0, "1 copied, 0 there already, 0 left\n")
    document = json.loads(the_file(tmp_path / "data").read_bytes())
    assert [line["seq"] for line in document["messages"]] == list(range(1, left[-1].seq + 1))
    assert run(doctor, tmp_path / "data").exit_code == 0


def test_migrate_copies_attachments_and_blobs_between_directories(
    data_dir: Path, tmp_path: Path
) -> None:
    assert run(migrate, data_dir, tmp_path / "new").exit_code == 0
    assert run(doctor, tmp_path / "new").output.endswith("nothing wrong, 0 notes\n")
    assert (tmp_path / "new" / "files" / "s2" / FILE_ID).read_bytes() == b"bytes"


def test_migrate_takes_attachments_to_redis_and_back(
    data_dir: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    redis = f"{redis_server.url}?key_prefix=attached:"
    assert run(migrate, data_dir, redis).exit_code == 0
    assert "is not in Redis" not in run(doctor, redis).output
    assert run(migrate, redis, tmp_path / "back").exit_code == 0
    assert (tmp_path / "back" / "files" / "s2" / FILE_ID).read_bytes() == b"bytes"


def test_a_backup_of_a_redis_beside_a_server_can_be_restored(
    data_dir: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    redis, restored = (f"{redis_server.url}?key_prefix={name}:" for name in ("backup", "restored"))
    assert run(migrate, data_dir, redis).exit_code == 0
    note = '{"id":"another","host":"h","pid":1}'
    with redis_server.client() as client:
        client.hset("backup:@members", "another", f"{int(time.time() * 1000) + 60_000} {note}")
        client.hset("backup:{s1}:meta", "seen", "2")
    copied = run(backup, "--data-dir", redis, tmp_path / "copy")
    assert (copied.exit_code, copied.output.partition(",")[0]) == (0, "2 conversations")
    assert run(doctor, tmp_path / "copy").output.endswith("nothing wrong, 0 notes\n")
    assert (tmp_path / "copy" / "files" / "s2" / FILE_ID).read_bytes() == b"bytes"
    for session_id in ("s1", "s2"):
        copy, original = the_file(tmp_path / "copy", session_id), the_file(data_dir, session_id)
        assert copy.read_bytes() == original.read_bytes()
    assert run(migrate, tmp_path / "copy", restored).exit_code == 0
    sound = run(doctor, restored)
    assert "2 conversations" in sound.output
    assert "is not in Redis" not in sound.output
    assert run(backup, "--data-dir", redis, tmp_path / "copy").exit_code == 1  # it is there already


def test_migrate_leaves_and_reports_what_it_can_not_copy(data_dir: Path, tmp_path: Path) -> None:
    path = damage(data_dir)
    before = path.read_bytes()
    result = run(migrate, data_dir, tmp_path / "new")
    assert result.exit_code == 1
    assert result.stdout == "1 copied, 0 there already, 1 left\n"
    assert result.stderr.startswith("s1: left: ")
    assert path.read_bytes() == before


def test_import_does_not_overwrite_another_conversation_with_the_same_id(
    data_dir: Path, tmp_path: Path
) -> None:
    async def furnish() -> None:
        async with file_store(tmp_path / "new") as store:
            await put(store, chat(2))

    anyio.run(furnish)
    before = the_file(tmp_path / "new").read_bytes()
    result = run(migrate, data_dir, tmp_path / "new")
    assert (result.exit_code, result.stdout) == (1, "1 copied, 0 there already, 1 left\n")
    assert the_file(tmp_path / "new").read_bytes() == before


def test_migrate_refuses_places_that_do_not_exist_or_are_the_same(
    data_dir: Path, tmp_path: Path
) -> None:
    assert run(migrate, data_dir, data_dir).exit_code == 2
    assert run(migrate, tmp_path / "nothing", tmp_path / "new").exit_code == 1
    assert run(migrate, data_dir, f"unix://{tmp_path}/no.sock").exit_code == 1


# While a server runs


def test_while_the_server_runs_only_reading_commands_are_allowed(
    server: ServerProcess, tmp_path: Path
) -> None:
    with RawClient(server.port) as client:
        client.hello()
        client.ask("hello")
    (path,) = (server.data_dir / "history").glob("session_*.json")
    looked = run(doctor, server.data_dir)
    assert (looked.exit_code, "nothing wrong" in looked.output) == (0, True)
    session_id = path.name.split("_")[2].removesuffix(".json")
    shown = run(export, session_id, "--data-dir", server.data_dir)
    assert len(json.loads(shown.stdout)["messages"]) == 2
    (tmp_path / "new" / "history").mkdir(parents=True)
    for refused in (
        run(repair, path),
        run(import_files, path, "--data-dir", server.data_dir),
        run(migrate, server.data_dir, tmp_path / "new"),
        run(migrate, tmp_path / "new", server.data_dir),
    ):
        assert refused.exit_code == 1
        in_use = f"nplt-server: {server.data_dir} is in use: stop that server first"
        assert refused.stderr in (f"{in_use}\n", f"{in_use}, or: nplt repair {session_id}\n")


def test_doctor_reads_a_redis_and_names_damage_and_what_should_be_set_up_otherwise(
    data_dir: Path, redis_server: RedisServer
) -> None:
    redis = f"{redis_server.url}?key_prefix=doctor:"
    assert run(migrate, data_dir, redis).exit_code == 0
    sound = run(doctor, redis)
    assert sound.exit_code == 0, sound.output
    assert "keeps nothing when it stops" in sound.output
    assert "nothing wrong" in sound.output
    with redis_server.client() as client:
        keys: Any = client.keys("doctor:*:log")
        client.delete(keys[0])
    damaged = run(doctor, redis)
    assert damaged.exit_code == 1
    session_id = keys[0].decode().partition("{")[2].partition("}")[0]
    assert f"wrong {session_id}: entry 1 is missing" in damaged.output


def test_repair_in_redis_keeps_sound_entries_and_puts_the_original_into_the_trash(
    data_dir: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    redis = f"{redis_server.url}?key_prefix=repair:"
    assert run(migrate, data_dir, redis).exit_code == 0
    assert run(repair, "--data-dir", redis, "s2").output == "nothing to repair\n"
    with redis_server.client() as client:
        client.xdel("repair:{s2}:log", "2-0")
    assert run(doctor, redis).exit_code == 1
    planned = run(repair, "--dry-run", "--data-dir", redis, "s2")
    assert planned.output.endswith("nothing was done: this was a dry run\n")
    assert run(doctor, redis).exit_code == 1
    repaired = run(repair, "--data-dir", redis, "s2")
    assert repaired.exit_code == 0
    assert "entry 2 can't be read" in repaired.output
    assert repaired.output.endswith("the original is in the trash\n")
    sound = run(doctor, redis)
    assert (sound.exit_code, "file_elsewhere" in sound.output) == (0, False), sound.output
    with redis_server.client() as client:
        assert client.exists("repair:@trash:{s2}:log")
    assert run(repair, "--data-dir", redis, "s2").output == "nothing to repair\n"
    assert run(migrate, redis, tmp_path / "after").exit_code == 0
    assert (tmp_path / "after" / "files" / "s2" / FILE_ID).read_bytes() == b"bytes"


def test_repair_in_redis_notes_that_the_last_entries_are_lost(
    data_dir: Path, redis_server: RedisServer
) -> None:
    redis = f"{redis_server.url}?key_prefix=end:"
    assert run(migrate, data_dir, redis).exit_code == 0
    with redis_server.client() as client:
        last: Any = client.xrevrange("end:{s1}:log", count=2)
        client.xdel("end:{s1}:log", *(entry_id for entry_id, _ in last))
    assert run(doctor, redis).exit_code == 1
    head_seq = int(last[0][0].partition(b"-")[0])
    repaired = run(repair, "--data-dir", redis, "s1")
    assert f"entries {head_seq - 1} to {head_seq} can't be read" in repaired.output
    assert run(doctor, redis).exit_code == 0


def test_repair_in_redis_of_a_trimmed_conversation_without_its_checkpoint(
    redis_server: RedisServer,
) -> None:
    async def furnish() -> None:
        store = await RedisStore.open_url(
            redis_server.url, clock=ticking_clock(), key_prefix="floor:", max_turns=2
        )
        record = await store.create("s1", user="ada")
        for entry in chat(6):
            await record.append(entry)
        await record.close()
        await store.close()

    anyio.run(furnish)
    redis = f"{redis_server.url}?key_prefix=floor:"
    with redis_server.client() as client:
        client.hdel("floor:{s1}:meta", "checkpoint")
    repaired = run(repair, "--data-dir", redis, "s1")
    assert repaired.exit_code == 0, repaired.output
    assert run(doctor, redis).exit_code == 0


def test_migrate_refuses_a_redis_that_servers_use(
    data_dir: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    redis = f"{redis_server.url}?key_prefix=live:"
    assert run(migrate, data_dir, redis).exit_code == 0
    note = '{"id":"another","address":"10.0.0.1:9999","host":"h","pid":1}'
    with redis_server.client() as client:
        client.hset("live:@members", "another", f"{int(time.time() * 1000) + 60_000} {note}")
        refused = run(migrate, redis, tmp_path / "copy")
        assert refused.exit_code == 1
        assert "servers use this Redis (10.0.0.1:9999): stop them first" in refused.output
        client.delete("live:@members")
    assert run(migrate, redis, tmp_path / "copy").exit_code == 0
