"""What goes wrong around an operator's command is one sentence, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

import anyio
import click
import pytest
from click.testing import CliRunner, Result
from tests.storage.care_samples import file_store, put, the_file
from tests.storage.conversations import chat, ticking_clock

from nplt_server.cli import doctor, export, import_files, migrate, repair
from nplt_server.histories import open_histories
from nplt_server.settings import Settings
from nplt_storage.maintenance.migrate import DirectoryPlace
from nplt_storage.maintenance.migrate import migrate as migrate_all
from nplt_storage.memory import MemoryStore
from nplt_storage.store import Builder, Origin


def run(command: click.Command, *arguments: object) -> Result:
    result = CliRunner().invoke(command, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def nplt_server(*arguments: object, stdout: int | IO[bytes]) -> tuple[int, str]:
    command = [sys.executable, "-m", "nplt_server", *map(str, arguments)]
    done = subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    return done.returncode, done.stderr


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "data"

    async def furnish() -> None:
        async with file_store(directory) as store:
            for session_id in ("abc1", "abd2"):
                await put(store, chat(3), session_id)

    anyio.run(furnish)
    return directory


# Where output goes


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_behind_stdout_is_reported_as_an_error(data_dir: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        assert nplt_server("doctor", data_dir, stdout=full) == (
            1,
            "nplt-server: stdout: No space left on device\n",
        )
        assert nplt_server("export", "abc1", "--data-dir", data_dir, stdout=full) == (
            1,
            "nplt-server: stdout can't be written: No space left on device\n",
        )


def test_a_closed_pipe_ends_a_command_quietly_with_exit_code_141(data_dir: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        assert nplt_server("export", "abc1", "--data-dir", data_dir, stdout=pipe) == (141, "")


# Places


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("redis://foo:bar/9", "host or port that can't be read"),
        ("redis://localhost:1/0?key_prefx=a", "'key_prefx'"),
    ],
)
def test_migrate_refuses_a_malformed_redis_url(data_dir: Path, target: str, says: str) -> None:
    result = run(migrate, data_dir, target)
    assert (result.exit_code, says in result.stderr) == (1, True)


def test_migrate_refuses_a_file_as_a_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = run(migrate, tmp_path / "file", tmp_path / "new")
    assert result.exit_code == 1
    assert result.stderr == f"nplt-server: {tmp_path}/file is no data directory: it is a file\n"


def test_migrate_refuses_a_target_that_is_or_is_inside_its_source(
    data_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(data_dir)
    for source, target, says in (
        (data_dir, f"{data_dir}/../data/", "the same place"),
        (data_dir, tmp_path / "link", "the same place"),
        ("redis://h/0", "redis://h/0?key_prefix=nplt:", "the same place"),
        (data_dir, data_dir / "history" / "new", "TO is inside FROM"),
        (data_dir, "http://localhost", "no http://"),
    ):
        result = run(migrate, source, target)
        assert (result.exit_code, says in result.stderr) == (2, True)
    assert not (data_dir / "history" / "new").exists()


async def test_migrate_skips_a_conversation_that_another_process_has_just_copied(
    data_dir: Path,
) -> None:
    class Slow(MemoryStore):
        @asynccontextmanager
        async def build(self, session_id: str, origin: Origin) -> AsyncIterator[Builder]:
            async with MemoryStore.build(self, session_id, origin) as quicker:
                await quicker.add(chat(3))
            async with MemoryStore.build(self, session_id, origin) as builder:
                yield builder

    place = DirectoryPlace(data_dir)
    moved = [each.outcome async for each in migrate_all(place, Slow(ticking_clock()))]
    assert moved == ["there", "there"]


# Files


def test_repair_refuses_a_conversation_with_two_files(data_dir: Path) -> None:
    path = the_file(data_dir, "abc1")
    path.write_bytes(path.read_bytes()[:-150])
    twin = path.with_name("session_20200101_abc1.json")
    twin.write_bytes(path.read_bytes())
    result = run(repair, path)
    assert result.exit_code == 1
    assert path.name in result.stderr
    assert twin.name in result.stderr
    assert path.read_bytes() == twin.read_bytes()


def test_a_failed_repair_does_not_report_success(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = the_file(data_dir, "abc1")
    path.write_bytes(path.read_bytes().replace(b"word 1", b"word 7"))

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "broken")

    monkeypatch.setattr(os, "rename", fail)
    result = run(repair, path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "broken" in result.stderr


def test_export_accepts_a_unique_id_prefix(data_dir: Path) -> None:
    assert json.loads(run(export, "abc", "--data-dir", data_dir).stdout)["session_id"] == "abc1"
    result = run(export, "ab", "--data-dir", data_dir)
    assert result.exit_code == 1
    assert result.stderr == "nplt-server: 2 conversations have ids that begin with 'ab'\n"


def test_a_repeated_import_does_nothing(data_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    arguments: tuple[Any, ...] = (the_file(data_dir, "abc1"), "--data-dir", other, "--user", "eve")
    assert "imported as abc1" in run(import_files, *arguments).stdout
    again = run(import_files, *arguments)
    assert (again.exit_code, "there already as abc1" in again.stdout) == (0, True)
    assert run(doctor, other).output.startswith("1 conversation, ")


def test_import_takes_a_sound_file_when_another_is_damaged(data_dir: Path, tmp_path: Path) -> None:
    path, copy = the_file(data_dir, "abc1"), tmp_path / "copy.json"
    copy.write_bytes(path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"word 1", b"word 7"))
    result = run(import_files, copy, "--data-dir", data_dir)
    assert result.stdout.endswith("(there is a conversation abc1 already)\n")


# Settings


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("histories: [{id: m, backend: {type: redis, url: 'redis://h:bar/0'}}]", "url of a redis"),
        ("histories: [{id: m, backend: {type: redis, url: 'redis://h/0?foo=1'}}]", "'foo'"),
        ("histories: 7", "histories: expected a list"),
        ("listen: 7", "listen: expected keys and values"),
    ],
)
def test_check_refuses_settings_that_contradict_each_other_with_exit_code_78(
    tmp_path: Path, text: str, says: str
) -> None:
    from nplt_server.cli import main

    config = tmp_path / "server.yaml"
    config.write_text(text)
    result = run(main, "--config", config, "--check")
    assert (result.exit_code, says in result.stderr) == (78, True)


async def test_a_warning_says_that_histories_override_graph_history(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = {"graph": {"history": {}}, "histories": [{"id": "m", "backend": {"type": "memory"}}]}
    for given, warnings in ((both, 1), ({**both, "graph": {"history": {"enabled": False}}}, 0)):
        caplog.clear()
        settings = Settings.model_validate({**given, "data_dir": str(tmp_path)})
        await (await open_histories(settings, ticking_clock())).close()
        assert caplog.text.count("histories is there, and wins") == warnings
