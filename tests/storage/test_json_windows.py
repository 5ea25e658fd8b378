"""A conversation is opened at its end: what is read suffices, and is not much more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.conversations import (
    START,
    Pen,
    answer,
    answering,
    asking,
    call,
    clear,
    context_entries,
    counting_ids,
    file_bytes,
    prompt,
)
from tests.storage.file_fakes import MemoryFiles, WatchedFiles

from nplt_storage import ConversationHistory, ConversationRow
from nplt_storage.entries import (
    Entry,
    EpochEntry,
    ModelOutputEntry,
    NotebookEntry,
    RenamedEntry,
    SystemInstructionEntry,
    WidgetEntry,
)
from nplt_storage.files.conversation_file import JsonFile
from nplt_storage.pages import WindowSize, read_end
from nplt_storage.rows import fold_all, new_row

PATH = Path("history/session_20260102_s1.json")
SMALL = WindowSize(bytes=10**9, entries=10)


def _row(entries: Sequence[Entry]) -> ConversationRow:
    return fold_all(new_row("s1", user="local", created_at=START), entries)


def _end_of(entries: Sequence[Entry], enough: WindowSize = SMALL) -> list[Entry]:
    return _watched_end_of(entries, enough)[0]


def _watched_end_of(entries: Sequence[Entry], enough: WindowSize) -> tuple[list[Entry], int]:
    disk = MemoryFiles()
    disk.put(PATH, file_bytes(entries))
    files = WatchedFiles(disk, lambda operation, length: None)
    file = JsonFile(PATH, "s1", files=files, new_id=counting_ids())
    file.settle()
    files.bytes_read = 0
    with file.reading_lines() as (read, tail):
        return read_end(tail.entries(read), _row(entries), enough=enough), files.bytes_read


def _turns(pen: Pen, first: int, last: int) -> None:
    for number in range(first, last):
        pen.write(prompt(f"t{number}", f"question {number}"))
        pen.write(answer(f"t{number}", f"answer {number}"))


def _seqs(entries: Sequence[Entry]) -> list[int]:
    return [entry.seq for entry in entries]


def test_a_short_conversation_is_read_whole() -> None:
    pen = Pen()
    _turns(pen, 0, 4)
    assert _end_of(pen.history.entries) == list(pen.history.entries)
    assert _end_of([]) == []


def test_of_a_long_one_the_end_is_read_and_no_turn_is_split() -> None:
    pen = Pen()
    _turns(pen, 0, 100)
    for number in range(3):
        pen.write(prompt(f"u{number}"))
        pen.write(asking(f"u{number}", call()))
        pen.write(answering(f"u{number}", call()))
        pen.write(answer(f"u{number}", call=1))
    end = _end_of(pen.history.entries)
    assert _seqs(end) == list(range(201, 213)), "ten entries, and the rest of that turn"


def test_a_clear_and_a_little_more_is_far_enough() -> None:
    pen = Pen()
    _turns(pen, 0, 50)
    pen.write(clear())
    _turns(pen, 50, 52)
    enough = WindowSize(bytes=10**9, entries=160)
    assert _seqs(_end_of(pen.history.entries, enough)) == list(range(95, 106))


def test_a_turn_that_has_not_ended_is_there_from_its_prompt_on() -> None:
    pen = Pen()
    _turns(pen, 0, 5)
    pen.write(prompt("waiting"))
    _turns(pen, 5, 40)
    end = _end_of(pen.history.entries)
    assert _seqs(end) == list(range(11, 82))
    history = ConversationHistory("s1", end, row=_row(pen.history.entries))
    assert [entry.turn_id for entry in history.unfinished_turns()] == ["waiting"]


def test_instruction_and_notebook_are_fetched_from_far_back() -> None:
    pen = Pen()
    _turns(pen, 0, 3)
    pen.write(SystemInstructionEntry(content="Be brief."))
    pen.write(NotebookEntry(content="remembered"))
    _turns(pen, 3, 50)
    end = _end_of(pen.history.entries)
    assert _seqs(end) == [7, 8, *range(93, 103)]
    history = ConversationHistory("s1", end, row=_row(pen.history.entries))
    assert (history.system_instruction, history.notebook) == ("Be brief.", "remembered")


def test_the_state_of_each_widget_is_fetched_from_far_back() -> None:
    pen = Pen()
    pen.write(WidgetEntry(widget="todo", state={"items": []}))
    pen.write(WidgetEntry(widget="todo", state={"items": ["milk"]}))
    _turns(pen, 0, 20)
    pen.write(WidgetEntry(widget="clock", state={"zone": "UTC"}))
    _turns(pen, 20, 50)
    end = _end_of(pen.history.entries)
    assert _seqs(end) == [2, 43, *range(94, 104)]
    history = ConversationHistory("s1", end, row=_row(pen.history.entries))
    assert history.widget_state("todo") == {"items": ["milk"]}
    assert history.widget_states == pen.history.widget_states
    assert history.widget_state("never told") is None


def _epoch(omitted: int) -> EpochEntry:
    return EpochEntry(
        reason="budget", omitted_through=omitted, gist_through=omitted, summary_through=omitted
    )


def test_of_an_epoch_all_that_it_shows_is_read_and_a_little_more() -> None:
    pen = Pen()
    _turns(pen, 0, 50)
    pen.write(_epoch(80))
    _turns(pen, 50, 55)
    assert _seqs(_end_of(pen.history.entries)) == list(range(81, 112)), "more than is enough"
    enough = WindowSize(bytes=10**9, entries=160)
    assert _seqs(_end_of(pen.history.entries, enough)) == list(range(81, 112)), "and far less"


def test_an_epoch_that_shows_too_much_is_not_read_whole_but_known() -> None:
    pen = Pen()
    _turns(pen, 0, 5)
    epoch = pen.write(_epoch(2))
    _turns(pen, 5, 100)
    end = _end_of(pen.history.entries)
    assert _seqs(end) == [11, *range(162, 202)]
    history = ConversationHistory("s1", end, row=_row(pen.history.entries))
    assert (history.epoch, history.first_seq) == (epoch, 162)


def test_the_window_at_the_end_begins_at_the_epoch_before_a_rollback() -> None:
    pen = Pen()
    _turns(pen, 0, 50)
    pen.write(_epoch(80))
    _turns(pen, 50, 52)
    pen.write(pen.history.rollback_to(103))
    assert _seqs(_end_of(pen.history.entries)) == list(range(81, 104))


def test_what_was_rolled_back_is_jumped_over_and_not_even_read() -> None:
    pen = Pen()
    _turns(pen, 0, 5)
    _turns(pen, 5, 1000)
    pen.write(pen.history.rollback_to(10))
    _turns(pen, 1000, 1003)
    end, bytes_read = _watched_end_of(pen.history.entries, SMALL)
    assert _seqs(end) == [7, 8, 9, 10, *range(2002, 2008)]
    assert bytes_read < 100_000 < len(file_bytes(pen.history.entries))


def test_a_turn_without_any_prompt_does_not_lead_back_to_the_beginning() -> None:
    pen = Pen()
    _turns(pen, 0, 100)
    stray = ModelOutputEntry(seq=201, id="x", timestamp=START, turn_id="nobody's", content="!")
    pen.history.add(stray)
    _turns(pen, 100, 104)
    assert len(_end_of(pen.history.entries)) == 20


@pytest.mark.parametrize("lines", [300, 1500])
def test_how_much_is_read_does_not_depend_on_how_much_there_is(lines: int) -> None:
    pen = Pen()
    _turns(pen, 0, lines)
    end, bytes_read = _watched_end_of(pen.history.entries, WindowSize(bytes=10_000, entries=10**6))
    assert sum(len(file_bytes([entry])) for entry in end) >= 10_000
    assert bytes_read < 64 * 1024


def _drafts(moves: list[int], pen: Pen) -> Iterator[None]:
    for number, move in enumerate(moves):
        match move % 7:
            case 0 if pen.history.head_seq > 1 and not pen.history.unfinished_turns():
                pen.write(pen.history.rollback_to(1 + move % (pen.history.head_seq - 1)))
            case 1:
                pen.write(clear())
            case 2:
                pen.write(SystemInstructionEntry(content=f"be {number}"))
            case 3:
                pen.write(NotebookEntry(content=f"note {number}"))
                pen.write(WidgetEntry(widget=f"{move % 3}", state={"number": number}))
                pen.write(_epoch(move % pen.history.head_seq))
            case 4:
                pen.write(RenamedEntry(name=f"name {number}"))
            case _:
                _turns(pen, number, number + 1)
        yield


@given(st.lists(st.integers(0, 10**6), max_size=40), st.integers(1, 12), st.booleans())
def test_the_next_turn_sees_the_same_from_the_end_as_from_the_whole(
    moves: list[int], entries_enough: int, waits: bool
) -> None:
    pen = Pen()
    for _ in _drafts(moves, pen):
        pass
    if waits:
        pen.write(prompt("waiting"))
    whole = pen.history
    end = _end_of(whole.entries, WindowSize(bytes=10**9, entries=entries_enough))
    history = ConversationHistory("s1", end, row=_row(whole.entries))
    assert history.head_seq == whole.head_seq
    assert history.message_count == whole.message_count
    assert history.system_instruction == whole.system_instruction
    assert history.notebook == whole.notebook
    assert history.widget_states == whole.widget_states
    assert history.name == whole.name
    assert history.unfinished_turns() == whole.unfinished_turns()
    seen = context_entries(history, "next")
    all_of_it = context_entries(whole, "next")
    assert seen == all_of_it[len(all_of_it) - len(seen) :]
