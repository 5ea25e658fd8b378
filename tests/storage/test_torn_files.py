"""What a crash can leave of a file is opened again with every acknowledged line in it.

All on files in memory, so that every byte, bit and sector can have its turn.
"""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_right
from itertools import product
from pathlib import Path

import pytest
from tests.storage.conversations import Pen, answer, chat, counting_ids, file_bytes, prompt
from tests.storage.file_fakes import MemoryFiles

from nplt_storage import ConversationDamaged
from nplt_storage.entries import Entry
from nplt_storage.file_system import Disk
from nplt_storage.files.append import Appender
from nplt_storage.files.conversation_file import JsonFile
from nplt_storage.files.format import decode_header, survey

pytestmark = pytest.mark.slow

PATH = Path("history/session_20260102_s1.json")
SECTOR = 512


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)  # every torn file is reported, thousands of times here


def _file(files: MemoryFiles) -> JsonFile:
    return JsonFile(PATH, "s1", files=files, new_id=counting_ids())


def _open(files: MemoryFiles) -> list[Entry]:
    """Opened for appending, and read from end to end."""
    file = _file(files)
    files.close(file.open_for_appending())
    with file.reading() as entries:
        return list(entries.after(0))


def _load(data: bytes) -> tuple[list[Entry], MemoryFiles]:
    files = MemoryFiles()
    files.put(PATH, data)
    return _open(files), files


def _append(file: JsonFile, entry: Entry) -> None:
    appender = Appender(file)
    appender.commit(appender.prepare(entry))
    appender.close()


def _set_aside(files: MemoryFiles) -> list[bytes]:
    return [bytes(data) for path, data in files.contents.items() if ".broken-" in path.name]


def _after(entries: list[Entry]) -> Entry:
    """One more prompt, as if it came after a restart."""
    pen = Pen(new_id=counting_ids("later"))
    for entry in entries:
        pen.history.add(entry)
    return pen.stamped(prompt("one-more"))


def test_a_sound_file_is_opened_without_a_change() -> None:
    entries = chat(5)
    data = file_bytes(entries)
    loaded, files = _load(data)
    assert loaded == entries
    assert bytes(files.contents[PATH]) == data
    assert not _set_aside(files)


def test_every_line_before_a_cut_is_found_wherever_the_cut_is() -> None:
    data = file_bytes(chat(25))  # 58 messages
    ends = _line_ends(data)
    for cut in range(ends[0], len(data)):
        whole = bisect_right(ends, cut) - 1
        found = survey(lambda offset, length: data[offset : min(offset + length, cut)], cut)  # noqa: B023
        assert (found.head_seq, found.end) == (whole, ends[whole])
        assert found.closing is None


def test_a_file_cut_at_any_byte_is_made_whole_and_goes_on() -> None:
    entries = chat(8)
    data = file_bytes(entries)
    ends = _line_ends(data)
    after = [_after(entries[:whole]) for whole in range(len(ends))]
    expected = [file_bytes([*entries[:whole], more]) for whole, more in enumerate(after)]
    for cut in range(ends[0], len(data)):
        whole = bisect_right(ends, cut) - 1
        files = MemoryFiles()
        files.put(PATH, data[:cut])
        file = _file(files)
        file.settle()
        _append(file, after[whole])
        kept = bytes(files.contents[PATH])
        assert kept == expected[whole]
        assert len(json.loads(kept)["messages"]) == whole + 1
        assert _set_aside(files) == ([data[ends[whole] : cut]] if cut > ends[whole] else [])


def _line_ends(data: bytes) -> list[int]:
    """Where the header and each line end; the closing line is not one of them."""
    return [place + 1 for place, byte in enumerate(data) if byte == ord("\n")][:-1]


def test_a_file_cut_inside_its_first_line_is_left_alone() -> None:
    data = file_bytes(chat(2))
    for cut in range(data.index(b"\n") + 1):
        files = MemoryFiles()
        files.put(PATH, data[:cut])
        with pytest.raises(ConversationDamaged):
            _open(files)
        assert files.contents == {PATH: data[:cut]}


