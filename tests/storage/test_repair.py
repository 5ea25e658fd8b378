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
    START,
    Pen,
    answer,
    answering,
    asking,
    call,
    chat,
    fault,
    file_bytes,
    prompt,
)

from nplt_storage import (
    ConversationDamaged,
    ConversationHistory,
    DataDirectoryInUse,
    StorageUnavailable,
    decode_line,
)
from nplt_storage.codec import crc_suffix, encode_line
from nplt_storage.entries import (
    DebugEntry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
    NotebookEntry,
    RenamedEntry,
    RollbackEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
)
from nplt_storage.file_system import DataDirectory
from nplt_storage.files.format import FileEntries, survey
from nplt_storage.files.repair import Repair, apply_repair, exclusive_use
from nplt_storage.files.salvage import CannotRepair
from nplt_storage.maintenance.doctor import forget_row
from nplt_storage.pages import PageQuery, read_end, read_page
from nplt_storage.rows import fold_all, new_row

GOOD = file_bytes(chat(4, content="wörd "))
LINES = GOOD.splitlines(keepends=True)
FIRST = len(LINES[0])
STARTS = [sum(map(len, LINES[:place])) for place in range(1, len(LINES))]


def flipped(bit: int) -> bytes:
    data = bytearray(GOOD)
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


def objects(data: bytes) -> list[bytes]:
    """Its lines, without what joins them to each other."""
    return [line.strip(b",\n") for line in data.splitlines()[1:-1]]


def kept_of(data: bytes) -> set[bytes]:
    return set(objects(GOOD)) & set(objects(data))


def objects_before(end: int, start: int = 0) -> set[bytes]:
    """The objects that lie whole between these bytes."""
    places = zip(STARTS, [*STARTS[1:], len(GOOD)], strict=True)
    whole = (GOOD[first:last] for first, last in places if first >= start and last <= end)
    return {line.strip(b",\n") for line in whole if line.lstrip(b",").startswith(b"{")}


