"""Pages in the order of the turns: each prompt with its answer, each message once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.conversations import START, Pen, answer, answering, asking, call, fault, prompt
from tests.storage.test_pages import from_file, from_memory

from nplt_storage import ConversationHistory, MessagePage, PageQuery
from nplt_storage.entries import (
    Entry,
    ModelInputEntry,
    ModelOutputEntry,
    SystemInstructionEntry,
)
from nplt_storage.messages import MessageEntry
from nplt_storage.pages import EntrySource, read_page
from nplt_storage.rows import fold_all, new_row


class QueueOfTurns:
    """Prompts come at any time; turns are answered one after the other, or cancelled
    while they wait, as the server does it."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.pen = Pen()
        self._draw = draw
        self._steps = 0

    def step(self) -> None:
        pen, self._steps = self.pen, self._steps + 1
        queue = [entry.turn_id or "" for entry in pen.history.unfinished_turns()]
        moves = ["prompt", "answer", "answer", "tool", "fail", "cancel", "fact", "undo", "redo"]
        match self._draw(st.sampled_from(moves)):
            case "answer" if queue:
                self._run(queue[0], ends=True)
            case "tool" if queue:
                self._run(queue[0], ends=False)
            case "fail" if queue:
                pen.write(fault(queue[0]))
            case "cancel" if queue:
                pen.write(fault(self._draw(st.sampled_from(queue))))
            case "fact":
                pen.write(SystemInstructionEntry(content="be brief"))
            case "undo" if not queue and pen.history.shown_turns:
                undone = self._draw(st.sampled_from(list(pen.history.shown_turns)))
                assert undone.prompt is not None
                pen.write(pen.history.rollback_turns([undone.prompt.turn_id or ""]))
            case "redo" if not queue and pen.history.hidden:
                if pen.history.hidden[-1][1] == pen.history.head_seq:
                    pen.write(pen.history.rollback_to(pen.history.head_seq - 1))
            case _:
                pen.write(prompt(f"t{self._steps}"))

    def _run(self, turn_id: str, *, ends: bool) -> None:
        history = self.pen.history
        if history.open_tool_calls(turn_id):
            self.pen.write(answering(turn_id, call()))
            return
        turn = history.turn(turn_id)
        number = 0 if turn is None else turn.last_call + 1
        self.pen.write(
            answer(turn_id, call=number) if ends else asking(turn_id, call(), number=number)
        )


@st.composite
def queued_conversations(draw: st.DrawFn) -> list[Entry]:
    turns = QueueOfTurns(draw)
    for _ in range(draw(st.integers(0, 30))):
        turns.step()
    return list(turns.pen.history.entries)


@st.composite
def mixed_conversations(draw: st.DrawFn) -> list[Entry]:
    """Turns whose outputs are mixed, which no server does."""
    pen = Pen()
    for number in range(draw(st.integers(0, 15))):
        running = [entry.turn_id or "" for entry in pen.history.unfinished_turns()]
        turn_id = draw(st.sampled_from([None, *running]))
        if turn_id is not None:
            pen.write(answer(turn_id))
        else:
            pen.write(prompt(f"t{number}"))
    return list(pen.history.entries)


ROLES = st.sampled_from([("user", "assistant"), ("user",), ("user", "assistant", "system")])
SourceOf: TypeAlias = Callable[[list[Entry]], EntrySource]
SOURCES: list[SourceOf] = [from_memory, from_file]


def in_turn_order(entries: list[Entry], roles: tuple[str, ...]) -> list[int]:
    """The definition: prompts, and after each the outputs of its turn."""
    standing = list(ConversationHistory("s1", entries).active)
    prompts = {e.turn_id: e.seq for e in standing if isinstance(e, ModelInputEntry)}
    places: list[tuple[int, int]] = []
    latest = 0
    for entry in standing:
        if isinstance(entry, ModelOutputEntry):
            latest = max(latest, prompts[entry.turn_id])
            place = latest
        else:
            place = entry.seq
        if isinstance(entry, MessageEntry) and entry.role in roles:
            places.append((place, entry.seq))
    return [seq for _, seq in sorted(places)]


