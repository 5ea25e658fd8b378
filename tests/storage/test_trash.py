"""What was deleted can be brought back whole, for a while, and nothing is overwritten."""

from __future__ import annotations

import errno
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from tests.storage.conversations import START
from tests.storage.disk_fakes import MemoryDisk, StopAt, WatchedDisk
from tests.storage.file_fakes import PowerCut, Trouble

from nplt_storage import ConversationExists, ConversationNotFound, MemoryStore
from nplt_storage.file_system import DataDirectory, Disk
from nplt_storage.files.format import Header, copies, encode_header
from nplt_storage.files.trash import KEPT_FOR, Trash

ROOT = Path("data")
HISTORY = ROOT / "history"
FOLDER = ROOT / "trash" / "20260102T030405_s1"
ALL = {
    HISTORY / "session_20260102_s1.json": b"the conversation",
    HISTORY / "session_20260102_s1.json.broken-1": b"torn",
    HISTORY / "session_20260102_s1.json.live": b"said",
    HISTORY / "session_20260102_s1.json.orig": b"original",
    HISTORY / "session_20260102_s1.blobs" / ("a" * 64): b"blob",
    ROOT / "files" / "s1" / ("b" * 32): b"attachment",
}
OTHERS = {
    HISTORY / "session_20260102_s10.json": b"another",
    HISTORY / "session_20260102_s10.json.live": b"another's",
    HISTORY / "session_20260102_s10.blobs" / ("a" * 64): b"another's",
    ROOT / "files" / "s10" / ("b" * 32): b"another's",
    ROOT / "trash" / "session_20250101_old.json": b"an older program's trash",
}


def _disk() -> MemoryDisk:
    disk = MemoryDisk()
    for path, data in (ALL | OTHERS).items():
        disk.put(path, data)
    return disk


@pytest.fixture
def disk() -> MemoryDisk:
    return _disk()


def _trash(disk: Disk) -> Trash:
    return Trash(disk, DataDirectory(ROOT))


def _in_trash() -> dict[Path, bytes]:
    moved: dict[Path, bytes] = {}
    for path, data in ALL.items():
        if path.is_relative_to(HISTORY):
            moved[FOLDER / path.relative_to(HISTORY)] = data
        else:
            moved[FOLDER / "files" / path.name] = data
    return moved


def test_a_deleted_conversation_is_moved_to_one_folder_named_by_the_time(disk: MemoryDisk) -> None:
    _trash(disk).put("s1", at=START)
    assert disk.contents == _in_trash() | OTHERS


def test_a_restored_conversation_has_all_its_files_again(disk: MemoryDisk) -> None:
    before = disk.contents
    _trash(disk).put("s1", at=START)
    assert _trash(disk).restore("s1") == ["session_20260102_s1.json"]
    assert disk.contents == before
    assert disk.names_in(ROOT / "trash") == ["session_20250101_old.json"]


def test_two_files_for_one_conversation_go_and_come_back_together(disk: MemoryDisk) -> None:
    disk.put(HISTORY / "session_20260103_s1.json", b"again")
    before = disk.contents
    _trash(disk).put("s1", at=START)
    assert not any(name.endswith("_s1.json") for name in disk.names_in(HISTORY))
    assert len(_trash(disk).restore("s1")) == 2
    assert disk.contents == before


def test_what_is_not_there_is_not_found(disk: MemoryDisk) -> None:
    with pytest.raises(ConversationNotFound):
        _trash(disk).put("s2", at=START)
    for never_deleted in ("s1", "old", "..", "*"):
        with pytest.raises(ConversationNotFound):
            _trash(disk).restore(never_deleted)


def test_deleted_twice_the_later_one_comes_back_first(disk: MemoryDisk) -> None:
    path = HISTORY / "session_20260102_s1.json"
    _trash(disk).put("s1", at=START)
    for text in (b"second", b"third"):
        disk.put(path, text)
        _trash(disk).put("s1", at=START)  # within the same second
    for text in (b"third", b"second", b"the conversation"):
        _trash(disk).restore("s1")
        assert disk.contents[path] == text
        disk.remove(path)


def test_it_does_not_come_back_over_another_one(disk: MemoryDisk) -> None:
    _trash(disk).put("s1", at=START)
    disk.put(HISTORY / "session_20260105_s1.json", b"another")
    before = disk.contents
    with pytest.raises(ConversationExists):
        _trash(disk).restore("s1")
    assert disk.contents == before