@settings(max_examples=50)
@given(st.integers(0, len(GOOD) * 8 - 1))
def test_after_any_flipped_bit_every_other_line_is_there_and_the_doctor_content(bit: int) -> None:
    found = examined(flipped(bit))
    assert found.findings, "nothing that is not as it was written goes unnoticed"
    _, repaired = planned(flipped(bit))
    assert examined(repaired).is_sound
    assert objects_before(bit // 8) | objects_before(len(GOOD), bit // 8 + 1) <= kept_of(repaired)
    assert len(objects(repaired)) >= len(objects(GOOD))
    json.loads(repaired)


@settings(max_examples=50)
@given(st.integers(FIRST, len(GOOD) - 1))
def test_after_any_cut_all_before_it_is_there_and_the_doctor_content(cut: int) -> None:
    assert examined(GOOD[:cut]).findings
    _, repaired = planned(GOOD[:cut])
    assert examined(repaired).is_sound
    assert objects_before(cut) <= kept_of(repaired)
    json.loads(repaired)


@settings(max_examples=50)
@given(st.integers(FIRST, len(GOOD) - 1), st.binary(min_size=1, max_size=400))
def test_whatever_was_written_over_it_the_rest_is_saved(start: int, noise: bytes) -> None:
    data = GOOD[:start] + noise + GOOD[start + len(noise) :]
    _, repaired = planned(data)
    assert examined(repaired).is_sound
    rest = objects_before(start) | objects_before(len(GOOD), start + len(noise) + 1)
    assert rest <= kept_of(repaired)


LIVELY = Pen().write_all(
    [
        SystemInstructionEntry(content="be brief"),
        *(prompt("t1"), asking("t1", call()), answering("t1", call()), answer("t1", call=1)),
        NotebookEntry(content="- a note"),
        *(prompt("t2"), answer("t2"), EpochEntry(reason="x"), prompt("t3"), answer("t3")),
        RollbackEntry(to_seq=8, message_count=5, system_seq=1, notebook_seq=6),
        *(RenamedEntry(name="a name"), prompt("t4"), answer("t4"), prompt("t5")),
    ]
)


@settings(max_examples=50)
@given(st.sets(st.integers(0, len(LIVELY) - 1)))
def test_with_whichever_lines_gone_it_can_be_opened_read_and_gone_on_with(gone: set[int]) -> None:
    header, *lines = file_bytes(LIVELY).splitlines(keepends=True)
    left = [line for place, line in enumerate(lines) if place not in gone]
    repair, repaired = planned(header + b"".join(left))
    assert examined(repaired).is_sound
    assert repair.kept == len(LIVELY) - len(gone)
    assert sum(last - first + 1 for first, last in repair.lost) == len(gone)
    entries = [decode_line(each) for each in objects(repaired)]
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    row = fold_all(new_row("s1", user="local", created_at=START), entries)
    found = survey(lambda start, length: repaired[start : start + length], len(repaired))
    source = FileEntries(
        lambda start, length: repaired[start : start + length],
        first=found.first,
        end=found.end,
        head_seq=found.head_seq,
    )
    history = ConversationHistory("s1", read_end(source, row), row=row)
    assert history.head_seq == len(entries)
    assert not history.unfinished_turns()
    assert history.shown_turns is not None
    assert read_page(PageQuery(), source, row.hidden, row.unfinished)


@settings(max_examples=50)
@given(st.integers(0, FIRST * 8 - 1))
def test_a_bit_that_flipped_in_the_first_line_is_put_back(bit: int) -> None:
    repair, repaired = planned(flipped(bit))
    # Without a checksum the line is taken as it is.
    assert repaired == GOOD or (repair.says == () and examined(flipped(bit)).is_sound)


@pytest.mark.timeout(15)
def test_a_file_in_one_long_line_is_written_as_it_was_in_good_time() -> None:
    """Each bit of what may be its first line is tried."""
    entries = chat(24)
    whole = file_bytes(entries)
    line = whole.replace(b"[\n", b"[").replace(b"\n,", b",").replace(b"\n]", b"]")
    assert line.count(b"\n") == 1
    assert 14_000 < len(line) < 16_384
    repair, repaired = planned(line)
    assert repaired == whole
    assert repair.kept == len(entries)


def test_a_last_line_that_is_no_json_is_damage_though_its_checksum_fits() -> None:
    *lines, last = file_bytes(chat(1)).splitlines(keepends=True)[:-1]
    body = last.lstrip(b",").partition(b',"crc"')[0].replace(b"re 0", b"\xff")
    forged = b"".join(lines) + b"," + body + crc_suffix(body) + b"\n"
    assert [finding.code for finding in examined(forged).findings] == ["damaged"]
    _, repaired = planned(forged)
    assert examined(repaired).is_sound


def test_a_file_that_ends_in_its_first_line_is_left_alone() -> None:
    for cut in range(FIRST):
        with pytest.raises(CannotRepair):
            planned(GOOD[:cut])


def test_what_is_sound_needs_no_repair() -> None:
    repair, repaired = planned(GOOD)
    assert (repair.says, repaired) == ((), GOOD)


def test_a_tombstone_stands_for_a_line_in_the_middle_and_all_others_are_as_they_were() -> None:
    repair, repaired = planned(GOOD.replace("wörd 1".encode(), "wörd 7".encode()))
    assert repair.says == (
        "entry 3 can't be read: a tombstone stands in its place",
        f"{len(LINES[3])} bytes, from byte {STARTS[2]} on, stay in the original only",
        *repair.says[2:],
    )
    assert (repair.kept, repair.lost) == (len(LINES) - 3, ((3, 3),))
    lines = repaired.splitlines(keepends=True)
    assert lines[: len(LINES) - 1] == [*LINES[:3], lines[3], *LINES[4:-1]]
    tombstone = decode_line(lines[3].strip(b",\n"))
    assert isinstance(tombstone, DebugEntry)
    assert (tombstone.seq, tombstone.category) == (3, "lost")


@pytest.mark.parametrize("order", [[2, 3, 1], [3, 2, 1], [1, 1, 2, 3]])
def test_lines_out_of_order_are_put_in_order_and_a_second_copy_is_left_out(
    order: list[int],
) -> None:
    data = b"".join([LINES[0], *(LINES[place] for place in order), *LINES[4:]])
    _, repaired = planned(data)
    assert repaired == GOOD


def test_lines_of_which_only_the_line_end_or_the_comma_broke_are_kept() -> None:
    data = bytearray(GOOD)
    data[STARTS[2] - 1] = ord(" ")
    data[STARTS[4]] = ord("x")
    repair, repaired = planned(bytes(data))
    assert repaired == GOOD
    assert repair.lost == ()


def test_a_number_far_away_does_not_make_a_million_tombstones() -> None:
    stray = encode_line(replace(chat(1)[0], seq=10**9))
    repair, repaired = planned(b"".join([*LINES[:-1], b",", stray, b"\n", LINES[-1]]))
    assert repaired == GOOD
    assert "entry 1000000000 stays in the original" in repair.says[0]


@pytest.mark.parametrize("lost", [False, True])
def test_repair_restores_the_layout_of_a_reformatted_file(lost: bool) -> None:
    document = json.loads(GOOD)
    if lost:
        document["messages"][2]["content"] = "another"
    repair, repaired = planned(json.dumps(document, indent=2).encode())
    assert "another program has changed its layout" in repair.says[0]
    assert repair.lost == (((3, 3),) if lost else ())
    assert len(kept_of(repaired)) == len(objects(GOOD)) - lost
    assert examined(repaired).is_sound


def test_turns_left_open_by_the_repair_are_ended_and_not_run_again() -> None:
    entries = Pen().write_all(
        [prompt("t1"), answer("t1"), prompt("t2"), asking("t2", call()), EpochEntry(reason="x")]
    )
    data = file_bytes(entries)
    repair, repaired = planned(data.replace(b'"reason":"x"', b'"reason":"y"'))
    *_, tombstone, results, ending, _ = repaired.splitlines()
    assert b'"category":"lost"' in tombstone
    skipped = decode_line(results.removeprefix(b","))
    ended = decode_line(ending.removeprefix(b","))
    assert isinstance(skipped, ToolResultsEntry)
    assert [result.status for result in skipped.results] == ["skipped"]
    assert isinstance(ended, FaultEntry)
    assert (ended.seq, ended.turn_id, ended.code, ended.state) == (
        7,
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
    _, repaired = planned(data)
    assert repaired.startswith(data.rpartition(b"],")[0])
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


def test_repair_reports_a_lost_last_entry() -> None:
    without_last = b"".join([*LINES[:-2], LINES[-1]])
    last = len(LINES) - 2
    assert planned(without_last)[0].lost == ((last, last),)
    garbled = b"".join([*LINES[:-3], b"x\n", b"y\n", LINES[-1]])
    assert planned(garbled)[0].says[0].startswith(f"entries {last - 1} to {last} can't be read")


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


@pytest.mark.parametrize("call_", ["fsync", "rename", "link"])
def test_a_repair_that_fails_leaves_the_file_as_it_was(
    damaged: Path, call_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = damaged.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "broken")

    repair = repair_of(damaged)
    with monkeypatch.context() as patch:
        patch.setattr(os, call_, fail)
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
        kept = [entry for entry in opened.history.entries if not isinstance(entry, DebugEntry)]
        assert kept[: len(chat(4)) - 1] == [entry for entry in chat(4) if entry.seq != 3]
        pen = Pen(opened.history)
        await opened.record.append(pen.stamped(replace(prompt("t9"), content="go on")))
        await opened.record.close()


async def test_one_that_was_read_before_its_damage_can_be_used_after_the_repair(
    tmp_path: Path,
) -> None:
    async with file_store(tmp_path) as store:
        await put(store, chat(4))
        await store.page("s1", PageQuery())
        path = the_file(tmp_path)
        path.write_bytes(path.read_bytes().replace(b"word 1", b"word 7"))
        await store.page("s1", PageQuery())  # what can be read of it
        await store.repair("s1")
        assert len((await store.page("s1", PageQuery())).messages) > 0
        opened = await store.open("s1")
        head_seq = opened.history.head_seq
        await opened.record.append(Pen(opened.history).stamped(prompt("t9", "go on")))
        await opened.record.close()
        row = await store.row("s1")
        assert row is not None
        assert (row.damaged, row.head_seq) == (False, head_seq + 1)
        assert (await store.page("s1", PageQuery())).messages[-1]["content"] == "go on"


def test_a_directory_in_use_is_not_touched(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.take()
    with pytest.raises(DataDirectoryInUse), exclusive_use(tmp_path):
        pass
    directory.give_back()
    with exclusive_use(tmp_path), pytest.raises(DataDirectoryInUse):
        DataDirectory(tmp_path).take()


def test_a_file_outside_of_any_data_directory_needs_no_lock(tmp_path: Path) -> None:
    with exclusive_use(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "loop"])
def test_repair_reports_an_unreadable_directory(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "file":
        place.write_bytes(b"")
    else:
        place.symlink_to(place)
    with pytest.raises(StorageUnavailable, match="place"), exclusive_use(place):
        pass