def page_of(
    entries: list[Entry], query: PageQuery, source_of: SourceOf = from_memory
) -> MessagePage:
    row = fold_all(new_row("s1", user="u", created_at=START), entries)
    return read_page(query, source_of(entries), row.hidden, row.unfinished)


def seqs(page: MessagePage) -> list[int]:
    return [int(str(message["seq"])) for message in page.messages]


def backward(entries: list[Entry], limit: int, roles: tuple[str, ...]) -> Iterator[list[int]]:
    page = page_of(entries, PageQuery(order="turns", limit=limit, roles=roles))
    yield seqs(page)
    while page.has_more_before:
        query = PageQuery(order="turns", before=page.before, limit=limit, roles=roles)
        page = page_of(entries, query)
        assert page.messages
        yield seqs(page)


@pytest.mark.parametrize("source_of", SOURCES)
@given(entries=queued_conversations() | mixed_conversations(), roles=ROLES)
def test_a_page_of_everything_has_each_prompt_with_its_answers(
    source_of: SourceOf, entries: list[Entry], roles: tuple[str, ...]
) -> None:
    query = PageQuery(order="turns", limit=200, bytes_max=10**9, roles=roles)
    assert seqs(page_of(entries, query, source_of)) == in_turn_order(entries, roles)


@given(entries=queued_conversations())
def test_no_message_of_another_turn_is_between_those_of_a_turn(entries: list[Entry]) -> None:
    page = page_of(entries, PageQuery(order="turns", limit=200, bytes_max=10**9))
    turns = [message["turn_id"] for message in page.messages]
    changes = [turn for place, turn in enumerate(turns) if turns[place - 1 : place] != [turn]]
    assert len(changes) == len(set(turns))


@given(entries=queued_conversations() | mixed_conversations(), limit=st.integers(1, 5), roles=ROLES)
def test_walking_back_gives_every_message_once(
    entries: list[Entry], limit: int, roles: tuple[str, ...]
) -> None:
    pages = list(backward(entries, limit, roles))
    assert [seq for page in reversed(pages) for seq in page] == in_turn_order(entries, roles)


@given(entries=queued_conversations(), limit=st.integers(1, 5), roles=ROLES, data=st.data())
def test_walking_forward_while_it_grows_gives_every_message_once(
    entries: list[Entry], limit: int, roles: tuple[str, ...], data: st.DataObject
) -> None:
    if any(e.kind == "rollback" for e in entries):
        start = len(entries)  # what is taken back meanwhile was shown before
    else:
        start = data.draw(st.integers(0, len(entries)))
    found: list[int] = []
    after = 0
    while True:
        query = PageQuery(order="turns", after=after, limit=limit, roles=roles)
        page = page_of(entries[:start], query)
        found += seqs(page)
        after = page.after
        if not page.has_more_after:
            if start == len(entries):
                break
            start = data.draw(st.integers(start + 1, len(entries)))
    ended = ConversationHistory("s1", entries)
    waiting = {e.seq for e in ended.unfinished_turns()[1:]}
    first = min((e.seq for e in ended.unfinished_turns()), default=10**9)
    expected = [
        seq
        for seq in in_turn_order(entries, roles)
        if seq <= first or entries[seq - 1].role == "assistant"
    ]
    assert found == expected
    assert not waiting & set(found), "they come after the answer that runs"


