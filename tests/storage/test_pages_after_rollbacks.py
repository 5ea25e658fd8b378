"""Pages show what stands: what was taken back is neither shown nor read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.conversations import Pen, answer, answering, asking, call, fault, prompt
from tests.storage.test_pages import SOURCES, conversations, from_memory, naive_page, queries

from nplt_storage import ConversationHistory, PageQuery
from nplt_storage.entries import Entry, ForkedEntry, LevelOfDetailSections, ModelInputEntry
from nplt_storage.pages import EntrySource, read_page


@st.composite
def histories(draw: st.DrawFn) -> ConversationHistory:
    pen = Pen(history=ConversationHistory("s1", draw(conversations())))
    for number in range(draw(st.integers(0, 3))):
        for waiting in pen.history.unfinished_turns():
            pen.write(fault(str(waiting.turn_id)))
        if pen.history.head_seq > 1:
            to_seq = draw(st.integers(0, pen.history.head_seq - 1))
            pen.write(pen.history.rollback_to(to_seq))
        turns = [str(turn.entries[0].turn_id) for turn in pen.history.shown_turns]
        undone = draw(st.sampled_from([None, *turns]))
        if undone is not None:
            pen.write(pen.history.rollback_turns([undone]))
        pen.write_all([prompt(f"after {number}"), asking(f"after {number}", call())])
        if draw(st.booleans()):
            pen.write(answering(f"after {number}", call()))
    return pen.history


class Watched:
    """A source that remembers what was read of it."""

    def __init__(self, source: EntrySource) -> None:
        self.head_seq = source.head_seq
        self.read: list[int] = []
        self._source = source

    def before(self, seq: int) -> Iterator[Entry]:
        return self._watch(self._source.before(seq))

    def after(self, seq: int) -> Iterator[Entry]:
        return self._watch(self._source.after(seq))

    def _watch(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        for entry in entries:
            self.read.append(entry.seq)
            yield entry


@pytest.mark.parametrize("source_of", SOURCES)
@settings(max_examples=60)
@given(history=histories(), query=queries)
def test_a_page_is_that_of_a_conversation_without_what_was_taken_back(
    source_of: Any, history: ConversationHistory, query: PageQuery
) -> None:
    source = Watched(source_of(list(history.entries)))
    page = read_page(query, source, history.hidden)
    shown = history.entries if query.view == "entries" else history.active
    if not any(message.get("truncated") for message in page.messages):
        seqs = [message["seq"] for message in page.messages]
        found = (seqs, page.has_more_before, page.has_more_after, page.before, page.after)
        assert found == naive_page(list(shown), query)
    if query.view == "messages":
        rollbacks = {entry.seq for entry in history.entries if entry.kind == "rollback"}
        assert {*source.read} <= {entry.seq for entry in history.active} | rollbacks


def test_results_that_were_taken_back_are_not_joined_in() -> None:
    pen = Pen()
    pen.write_all([prompt("t1"), asking("t1", call()), answering("t1", call()), fault("t1")])
    pen.write(pen.history.rollback_to(2))
    source = from_memory(list(pen.history.entries))
    shown = read_page(PageQuery(), source, pen.history.hidden).messages[-1]["tool_calls"]
    assert [tool_call["status"] for tool_call in shown] == ["pending"]  # type: ignore[union-attr,index,call-overload]
    everything = read_page(PageQuery(view="entries"), source, pen.history.hidden)
    assert [message["seq"] for message in everything.messages] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("way", ["rollback", "fork"])
def test_a_page_reads_no_results_where_there_can_be_none(way: str) -> None:
    pen = Pen()
    pen.write_all([prompt("t1"), asking("t1", call())])
    if way == "fork":
        pen.write(ForkedEntry(from_session_id="s0", at_seq=2))
    else:
        pen.write(fault("t1"))
        pen.write(pen.history.rollback_to(2))
    for number in range(2, 50):
        pen.write_all([prompt(f"t{number}"), answer(f"t{number}")])
    source = Watched(from_memory(list(pen.history.entries)))
    page = read_page(PageQuery(before=3), source, pen.history.hidden)
    assert [message["seq"] for message in page.messages] == [1, 2]
    assert max(source.read) <= 5


def test_a_page_can_be_asked_for_with_less_detail() -> None:
    pen = Pen()
    gist = LevelOfDetailSections(gist=(("", "asks a lot"),))
    pen.write(ModelInputEntry(turn_id="t1", content="a lot " * 100, sections=gist))
    pen.write(answer("t1", "short"))
    page = read_page(PageQuery(detail="gist"), from_memory(list(pen.history.entries)))
    assert [message["content"] for message in page.messages] == ["asks a lot", "short"]
    raw = read_page(
        PageQuery(detail="gist", view="entries"), from_memory(list(pen.history.entries))
    )
    assert raw.messages[0]["content"] == "a lot " * 100