def test_a_flipped_bit_is_recovered_or_quarantined_but_never_believed() -> None:
    entries = chat(2)[:3]
    data = file_bytes(entries)
    last_line = data.rindex(b"\n,{")
    outcomes = {"whole": 0, "without the last": 0, "quarantined": 0}
    for place in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        files = MemoryFiles()
        files.put(PATH, bytes(flipped))
        try:
            loaded = _open(files)
        except ConversationDamaged:
            assert files.contents == {PATH: flipped}, "a damaged file is not touched"
            outcomes["quarantined"] += 1
            continue
        json.loads(files.contents[PATH])
        if loaded == entries:
            now, then = files.contents[PATH].split(b"\n"), data.split(b"\n")
            assert now[1:-2] == then[1:-2], "the closing line's counts are nobody's truth"
            assert _meaning(now[0]) == _meaning(then[0])
            outcomes["whole"] += 1
        else:
            assert place // 8 > last_line
            assert loaded == entries[:-1]
            assert _set_aside(files) == [bytes(flipped[last_line + 1 :])]
            outcomes["without the last"] += 1
    assert all(outcomes.values()), outcomes


def _meaning(header_line: bytes | bytearray) -> tuple[str, str, object]:
    header = decode_header(bytes(header_line) + b"\n")
    return header.session_id, header.user, header.created_at


def test_two_unreadable_lines_at_the_end_are_damage_not_a_crash() -> None:
    data = bytearray(file_bytes(chat(3)))
    last = data.rindex(b"\n,{")
    data[last + 30] ^= 1
    data[data.rindex(b"\n,{", 0, last) + 30] ^= 1
    with pytest.raises(ConversationDamaged, match="more than one line"):
        _load(bytes(data))


def test_an_append_torn_at_any_byte_leaves_the_line_before_and_perhaps_the_new_one() -> None:
    entries = chat(2)
    more = [*entries, _after(entries)]
    old, new = file_bytes(entries), file_bytes(more)
    for cut in range(len(new) + 1):
        torn = new[:cut] + old[cut:]
        loaded, files = _load(torn)
        complete = cut >= len(new) - len(new[new.rindex(b"\n]") + 1 :])
        assert loaded == (more if complete else entries)
        json.loads(files.contents[PATH])


@pytest.mark.parametrize("characters", [1, 300, 700, 1400])
@pytest.mark.parametrize("turns", [0, 1, 3])
def test_an_append_torn_in_any_pattern_of_sectors_loses_nothing_acknowledged(
    turns: int, characters: int
) -> None:
    entries = chat(turns)
    pen = Pen(new_id=counting_ids("later"))
    for entry in entries:
        pen.history.add(entry)
    more = [*entries, pen.stamped(prompt("one-more", "x" * characters))]
    old, new = file_bytes(entries), file_bytes(more)
    *_, line, closing = new.splitlines(keepends=True)
    for torn in _torn_by_sectors(old, new):
        if not entries and torn.endswith(closing) and line not in torn:
            # No line can be read, yet a whole closing line says that there was
            # one: a lost acknowledged line would look the same.
            with pytest.raises(ConversationDamaged):
                _load(torn)
            continue
        loaded, files = _load(torn)
        assert loaded in (entries, more)
        assert file_bytes(loaded) == bytes(files.contents[PATH])


