"""Repairing a file: cut back to what is sound, the original kept, nothing guessed."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.storage.care_samples import examined, file_store, planned, put, the_file
from tests.storage.conversations import (
    Pen,
    answer,
    asking,
    call,
    chat,
    fault,
    file_bytes,
    prompt,
)

from nplt_storage import ConversationDamaged, DataDirectoryInUse, StorageUnavailable, decode_line
from nplt_storage.entries import EpochEntry, FaultEntry, ForkedEntry, ToolResultsEntry
from nplt_storage.file_system import DataDirectory
from nplt_storage.maintenance.doctor import forget_row
from nplt_storage.maintenance.repair import CannotRepair, Repair, apply_repair, nobody_else_uses

GOOD = file_bytes(chat(4, content="wörd "))
LINES = GOOD.splitlines(keepends=True)
FIRST = len(LINES[0])
STARTS = [sum(map(len, LINES[:place])) for place in range(1, len(LINES))]


def sound_before(offset: int) -> bytes:
    """The lines that end before a byte that is not as it was."""
    return GOOD[FIRST : max([FIRST, *(start for start in STARTS if start <= offset)])]


def flipped(bit: int) -> bytes:
    data = bytearray(GOOD)
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


@settings(max_examples=50)
@given(st.integers(0, len(GOOD) * 8 - 1))
def test_after_any_flipped_bit_all_before_it_is_there_and_the_doctor_content(bit: int) -> None:
    found = examined(flipped(bit))
    assert found.findings, "nothing that is not as it was written goes unnoticed"
    _, repaired = planned(flipped(bit))
    assert examined(repaired).is_sound
    assert repaired[FIRST:].startswith(sound_before(bit // 8))
    json.loads(repaired)


@settings(max_examples=50)
@given(st.integers(FIRST, len(GOOD) - 1))
def test_after_any_cut_all_before_it_is_there_and_the_doctor_content(cut: int) -> None:
    assert examined(GOOD[:cut]).findings
    _, repaired = planned(GOOD[:cut])
    assert examined(repaired).is_sound
    assert repaired[FIRST:].startswith(sound_before(cut))
    json.loads(repaired)


@settings(max_examples=50)
@given(st.integers(FIRST, len(GOOD) - 1), st.binary(min_size=1, max_size=400))
def test_whatever_was_written_over_it_the_rest_is_saved(start: int, noise: bytes) -> None:
    data = GOOD[:start] + noise + GOOD[start + len(noise) :]
    _, repaired = planned(data)
    assert examined(repaired).is_sound
    assert repaired[FIRST:].startswith(sound_before(start))


@settings(max_examples=50)
@given(st.integers(0, FIRST * 8 - 1))
def test_a_bit_that_flipped_in_the_first_line_is_put_back(bit: int) -> None:
    repair, repaired = planned(flipped(bit))
    if examined(flipped(bit)).is_sound:  # without a checksum the line is taken as it is
        assert repair.says == ()
    else:
        assert repaired == GOOD


def test_a_first_line_that_can_not_be_told_is_left_alone() -> None:
    with pytest.raises(CannotRepair, match="can't be told what it was"):
        planned(GOOD.replace(b'"s1"', b'"zz"', 1))
    for cut in range(FIRST):
        with pytest.raises(CannotRepair):
            planned(GOOD[:cut])


def test_what_is_sound_needs_no_repair() -> None:
    repair, repaired = planned(GOOD)
    assert (repair.says, repaired) == ((), GOOD)


def test_damage_in_the_middle_is_cut_and_what_is_behind_it_counted() -> None:
    repair, repaired = planned(GOOD.replace("wörd 1".encode(), "wörd 7".encode()))
    assert repair.says == (
        f"it is cut at byte {STARTS[2]}, after entry 2",
        f"{len(GOOD) - STARTS[2]} bytes behind that stay in the original, 7 sound lines among them",
    )
    assert repaired.startswith(b"".join(LINES[:3]))


def test_a_line_out_of_order_is_where_it_is_cut() -> None:
    data = b"".join(LINES[:3] + LINES[4:])
    repair, repaired = planned(data)
    assert repair.through == STARTS[2]
    assert examined(repaired).findings == []


def test_turns_the_cut_leaves_open_are_ended_so_that_nobody_runs_them_again() -> None:
    entries = Pen().write_all(
        [prompt("t1"), answer("t1"), prompt("t2"), asking("t2", call()), EpochEntry(reason="x")]
    )
    data = file_bytes(entries)
    repair, repaired = planned(data.replace(b'"reason":"x"', b'"reason":"y"'))
    *_, results, ending, _ = repaired.splitlines()
    skipped = decode_line(results.removeprefix(b","))
    ended = decode_line(ending.removeprefix(b","))
    assert isinstance(skipped, ToolResultsEntry)
    assert [result.status for result in skipped.results] == ["skipped"]
    assert isinstance(ended, FaultEntry)
    assert (ended.seq, ended.turn_id, ended.code, ended.state) == (
        6,
        "t2",
        "repaired",
        "interrupted",
    )
    assert repair.says[-2:] == (
        "calls of 1 answer get a result: skipped",
        "1 turn without an end: ended, interrupted",
    )
    assert examined(repaired).findings == []


def test_calls_that_never_got_results_get_them() -> None:
    pen = Pen()
    data = file_bytes(pen.write_all([prompt("t1"), asking("t1", call()), fault("t1")]))
    assert [finding.code for finding in examined(data).findings] == ["unpaired_calls"]
    repair, repaired = planned(data)
    assert repaired.startswith(data[: repair.through])
    assert examined(repaired).findings == []


def test_turns_a_fork_left_behind_are_not_touched() -> None:
    forked = ForkedEntry(from_session_id="s0", at_seq=2)
    data = file_bytes(Pen().write_all([prompt("t1"), asking("t1", call()), forked]))
    assert examined(data).findings == []
    assert planned(data)[0].says == ()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "can't be told"),
        (b"\0" * 100, "can't be told"),
        (b'{"messages": [{"role": "user", "content": "hi"}]}', "another program's file"),
        (
            b'{"session_id":"s1","format":9,"created_at":"2026-01-02T03:04:05+00:00","messages":[\n',
            "left to the version that wrote it",
        ),
        (file_bytes(chat(1), "other"), "session_20260102_other.json"),
    ],
)
def test_what_cutting_can_not_help_is_refused_with_a_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(CannotRepair, match=sentence):
        planned(data)


def test_a_last_entry_that_is_lost_is_said() -> None:
    without_last = b"".join([*LINES[:-2], LINES[-1]])
    last = len(LINES) - 2
    assert planned(without_last)[0].says[0].startswith(f"entry {last} is lost")
    torn = GOOD.replace("wörd 3".encode(), "wörd 7".encode())
    assert planned(torn)[0].says[0].startswith("it is cut at byte")
    garbled = b"".join([*LINES[:-3], b"x\n", b"y\n", LINES[-1]])
    assert any(
        said.startswith(f"entries {last - 1} to {last} are lost")
        for said in planned(garbled)[0].says
    )


# On disk


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    path = tmp_path / "session_20260102_s1.json"
    path.write_bytes(GOOD.replace("wörd 1".encode(), "wörd 7".encode()))
    return path


def repair_of(path: Path) -> Repair:
    return planned(path.read_bytes())[0]


def test_the_original_is_kept_aside_byte_by_byte_every_time(damaged: Path) -> None:
    original = damaged.read_bytes()
    _, repaired = planned(original)
    aside = apply_repair(damaged, repair_of(damaged))
    assert (aside.name, aside.read_bytes()) == (f"{damaged.name}.before-repair-1", original)
    assert damaged.read_bytes() == repaired
    assert damaged.stat().st_mode & 0o777 == 0o600
    damaged.write_bytes(original[:-1])
    assert apply_repair(damaged, repair_of(damaged)).name.endswith(".before-repair-2")
    assert aside.read_bytes() == original


@pytest.mark.parametrize("call_", ["fsync", "rename", "hardlink_to"])
def test_a_repair_that_fails_leaves_the_file_as_it_was(
    damaged: Path, call_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = damaged.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    repair = repair_of(damaged)
    with monkeypatch.context() as patch:
        patch.setattr(os if call_ == "fsync" else Path, call_, fail)
        with pytest.raises(OSError, match="broken"):
            apply_repair(damaged, repair)
    assert damaged.read_bytes() == original
    assert not list(damaged.parent.glob(".*"))


def test_where_a_file_can_not_have_two_names_the_original_is_copied(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = damaged.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert apply_repair(damaged, repair_of(damaged)).read_bytes() == original
    assert examined(damaged.read_bytes()).is_sound


async def test_a_repaired_conversation_can_be_used_again(tmp_path: Path) -> None:
    async with file_store(tmp_path) as store:
        await put(store, chat(4))
    path = the_file(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"word 1", b"word 7"))
    async with file_store(tmp_path) as store:
        with pytest.raises(ConversationDamaged):
            await store.open("s1")
    apply_repair(path, repair_of(path))
    forget_row(tmp_path, "s1")
    async with file_store(tmp_path) as store:
        opened = await store.open("s1")
        assert list(opened.history.entries) == chat(4)[:2]
        pen = Pen(opened.history)
        await opened.record.append(pen.stamped(replace(prompt("t9"), content="go on")))
        await opened.record.close()


def test_a_directory_in_use_is_not_touched(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.take()
    with pytest.raises(DataDirectoryInUse), nobody_else_uses(tmp_path):
        pass
    directory.give_back()
    with nobody_else_uses(tmp_path), pytest.raises(DataDirectoryInUse):
        DataDirectory(tmp_path).take()


def test_a_file_outside_of_any_data_directory_needs_no_lock(tmp_path: Path) -> None:
    with nobody_else_uses(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "loop"])
def test_a_place_that_can_not_be_looked_at_is_said(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "file":
        place.write_bytes(b"")
    else:
        place.symlink_to(place)
    with pytest.raises(StorageUnavailable, match="place"), nobody_else_uses(place):
        pass
