"""What a running answer has said outlives the process, and never gets in the way."""

from __future__ import annotations

import errno
import logging
import re
from pathlib import Path

import pytest
from tests.storage.conversations import Pen, answer, asking, call, fault, prompt
from tests.storage.file_fakes import AlmostFullFiles, MemoryFiles, Trouble, WatchedFiles

from nplt_storage import PartialAnswer
from nplt_storage.file_system import FileOperations
from nplt_storage.files.live_journal import LiveJournal, encode_piece, read_journal, sound_pieces
from nplt_storage.partial_answers import join_pieces

PATH = Path("history/session_20260102_s1.json.live")


def _partial_answer(files: FileOperations) -> PartialAnswer | None:
    return join_pieces(sound_pieces(read_journal(files, PATH)))


@pytest.fixture
def disk() -> MemoryFiles:
    return MemoryFiles()


def test_pieces_are_put_together_again(disk: MemoryFiles) -> None:
    journal = LiveJournal(PATH, files=disk)
    assert PATH not in disk.contents, "nothing was said: there is no file"
    journal.journal_delta("t1", 0, "reasoning", "hm")
    journal.journal_delta("t1", 0, "text", "Hel")
    journal.journal_delta("t1", 0, "text", "lo\n漢\x00")
    assert _partial_answer(disk) == PartialAnswer(
        turn_id="t1", call=0, text="Hello\n漢\x00", reasoning="hm"
    )


def test_a_piece_is_one_write_and_no_sync(disk: MemoryFiles) -> None:
    trouble = Trouble()
    journal = LiveJournal(PATH, files=WatchedFiles(disk, trouble))
    journal.journal_delta("t1", 0, "text", "a")
    trouble.seen.clear()
    journal.journal_delta("t1", 0, "text", "b")
    assert trouble.seen == ["write"]


def test_a_journal_cut_at_any_byte_gives_the_pieces_before_the_cut(disk: MemoryFiles) -> None:
    pieces = [encode_piece(("t1", 0, "text", text)) for text in ("one ", "two ", "three")]
    data = b"".join(pieces)
    for cut in range(len(data) + 1):
        disk.put(PATH, data[:cut])
        whole = sum(len(b"".join(pieces[: n + 1])) <= cut for n in range(3))
        partial = _partial_answer(disk)
        assert (partial.text if partial else "") == "".join(["one ", "two ", "three"][:whole])


def test_a_flipped_bit_ends_it_there(disk: MemoryFiles) -> None:
    first = encode_piece(("t1", 0, "text", "one "))
    data = first + encode_piece(("t1", 0, "text", "two "))
    for place in range(len(first) * 8, len(data) * 8):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        disk.put(PATH, bytes(flipped))
        partial = _partial_answer(disk)
        assert partial is not None
        assert partial.text == "one "


def test_the_next_answer_is_written_over_the_one_before(disk: MemoryFiles) -> None:
    trouble = Trouble()
    journal, pen = LiveJournal(PATH, files=WatchedFiles(disk, trouble)), Pen()
    pen.write(prompt("t1"))
    journal.journal_delta("t1", 0, "text", "Let me look.")
    journal.note(pen.write(asking("t1", call())))
    journal.journal_delta("t1", 1, "text", "Well")
    assert _partial_answer(disk) == PartialAnswer(turn_id="t1", call=1, text="Well")
    assert b"look" not in disk.contents[PATH]
    assert "truncate" not in trouble.seen, "that would hold up everybody else"


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_what_is_left_of_an_earlier_answer_is_not_read(disk: MemoryFiles, pieces: int) -> None:
    """Also where a line of it begins right behind the new ones."""
    journal, pen = LiveJournal(PATH, files=disk), Pen()
    pen.write(prompt("t1"))
    for _ in range(3):
        journal.journal_delta("t1", 0, "text", "same")
    journal.note(pen.write(asking("t1", call())))
    for _ in range(pieces):
        journal.journal_delta("t1", 1, "text", "size")
    assert _partial_answer(disk) == PartialAnswer(turn_id="t1", call=1, text="size" * pieces)