def test_emptied_after_thirty_days_of_service_from_the_deletion(disk: MemoryDisk) -> None:
    trash = _trash(disk)
    trash.put("s1", at=START)
    assert [trash.empty(START + timedelta(days=day)) for day in range(31)] == [0] * 31
    trash.put("s10", at=START + KEPT_FOR)
    assert trash.empty(START + KEPT_FOR + timedelta(days=1)) == 1
    assert disk.names_in(ROOT / "trash") == [
        "20260201T030405_s10",
        "days.json",
        "session_20250101_old.json",
    ]
    with pytest.raises(ConversationNotFound):
        trash.restore("s1")


def test_a_clock_that_is_a_month_ahead_empties_nothing(disk: MemoryDisk) -> None:
    trash = _trash(disk)
    trash.put("s1", at=START)
    ahead = START + KEPT_FOR + timedelta(days=1)
    for now in (START, ahead, ahead + timedelta(days=400), START, ahead):
        assert trash.empty(now) == 0
    trash.restore("s1")


def test_a_server_that_ran_for_a_month_without_a_look_empties_it_then(disk: MemoryDisk) -> None:
    trash = _trash(disk)
    trash.put("s1", at=START)
    assert trash.empty(START) == 0
    assert trash.empty(START + timedelta(days=31), days_served=31) == 1


@pytest.mark.parametrize("data", [b"", b"noise", b'{"day":1,"date":"\xff"}'])
def test_a_count_of_days_that_can_not_be_read_begins_again(disk: MemoryDisk, data: bytes) -> None:
    trash = _trash(disk)
    trash.put("s1", at=START)
    disk.put(ROOT / "trash" / "days.json", data)
    assert trash.empty(START) == 0
    assert trash.empty(START + timedelta(days=31), days_served=31) == 1


def test_a_crash_at_any_call_of_a_deletion_leaves_it_there_or_gone_and_whole_either_way() -> None:
    outcomes = set()
    for stop in range(1, 40):
        disk, watch = _disk(), StopAt(stop)
        before = disk.contents
        with suppress(PowerCut):
            _trash(WatchedDisk(disk, watch)).put("s1", at=START)
        _trash(disk).finish(disk.names_in(HISTORY))
        if HISTORY / "session_20260102_s1.json" in disk.contents:
            assert disk.contents == before
            outcomes.add("there")
        else:
            assert disk.contents == _in_trash() | OTHERS
            outcomes.add("gone")
            _trash(disk).restore("s1")
            assert disk.contents == before
    assert outcomes == {"there", "gone"}


def test_a_crash_at_any_call_of_bringing_it_back_can_be_repeated() -> None:
    whole = _disk().contents
    for stop in range(1, 40):
        disk = _disk()
        _trash(disk).put("s1", at=START)
        with suppress(PowerCut):
            _trash(WatchedDisk(disk, StopAt(stop))).restore("s1")
        _trash(disk).finish(disk.names_in(HISTORY))
        if HISTORY / "session_20260102_s1.json" not in disk.contents:
            _trash(disk).restore("s1")
        assert {**disk.contents} == whole


def test_companions_without_a_file_that_were_never_deleted_are_left_alone(disk: MemoryDisk) -> None:
    disk.put(HISTORY / "session_20260102_s3.json.orig", b"someone's")
    before = disk.contents
    _trash(disk).finish(disk.names_in(HISTORY))
    assert disk.contents == before


LEFT = {
    HISTORY / "session_20260102_s1.json.live": b"said later",
    HISTORY / "session_20260102_s1.blobs" / ("a" * 64): b"blob",
    HISTORY / "session_20260102_s1.blobs" / ("c" * 64): b"another blob",
    ROOT / "files" / "s1" / ("b" * 32): b"attachment",
    ROOT / "files" / "s1" / ("d" * 32): b"another attachment",
}


def _with_leftovers() -> MemoryDisk:
    disk = _disk()
    _trash(disk).put("s1", at=START)
    for path, data in LEFT.items():
        disk.put(path, data)
    return disk


def test_what_meets_its_own_name_on_the_way_is_joined_to_it_and_overwrites_nothing() -> None:
    disk = _with_leftovers()
    _trash(disk).finish(disk.names_in(HISTORY))
    assert disk.contents == OTHERS | _in_trash() | {
        FOLDER / "session_20260102_s1.json.live~2": b"said later",
        FOLDER / "session_20260102_s1.blobs" / ("c" * 64): b"another blob",
        FOLDER / "files" / ("d" * 32): b"another attachment",
    }


