"""Files on their way in: whole and named by us, or not there at all."""

from __future__ import annotations

import hashlib
import stat
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from tests.storage.file_fakes import WatchedFiles

from nplt_storage import BadEntry, ConversationNotFound, StorageUnavailable
from nplt_storage.attachments import (
    IMPORTS_NAME,
    AttachmentFiles,
    end_copy,
    mark_copy,
    unfinished_copies,
)
from nplt_storage.file_system import Disk, FileOperations


@pytest.fixture
def files(tmp_path: Path) -> AttachmentFiles:
    return AttachmentFiles(tmp_path / "files")


async def test_a_file_is_kept_byte_by_byte_and_private(
    files: AttachmentFiles, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 1000
    async with files.receive("s1", size=len(data)) as upload:
        for start in range(0, len(data), 777):
            await upload.write(data[start : start + 777])
        stored = await upload.finish()
    path = files.path_of("s1", stored.file_id)
    assert path.read_bytes() == data
    assert (stored.size, stored.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert list((tmp_path / "files" / "s1").iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path) -> None:
    calls: list[str] = []
    watched = WatchedFiles(FileOperations(), lambda operation, length: calls.append(operation))
    async with AttachmentFiles(tmp_path, files=watched).receive("s1", size=1) as upload:
        await upload.write(b"x")
        await upload.finish()
    assert calls == ["sync", "rename", "sync_directory"]


async def test_an_empty_file_is_complete_at_once(files: AttachmentFiles) -> None:
    async with files.receive("s1", size=0) as upload:
        assert upload.missing == 0
        stored = await upload.finish()
    assert files.path_of("s1", stored.file_id).read_bytes() == b""


async def test_more_bytes_than_announced_are_refused(
    files: AttachmentFiles, tmp_path: Path
) -> None:
    async with files.receive("s1", size=3) as upload:
        await upload.write(b"ab")
        with pytest.raises(BadEntry, match="more than the 3 bytes"):
            await upload.write(b"cd")
    assert [path.name for path in (tmp_path / "files").rglob("*")] == [IMPORTS_NAME]


async def test_a_file_with_bytes_missing_does_not_finish(files: AttachmentFiles) -> None:
    async with files.receive("s1", size=3) as upload:
        await upload.write(b"ab")
        with pytest.raises(BadEntry, match="2 of 3 bytes"):
            await upload.finish()
        await upload.write(b"c")
        assert (await upload.finish()).size == 3


async def test_leaving_early_leaves_nothing_behind(files: AttachmentFiles, tmp_path: Path) -> None:
    with suppress(ZeroDivisionError):
        async with files.receive("s1", size=3) as upload:
            await upload.write(b"ab" * (1 // 0))
    with anyio.CancelScope() as scope:
        async with files.receive("s1", size=3) as upload:
            await upload.write(b"ab")
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert [path.name for path in (tmp_path / "files").rglob("*")] == [IMPORTS_NAME]


@pytest.mark.parametrize("session_id", ["..", "a/b", "", "/tmp", "a\x00"])
async def test_a_conversation_that_could_be_a_path_is_not_found(
    files: AttachmentFiles, session_id: str
) -> None:
    with pytest.raises(ConversationNotFound):
        async with files.receive(session_id, size=1):
            pass
    with pytest.raises(ConversationNotFound):
        files.path_of(session_id, "0" * 32)


@pytest.mark.parametrize("file_id", ["..", "a/b", "", "0" * 31, "G" * 32, "0" * 32 + "\n"])
async def test_an_id_that_is_not_ours_is_no_file(files: AttachmentFiles, file_id: str) -> None:
    with pytest.raises(BadEntry, match="not the id of a file"):
        files.path_of("s1", file_id)


async def test_a_negative_size_is_refused(files: AttachmentFiles) -> None:
    with pytest.raises(BadEntry, match="negative"):
        async with files.receive("s1", size=-1):
            pass


async def test_an_unwritable_attachment_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("in the way")
    with pytest.raises(StorageUnavailable, match="can't be stored"):
        async with AttachmentFiles(tmp_path / "files").receive("s1", size=1):
            pass


def test_a_copy_that_ends_while_another_begins_leaves_it_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark_copy(tmp_path, "first")
    make_directory = Disk.make_directory

    def make_it_and_end_the_first(disk: Disk, directory: Path) -> None:
        make_directory(disk, directory)
        end_copy(tmp_path, "first", is_there=True)

    monkeypatch.setattr(Disk, "make_directory", make_it_and_end_the_first)
    mark_copy(tmp_path, "second")
    assert unfinished_copies(tmp_path) == ["second"]