def test_what_is_left_of_an_earlier_answer_is_erased_under_a_running_one(
    disk: MemoryFiles,
) -> None:
    journal, pen = LiveJournal(PATH, files=disk), Pen()
    pen.write(prompt("t1"))
    journal.journal_delta("t1", 0, "text", "Let me look. " * 10)
    journal.note(pen.write(asking("t1", call())))
    journal.journal_delta("t1", 1, "text", "Well")
    assert b"look" in disk.contents[PATH]
    journal.drop_stale()
    assert b"look" not in disk.contents[PATH]
    journal.journal_delta("t1", 1, "text", ", yes")
    assert _partial_answer(disk) == PartialAnswer(turn_id="t1", call=1, text="Well, yes")


@pytest.mark.parametrize("end", [answer("t1"), fault("t1")])
def test_once_the_record_holds_the_call_closing_removes_the_file(
    disk: MemoryFiles, end: object
) -> None:
    journal, pen = LiveJournal(PATH, files=disk), Pen()
    pen.write(prompt("t1"))
    journal.journal_delta("t1", 0, "text", "Hel")
    journal.note(pen.write(end))  # type: ignore[arg-type]
    journal.close()
    assert disk.contents == {}
    assert disk.open_files == {}


def test_an_entry_of_another_turn_outdates_nothing(disk: MemoryFiles) -> None:
    journal, pen = LiveJournal(PATH, files=disk), Pen()
    journal.journal_delta("t1", 0, "text", "Hel")
    journal.note(pen.write(prompt("t2")))
    journal.note(pen.write(answer("t2")))
    journal.close()
    assert _partial_answer(disk) == PartialAnswer(turn_id="t1", call=0, text="Hel")


def test_what_still_counts_from_before_stays_until_its_entry_is_there(disk: MemoryFiles) -> None:
    disk.put(PATH, encode_piece(("t1", 0, "text", "Hel")))
    partial = _partial_answer(disk)
    LiveJournal(PATH, files=disk, partial_answer=partial).close()
    assert _partial_answer(disk) == partial
    journal, pen = LiveJournal(PATH, files=disk, partial_answer=partial), Pen()
    pen.write(prompt("t1"))
    journal.note(pen.write(answer("t1")))
    journal.close()
    assert disk.contents == {}


def test_an_unread_journal_is_removed_on_closing(disk: MemoryFiles) -> None:
    disk.put(PATH, encode_piece(("gone", 0, "text", "Hel")))
    LiveJournal(PATH, files=disk).close()
    assert disk.contents == {}


def test_journal_errors_are_logged_once_and_not_raised(
    disk: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    trouble = Trouble()
    journal = LiveJournal(PATH, files=WatchedFiles(disk, trouble))
    for operation in ("open", "truncate", "write"):
        trouble.lasting = {operation: errno.EIO}
        for number in range(3):
            journal.journal_delta(f"t-{operation}", number, "text", "x")
    assert len(caplog.records) == 1
    trouble.lasting = {}
    journal.journal_delta("t9", 0, "text", "heard again")
    assert _partial_answer(disk) == PartialAnswer(turn_id="t9", call=0, text="heard again")


def test_half_a_character_is_not_an_error(disk: MemoryFiles) -> None:
    LiveJournal(PATH, files=disk).journal_delta("t1", 0, "text", "\ud800")
    assert _partial_answer(disk) is None


def test_after_a_piece_that_did_not_fit_nothing_is_joined_on(disk: MemoryFiles) -> None:
    files = AlmostFullFiles(disk, room=150)
    journal = LiveJournal(PATH, files=files)
    journal.journal_delta("t1", 0, "text", "before ")
    journal.journal_delta("t1", 0, "text", "lost " * 10)
    files.room = 10_000
    journal.journal_delta("t1", 0, "text", "after")
    partial = _partial_answer(disk)
    assert partial is not None
    assert partial.text == "before "


def test_the_example_in_the_format_is_read_and_written_as_it_stands() -> None:
    text = (Path(__file__).parents[2] / "storage" / "FORMAT.md").read_text()
    (example,) = re.findall(r"```json-live\n(.*?)```", text, re.DOTALL)
    pieces = list(sound_pieces(example.encode()))
    assert b"".join(map(encode_piece, pieces)) == example.encode()
    partial = PartialAnswer(turn_id="t1", call=0, text="Hi! How ", reasoning="A greeting.")
    assert join_pieces(pieces) == partial