def _torn_by_sectors(old: bytes, new: bytes) -> list[bytes]:
    """Every sector that differs old, new or (if it is new to the file) zero, and
    the file's size old or new: disks keep no order before a sync."""
    same = next(place for place, byte in enumerate(old) if byte != new[place])
    first = same // SECTOR
    sectors = range(first, (len(new) - 1) // SECTOR + 1)
    choices = []
    for sector in sectors:
        start, end = sector * SECTOR, (sector + 1) * SECTOR
        padded = (old[start:end] + bytes(SECTOR))[: len(new[start:end])]
        choices.append({padded, new[start:end]})
    torn = []
    for pattern in product(*choices):
        whole = new[: first * SECTOR] + b"".join(pattern)
        torn += [whole, whole[: max(len(old), same)]]
    return torn


def test_a_first_append_that_tore_leaves_an_empty_conversation() -> None:
    first = Pen().stamped(prompt("t1", "x" * 2000))
    old, new = file_bytes([]), file_bytes([first])
    loaded, files = _load(new[:1000])
    assert loaded == []
    assert bytes(files.contents[PATH]) == old
    assert _set_aside(files) == [new[old.index(b"\n") + 1 : 1000]]


def test_a_lost_closing_line_is_made_again_from_the_lines() -> None:
    entries = chat(4)
    data = file_bytes(entries)
    files = MemoryFiles()
    files.put(PATH, data[: data.rindex(b"\n]") + 1])
    _file(files).settle()
    assert bytes(files.contents[PATH]) == data
    assert not _set_aside(files), "nothing was there to be kept"


def test_torn_tails_of_two_crashes_are_both_kept() -> None:
    data = file_bytes(chat(2))
    files = MemoryFiles()
    files.put(PATH, data + b"first")
    _open(files)
    files.contents[PATH] += b"second"
    _open(files)
    assert sorted(path.name[-8:] for path in files.contents if path != PATH) == [
        "broken-1",
        "broken-2",
    ]


def test_a_torn_tail_is_kept_next_to_a_dangling_link(tmp_path: Path) -> None:
    path = tmp_path / PATH.name
    path.write_bytes(file_bytes(chat(2)) + b"torn")
    link = path.with_name(f"{path.name}.broken-1")
    link.symlink_to(tmp_path / "nowhere" / "x")
    JsonFile(path, "s1", files=Disk(), new_id=counting_ids()).settle()
    assert link.is_symlink()
    assert path.with_name(f"{path.name}.broken-2").read_bytes().endswith(b"torn")


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"junk", bytes(512)])
def test_a_last_line_that_is_whole_behind_junk_is_not_set_aside(before: bytes) -> None:
    lines = file_bytes(chat(3)).splitlines(keepends=True)
    data = b"".join([*lines[:-2], before, *lines[-2:]])
    with pytest.raises(ConversationDamaged, match="a line is whole"):
        _load(data)


def test_a_line_missing_in_the_middle_is_damage() -> None:
    entries = chat(3)
    lines = file_bytes(entries).split(b"\n")
    del lines[3]
    with pytest.raises(ConversationDamaged, match="is where line"):
        _load(b"\n".join(lines))


def test_a_last_line_that_was_known_and_can_not_be_read_is_damage() -> None:
    entries = chat(3)
    files = MemoryFiles()
    files.put(PATH, file_bytes(entries).replace(b'"content":"so 2"', b'"content":"so 3"'))
    file = _file(files)
    file.head_seq_min = len(entries)
    with pytest.raises(ConversationDamaged, match="but there were"):
        file.settle()


def test_a_file_of_another_conversation_is_damage() -> None:
    files = MemoryFiles()
    files.put(PATH, file_bytes(chat(1), "s2"))
    with pytest.raises(ConversationDamaged, match="'s2'"):
        _open(files)


def test_a_file_of_a_later_format_is_left_alone() -> None:
    without_crc = re.sub(rb',"crc":"[0-9a-f]{8}"', b"", file_bytes([]))
    data = without_crc.replace(b'"format":1', b'"format":2')
    with pytest.raises(ConversationDamaged, match="format 2 is not known"):
        _load(data)


def test_a_header_without_a_checksum_is_taken_as_it_is() -> None:
    entries = chat(1)
    header, lines = file_bytes(entries).split(b"\n", 1)
    loaded, _ = _load(re.sub(rb',"crc":"[0-9a-f]{8}"', b"", header) + b"\n" + lines)
    assert loaded == entries


def test_an_answer_in_a_file_can_follow_after_reopening() -> None:
    pen = Pen()
    entries = [pen.write(prompt("t1"))]
    files = MemoryFiles()
    files.put(PATH, file_bytes(entries))
    assert _open(files) == entries
    more = pen.write(answer("t1"))
    file = _file(files)
    file.settle()
    _append(file, more)
    assert bytes(files.contents[PATH]) == file_bytes([*entries, more])