def test_what_comes_back_to_what_was_left_is_joined_to_it_too() -> None:
    disk = _with_leftovers()
    _trash(disk).restore("s1")
    live = HISTORY / "session_20260102_s1.json.live"
    journals = {live: b"said later", live.with_name(f"{live.name}~2"): b"said"}
    assert disk.contents == OTHERS | ALL | LEFT | journals


def test_words_under_such_a_name_are_found_when_they_are_erased() -> None:
    path = HISTORY / "session_20260102_s1.json"
    companions = [
        f"{path.name}.{suffix}" for suffix in ("live~2", "orig~2", "orig-2~3", "broken-1~2")
    ]
    assert copies([*companions, f"{path.name}.live"], path) == companions


def test_a_file_that_can_not_be_moved_to_the_trash_is_reported_and_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, trouble = _with_leftovers(), Trouble()
    before = disk.contents
    trouble.lasting["rename"] = errno.EIO
    _trash(WatchedDisk(disk, trouble)).finish(disk.names_in(HISTORY))
    assert disk.contents == before
    assert "files/s1 was deleted and can't be moved" in caplog.text


async def test_in_memory_too_it_is_kept_for_a_while_only() -> None:
    now = START
    store = MemoryStore(lambda: now)
    for days in (0, 20, 31):
        now = START + timedelta(days=days)
        await store.create(f"s{days}", user="ada")
        await store.delete(f"s{days}")
    with pytest.raises(ConversationNotFound):
        await store.undelete("s0")
    await store.undelete("s20")
    await store.undelete("s31")


def test_everyone_gets_the_latest_of_their_own_back(disk: MemoryDisk) -> None:
    trash, path = _trash(disk), HISTORY / "session_20260102_s1.json"
    for day, user in enumerate(("ada", "ada", "bob")):
        header = Header(session_id="s1", created_at=START, user=user)
        disk.put(path, encode_header(header) + b"%d" % day)
        trash.put("s1", at=START + timedelta(days=day))
    assert trash.owners("s1") == {"ada", "bob"}
    with pytest.raises(ConversationNotFound):
        trash.restore("s1", user="eve")
    assert trash.restore("s1", user="ada") == [path.name]
    assert disk.contents[path].endswith(b"1")


def test_a_power_cut_at_any_call_takes_nothing_away() -> None:
    for stop in range(1, 40):
        disk = _disk()
        with suppress(PowerCut):
            _trash(WatchedDisk(disk, StopAt(stop))).put("s1", at=START)
        assert set(disk.after_power_cut().contents.values()) == set((ALL | OTHERS).values())
        _trash(disk).finish(disk.names_in(HISTORY))
        if HISTORY / "session_20260102_s1.json" not in disk.contents:
            with suppress(PowerCut):
                _trash(WatchedDisk(disk, StopAt(stop))).restore("s1")
            assert set(disk.after_power_cut().contents.values()) == set((ALL | OTHERS).values())


def test_a_conversation_is_listed_once_whatever_went_with_it(disk: MemoryDisk) -> None:
    _trash(disk).put("s1", at=START)
    listed = [(session_id, path.name) for _, session_id, path in _trash(disk).conversations()]
    assert listed == [("s1", "session_20260102_s1.json")]


def test_two_files_in_one_deletion_are_the_first_ones_users(disk: MemoryDisk) -> None:
    for day, user in (("20260101", "ann"), ("20260103", "bob")):
        header = Header(session_id="s2", created_at=START, user=user)
        disk.put(HISTORY / f"session_{day}_s2.json", encode_header(header))
    trash = _trash(disk)
    trash.put("s2", at=START)
    assert trash.owners("s2") == {"ann"}
    with pytest.raises(ConversationNotFound):
        trash.restore("s2", user="bob")
    assert len(trash.restore("s2", user="ann")) == 2


def test_a_folder_of_a_day_that_is_none_hides_nothing_else(disk: MemoryDisk) -> None:
    trash = _trash(disk)
    trash.put("s1", at=START)
    disk.put(ROOT / "trash" / "20269901T000000_s3" / "session_20260102_s3.json", b"{}")
    assert [session_id for _, session_id, _ in trash.conversations()] == ["s1"]
    assert trash.restore("s3") == ["session_20260102_s3.json"]