@given(entries=queued_conversations(), limit=st.integers(1, 5), data=st.data())
def test_reading_on_from_the_newest_page_misses_no_answer(
    entries: list[Entry], limit: int, data: st.DataObject
) -> None:
    if any(entry.kind == "rollback" for entry in entries):
        return
    then = data.draw(st.integers(0, len(entries)))
    page = page_of(entries[:then], PageQuery(order="turns", limit=limit))
    known = set(seqs(page))
    before = set(in_turn_order(entries[:then], ("user", "assistant")))
    while True:
        page = page_of(entries, PageQuery(order="turns", after=page.after, limit=limit))
        known |= set(seqs(page))
        if not page.has_more_after:
            break
    unfinished = [entry.seq for entry in ConversationHistory("s1", entries).unfinished_turns()]
    late = {seq for seq in in_turn_order(entries, ("user", "assistant")) if seq not in before}
    waiting = {seq for seq in late if seq in unfinished[1:] or seq > min(unfinished, default=10**9)}
    outputs = {seq for seq in late if entries[seq - 1].role == "assistant"}
    assert late - (waiting - outputs) <= known


@given(
    entries=queued_conversations() | mixed_conversations(),
    limit=st.integers(1, 9),
    around=st.integers(1, 40),
)
def test_a_page_around_a_message_has_its_neighbours(
    entries: list[Entry], limit: int, around: int
) -> None:
    page = page_of(entries, PageQuery(order="turns", around=around, limit=limit))
    shown = in_turn_order(entries, ("user", "assistant"))
    found = seqs(page)
    if around in shown:
        assert around in found
    place = shown.index(found[0]) if found else 0
    assert found == shown[place : place + len(found)]


@pytest.mark.parametrize("source_of", SOURCES)
def test_a_queued_prompt_is_shown_after_the_answer_that_was_running(source_of: SourceOf) -> None:
    pen = Pen()
    pen.write_all([prompt("t1"), prompt("t2"), answer("t1"), answer("t2")])
    entries = list(pen.history.entries)
    assert seqs(page_of(entries, PageQuery(order="turns"), source_of)) == [1, 3, 2, 4]
    assert seqs(page_of(entries, PageQuery(order="log"), source_of)) == [1, 2, 3, 4]
    newest = page_of(entries, PageQuery(order="turns", limit=2), source_of)
    assert (seqs(newest), newest.before, newest.after) == ([2, 4], 2, 4)
    older = page_of(entries, PageQuery(order="turns", before=2, limit=2), source_of)
    assert (seqs(older), older.has_more_before, older.has_more_after) == ([1, 3], False, True)


def test_a_prompt_that_waits_is_on_the_newest_page_and_its_cursor_leads_to_the_answer() -> None:
    pen = Pen()
    pen.write_all([prompt("t1"), prompt("t2")])
    page = page_of(list(pen.history.entries), PageQuery(order="turns"))
    assert (seqs(page), page.after) == ([1, 2], 1)
    pen.write(answer("t1"))
    page = page_of(list(pen.history.entries), PageQuery(order="turns", after=page.after))
    assert seqs(page) == [3, 2]


def test_a_page_reads_little_of_a_long_conversation() -> None:
    pen = Pen()
    for number in range(500):  # every prompt comes while the one before is answered
        pen.write(prompt(f"t{number}"))
        if number:
            pen.write(answer(f"t{number - 1}"))
    source = from_memory(list(pen.history.entries))
    read: list[int] = []

    class Counted:
        head_seq = source.head_seq

        def before(self, seq: int) -> Iterator[Entry]:
            return self._counted(source.before(seq))

        def after(self, seq: int) -> Iterator[Entry]:
            return self._counted(source.after(seq))

        def _counted(self, entries: Iterator[Entry]) -> Iterator[Entry]:
            for entry in entries:
                read.append(entry.seq)
                yield entry

    for query in (
        PageQuery(order="turns"),
        PageQuery(order="turns", before=500),
        PageQuery(order="turns", after=500),
        PageQuery(order="turns", around=501),
    ):
        read.clear()
        assert len(read_page(query, Counted()).messages) == 20
        assert len(read) < 60, query
