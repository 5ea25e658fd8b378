"""Below the data directory no symbolic link is followed, and nothing is opened that is no regular
file of our user: by the server, backup, doctor, repair, import, migrate and the attachments."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.care_samples import (
    FILE_ID,
    LONG_RESULT,
    all_entries,
    attachment,
    file_store,
    put,
    put_attachment,
    reference_to,
    the_file,
    with_long_result,
)
from tests.storage.conversations import START, answer, chat, file_bytes
from tests.storage.json_stores import rows

from nplt_storage import BadEntry, ConversationDamaged, JsonFileStore, StorageError
from nplt_storage.attachments import AttachmentFiles, link_attachments
from nplt_storage.entries import Entry
from nplt_storage.errors import StorageUnavailable
from nplt_storage.file_system import Disk, NotOurs
from nplt_storage.files.repair import exclusive_use, repair_file
from nplt_storage.ids import new_entry_id
from nplt_storage.maintenance.backup import BackedUp, back_up
from nplt_storage.maintenance.doctor import Report, examine_directory
from nplt_storage.maintenance.importing import import_file
from nplt_storage.maintenance.migrate import DirectoryPlace, migrate
from nplt_storage.maintenance.sources import NotAConversation

OLDER = b'{"session_id":"s1","messages":[{"role":"user","content":"of somebody else"}]}'
STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def examined(data_dir: Path) -> Report:
    return examine_directory(data_dir, progress=lambda done, total: None)


def copied(data_dir: Path, target: Path) -> BackedUp:
    return back_up(data_dir, target, progress=lambda done, total: None)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    return path


@pytest.fixture
async def data_dir(tmp_path: Path) -> Path:
    """`s1` is a chat, `s2` has a blob and an attachment, `s3` is another chat."""
    data_dir = tmp_path / "data"
    async with file_store(data_dir) as store:
        await put(store, chat(2), "s1")
        more: list[Entry] = [attachment(b"bytes"), answer("t1", call=1)]
        await put(store, with_long_result(*more), "s2", blobs=[LONG_RESULT])
        put_attachment(data_dir, "s2", b"bytes")
        await put(store, chat(1), "s3")
    return data_dir


def move_out(path: Path, outside: Path) -> Path:
    """It is elsewhere, and a link to it in its place."""
    there = path.rename(outside / path.name)
    path.symlink_to(there)
    return there


@pytest.mark.parametrize("data", [file_bytes(chat(2)), OLDER], ids=["ours", "older"])
async def test_a_history_file_that_links_elsewhere_is_neither_read_nor_written(
    data_dir: Path, outside: Path, data: bytes
) -> None:
    there = move_out(the_file(data_dir), outside)
    there.write_bytes(data)
    async with file_store(data_dir) as store:
        damaged = {row.session_id: row.damaged for row in await rows(store)}
        assert damaged == {"s1": True, "s2": False, "s3": False}
        with pytest.raises(ConversationDamaged, match="symbolic link"):
            await store.open("s1")
        with pytest.raises(ConversationDamaged, match="symbolic link"):
            await all_entries(store, "s1")
        with pytest.raises(StorageError, match="symbolic link"):
            await store.repair("s1")
        assert await all_entries(store, "s3") == chat(1)
    assert there.read_bytes() == data
    assert [path.name for path in outside.iterdir()] == [there.name]


async def test_a_link_that_comes_while_a_conversation_is_open_gets_no_entry(
    data_dir: Path, outside: Path
) -> None:
    async with file_store(data_dir) as store:
        opened = await store.open("s1")
        there = move_out(the_file(data_dir), outside)
        before = there.read_bytes()
        with pytest.raises(StorageError):
            await opened.record.append(chat(3)[opened.history.head_seq])
        await opened.record.close()
    assert there.read_bytes() == before


@pytest.mark.parametrize("part", ["history", "files", "trash"])
async def test_a_part_of_the_directory_that_is_a_link_is_named_at_the_start(
    data_dir: Path, outside: Path, part: str
) -> None:
    move_out(data_dir / part, outside)
    with pytest.raises(StorageUnavailable, match=f"{part} is a symbolic link"):
        await JsonFileStore.open_directory(data_dir, clock=lambda: START)


async def test_the_data_directory_itself_may_be_a_link(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data_dir)
    async with file_store(tmp_path / "link") as store:
        assert len(await rows(store)) == 3
        assert await all_entries(store, "s3") == chat(1)
    assert examined(tmp_path / "link").wrong == 0
    assert copied(tmp_path / "link", tmp_path / "copy").conversations == 3


async def test_a_lock_that_is_a_link_is_refused(data_dir: Path, outside: Path) -> None:
    (data_dir / "lock").unlink()
    (data_dir / "lock").symlink_to(outside / "made")
    with pytest.raises(StorageUnavailable, match="lock: it is a symbolic link"):
        await JsonFileStore.open_directory(data_dir, clock=lambda: START)
    with (
        pytest.raises(StorageUnavailable, match="lock: it is a symbolic link"),
        exclusive_use(data_dir),
    ):
        pass
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("part", ["", "-wal", "-journal"])
async def test_a_catalogue_that_is_a_link_is_replaced_and_not_written_through(
    data_dir: Path, outside: Path, part: str
) -> None:
    index = data_dir / f"catalog.sqlite{part}"
    index.unlink(missing_ok=True)
    (outside / "theirs").write_bytes(b"theirs")
    index.symlink_to(outside / "theirs")
    async with file_store(data_dir) as store:
        assert len(await rows(store)) == 3
    assert (outside / "theirs").read_bytes() == b"theirs"
    assert not index.is_symlink()


async def test_a_working_catalogue_behind_a_link_is_not_written_to(
    data_dir: Path, outside: Path
) -> None:
    there = move_out(data_dir / "catalog.sqlite", outside)
    before = there.read_bytes()
    async with file_store(data_dir) as store:
        await put(store, chat(1), "s4")
        assert len(await rows(store)) == 4
    assert there.read_bytes() == before
    assert [path.name for path in outside.iterdir()] == [there.name]


async def test_a_live_file_that_is_a_link_is_not_written_through(
    data_dir: Path, outside: Path
) -> None:
    (outside / "theirs").write_bytes(b"theirs")
    path = the_file(data_dir)
    path.with_name(f"{path.name}.live").symlink_to(outside / "theirs")
    async with file_store(data_dir) as store:
        opened = await store.open("s1")
        opened.record.journal_delta("t9", 0, "text", "what is being said")
        await opened.record.close()
    assert (outside / "theirs").read_bytes() == b"theirs"


async def test_blobs_behind_a_link_are_not_read_and_none_is_written_there(
    data_dir: Path, outside: Path
) -> None:
    there = move_out(the_file(data_dir, "s2").with_suffix(".blobs"), outside)
    async with file_store(data_dir) as store:
        with pytest.raises(StorageError):
            await store.blob("s2", reference_to(LONG_RESULT).blob_id, 0, 10)
        opened = await store.open("s2")
        with pytest.raises(StorageError, match="symbolic link"):
            await opened.record.keep_blob(b"another one")
        await opened.record.close()
    assert len(list(there.iterdir())) == 1


async def test_a_folder_of_the_trash_that_is_a_link_is_neither_listed_nor_emptied(
    data_dir: Path, outside: Path
) -> None:
    (outside / "session_20200101_s9.json").write_bytes(file_bytes(chat(1), "s9"))
    (data_dir / "trash" / "20200101T000000_s9").symlink_to(outside)
    async with file_store(data_dir) as store:
        assert await store.trash("local") == []
        with pytest.raises(StorageError):
            await store.undelete("s9")
    assert len(list(outside.iterdir())) == 1


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_attachments_behind_a_link_are_not_there(
    data_dir: Path, outside: Path, what: str
) -> None:
    path = data_dir / "files" / "s2" / FILE_ID
    move_out(path if what == "file" else path.parent, outside)
    files = AttachmentFiles(data_dir / "files")
    assert not await files.has("s2", FILE_ID)
    assert await files.sessions_with(FILE_ID) == []
    with pytest.raises((BadEntry, StorageUnavailable)):
        await files.read("s2", FILE_ID, offset=0, length=5)
    assert await link_attachments(data_dir / "files", "s2", "s4", [attachment(b"bytes")]) == [
        FILE_ID
    ]


async def test_uploads_do_not_arrive_behind_a_link(data_dir: Path, outside: Path) -> None:
    (data_dir / "files" / "s1").symlink_to(outside)
    async with AttachmentFiles(data_dir / "files").receive("s1", size=0) as upload:
        with pytest.raises(StorageUnavailable):
            await upload.finish()
    assert list(outside.iterdir()) == []


async def test_unfinished_uploads_behind_a_link_are_not_swept_away(
    data_dir: Path, outside: Path
) -> None:
    (outside / "x.part").write_bytes(b"theirs")
    (data_dir / "files" / "s9").symlink_to(outside)
    async with file_store(data_dir):
        pass
    assert (outside / "x.part").exists()


async def test_a_back_up_names_links_and_copies_nothing_behind_them(
    data_dir: Path, outside: Path, tmp_path: Path
) -> None:
    (outside / "shadow").write_bytes(b"secret")
    blobs = the_file(data_dir).with_suffix(".blobs")
    blobs.symlink_to(outside)
    (data_dir / "files" / "s3").symlink_to(outside)
    (data_dir / "trash" / "20200101T000000_s9").symlink_to(outside)
    (data_dir / "histories").mkdir()
    (data_dir / "histories" / "other").symlink_to(outside)
    (outside / "history").mkdir()
    done = copied(data_dir, tmp_path / "copy")
    assert done.conversations == 3
    assert {name for name, _ in done.left_out} == {
        f"history/{blobs.name}",
        "files/s3",
        "trash/20200101T000000_s9",
        "histories/other",
    }
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.name == "shadow"]


async def test_the_doctor_names_what_it_refused(data_dir: Path, outside: Path) -> None:
    (outside / "theirs").write_bytes(b"theirs")
    move_out(the_file(data_dir), outside)
    blobs = the_file(data_dir, "s3").with_suffix(".blobs")
    blobs.symlink_to(outside)
    path = the_file(data_dir, "s3")
    path.with_name(f"{path.name}.live").symlink_to(outside / "theirs")
    (data_dir / "files" / "s3").symlink_to(outside)
    (data_dir / "trash" / "20200101T000000_s9").symlink_to(outside)
    refused = {each.file: each.message for each in examined(data_dir).findings if each.is_wrong}
    assert refused == dict.fromkeys(
        [
            f"history/{the_file(data_dir).name}",
            f"history/{blobs.name}",
            f"history/{path.name}.live",
            "files/s3",
            "trash/20200101T000000_s9",
        ],
        "it is a symbolic link, and is not followed",
    )


async def test_the_doctor_names_a_directory_in_the_place_of_a_live_file(data_dir: Path) -> None:
    path = the_file(data_dir)
    path.with_name(f"{path.name}.live").mkdir()
    wrong = [(each.file, each.message) for each in examined(data_dir).findings if each.is_wrong]
    assert wrong == [(f"history/{path.name}.live", "it is a directory")]


@pytest.mark.parametrize("name", ["catalog.sqlite", "catalog.sqlite-wal"])
async def test_the_doctor_does_not_follow_a_linked_catalogue(
    data_dir: Path, outside: Path, name: str
) -> None:
    (data_dir / name).unlink(missing_ok=True)
    (data_dir / name).symlink_to(outside / "theirs")
    assert [each.file for each in examined(data_dir).findings if each.is_wrong] == [name]


def test_a_repair_follows_no_link(data_dir: Path, outside: Path) -> None:
    there = move_out(the_file(data_dir), outside)
    before = there.read_bytes()
    with pytest.raises(NotOurs, match="symbolic link"):
        repair_file(the_file(data_dir), "s1", clock=lambda: START, new_id=new_entry_id)
    assert there.read_bytes() == before


async def test_import_follows_a_link_given_to_it_but_no_link_next_to_it(
    data_dir: Path, outside: Path, tmp_path: Path
) -> None:
    move_out(the_file(data_dir, "s2").with_suffix(".blobs"), outside)
    move_out(data_dir / "files" / "s2", outside)
    (tmp_path / "given.json").symlink_to(the_file(data_dir, "s2"))
    async with file_store(tmp_path / "new") as store:
        files = store.directory.files
        imported = await import_file(store, tmp_path / "given.json", files=files)
        assert imported.entries > 0
        assert set(imported.missing) == {reference_to(LONG_RESULT).blob_id, FILE_ID}


async def test_a_migration_leaves_links(data_dir: Path, outside: Path, tmp_path: Path) -> None:
    move_out(the_file(data_dir), outside)
    async with file_store(tmp_path / "new") as store:
        moved = [each async for each in migrate(DirectoryPlace(data_dir), store)]
    assert {each.session_id: each.outcome for each in moved} == {
        "s1": "left",
        "s2": "copied",
        "s3": "copied",
    }
    assert "symbolic link" in moved[0].says
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "history").symlink_to(data_dir / "history")
    with pytest.raises(StorageUnavailable, match="history"):
        DirectoryPlace(tmp_path / "linked")
    with pytest.raises(NotAConversation), DirectoryPlace(data_dir).open("s1"):
        pass


@needs_root
async def test_a_file_of_another_user_is_refused(data_dir: Path, tmp_path: Path) -> None:
    os.chown(the_file(data_dir), STRANGER, -1)
    os.chown(data_dir / "files" / "s2" / FILE_ID, STRANGER, -1)
    async with file_store(data_dir) as store:
        with pytest.raises(ConversationDamaged, match="belongs to another user"):
            await store.open("s1")
        assert await all_entries(store, "s3") == chat(1)
    assert not await AttachmentFiles(data_dir / "files").has("s2", FILE_ID)
    done = copied(data_dir, tmp_path / "copy")
    assert done.conversations == 2
    assert len(done.left_out) == 2


@needs_root
async def test_root_may_look_at_the_directory_of_another_user(
    data_dir: Path, tmp_path: Path
) -> None:
    for path in (data_dir, *data_dir.rglob("*")):
        os.chown(path, STRANGER, -1)
    assert examined(data_dir).wrong == 0
    assert copied(data_dir, tmp_path / "copy").left_out == []


def test_no_way_leads_out_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in").mkdir()
    (tmp_path / "secret").write_bytes(b"x")
    disk = Disk(tmp_path / "data")
    with pytest.raises(NotOurs):
        disk.open(tmp_path / "data" / "in" / ".." / ".." / "secret", os.O_RDONLY)


class SwappedAfterCheck(Disk):
    """Something else takes the file's place as soon as the disk has looked at it."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[], None]
    ) -> None:
        super().__init__(root)
        self._monkeypatch = monkeypatch
        self._put = put

    def open(self, path: Path, flags: int) -> int:
        stat = os.stat

        def stat_then_put(
            name: str, *, dir_fd: int | None = None, follow_symlinks: bool = True
        ) -> os.stat_result:
            try:
                return stat(name, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
            finally:
                patched.undo()
                self._put()

        with self._monkeypatch.context() as patched:
            patched.setattr(os, "stat", stat_then_put)
            return super().open(path, flags)


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT], ids=["read", "write"])
@pytest.mark.parametrize("was", ["a file", "nothing"])
def test_a_link_put_between_the_check_and_the_open_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, was: str
) -> None:
    (tmp_path / "data").mkdir()
    path, theirs = tmp_path / "data" / "lock", tmp_path / "theirs"
    if was == "a file":
        path.write_bytes(b"ours")
    theirs.write_bytes(b"theirs")

    def put() -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(theirs)

    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        os.close(SwappedAfterCheck(tmp_path / "data", monkeypatch, put).open(path, flags))
    assert path.is_symlink()


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_file_of_another_user(path: Path) -> None:
    path.write_bytes(b"theirs")
    os.chown(path, STRANGER, -1)


@pytest.mark.parametrize(
    ("put", "error"),
    [
        (put_pipe, "a pipe"),
        pytest.param(put_file_of_another_user, "belongs to another user", marks=needs_root),
    ],
)
def test_what_is_put_in_the_place_of_a_file_between_the_check_and_the_open_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path], None], error: str
) -> None:
    path = tmp_path / "lock"
    path.write_bytes(b"ours")

    def swap() -> None:
        path.unlink()
        put(path)

    with pytest.raises(NotOurs, match=error):
        SwappedAfterCheck(tmp_path, monkeypatch, swap).open(path, os.O_RDONLY)


def test_a_second_name_of_a_link_is_no_second_name_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "theirs").write_bytes(b"theirs")
    link, target = tmp_path / "data" / "link", tmp_path / "data" / "target"
    link.symlink_to(tmp_path / "theirs")
    Disk(tmp_path / "data").link(link, target)
    assert target.is_symlink()
    assert (tmp_path / "theirs").stat().st_nlink == 1


@pytest.mark.parametrize("where", ["itself", "below"])
def test_a_link_to_a_directory_is_removed_without_what_is_in_the_directory(
    data_dir: Path, outside: Path, where: str
) -> None:
    (outside / "theirs").write_bytes(b"theirs")
    tree = data_dir / "trash" / "20200101T000000_s9"
    if where == "below":
        tree.mkdir()
    (tree if where == "itself" else tree / "files").symlink_to(outside)
    Disk(data_dir).remove_tree(tree)
    assert not os.path.lexists(tree)
    assert (outside / "theirs").exists()
