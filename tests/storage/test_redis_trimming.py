"""Where a conversation is cut: whole turns only, and never one that has not ended."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from tests.storage.conversations import Pen, answer, fault, prompt

from nplt_storage.entries import ClearEntry, Entry, RollbackEntry
from nplt_storage.errors import BadEntry
from nplt_storage.redis.trimming import TurnSpans


@st.composite
def conversations(draw: st.DrawFn) -> list[Entry]:
    """Prompts that come while others run, ends in any order, rollbacks between turns."""
    pen = Pen()
    entries: list[Entry] = []
    for number in range(draw(st.integers(1, 25))):
        running = [entry.turn_id or "" for entry in pen.history.unfinished_turns()]
        what = draw(st.sampled_from(["prompt", "end", "end", "fact", "rollback", "undo", "redo"]))
        if what == "end" and running:
            turn_id = draw(st.sampled_from(running))
            entries.append(pen.write(answer(turn_id) if draw(st.booleans()) else fault(turn_id)))
        elif what == "rollback" and not running and pen.history.head_seq > 1:
            to_seq = draw(st.integers(1, pen.history.head_seq - 1))
            entries.append(pen.write(pen.history.rollback_to(to_seq)))
        elif what == "undo" and not running and pen.history.shown_turns:
            turn = draw(st.sampled_from(list(pen.history.shown_turns)))
            assert turn.prompt is not None
            entries.append(pen.write(pen.history.rollback_turns([turn.prompt.turn_id or ""])))
        elif what == "redo" and entries and isinstance(entries[-1], RollbackEntry):
            with suppress(BadEntry):
                entries.append(pen.write(pen.history.redo()))
        elif what == "fact":
            entries.append(pen.write(ClearEntry()))
        else:
            entries.append(pen.write(prompt(f"t{number}")))
    return entries


def spans_of(entries: list[Entry]) -> TurnSpans:
    spans = TurnSpans()
    for entry in entries:
        spans.add(entry)
    return spans


def standing_turns(entries: list[Entry]) -> dict[str, list[int]]:
    """Told the slow way: the entries that stand, by turn."""
    pen = Pen()
    for entry in entries:
        pen.history.add(entry)
    turns: dict[str, list[int]] = {}
    for entry in pen.history.active:
        if entry.turn_id is not None:
            turns.setdefault(entry.turn_id, []).append(entry.seq)
    return turns


@given(conversations(), st.integers(1, 4))
def test_no_standing_turn_is_split_and_enough_are_kept(entries: list[Entry], most: int) -> None:
    first = spans_of(entries).first_to_keep(most)
    turns = standing_turns(entries)
    for seqs in turns.values():
        assert min(seqs) >= first or max(seqs) < first
    pen = Pen()
    for entry in entries:
        pen.history.add(entry)
    kept = {turn_id for turn_id, seqs in turns.items() if min(seqs) >= first}
    unfinished = {entry.turn_id for entry in pen.history.unfinished_turns()}
    assert unfinished <= kept
    if first:
        assert len(kept - unfinished) >= most


@given(conversations(), st.integers(1, 4))
def test_it_makes_no_difference_when_the_older_ones_are_cut_off_before(
    entries: list[Entry], most: int
) -> None:
    at_once, little_by_little = TurnSpans(), TurnSpans()
    first = 0
    for entry in entries:
        if isinstance(entry, RollbackEntry) and first:
            return  # what it takes back may stay one turn longer than it would at once
        at_once.add(entry)
        little_by_little.add(entry)
        if (cut := little_by_little.first_to_keep(most)) > first:
            first = cut
            little_by_little.forget_before(first)
    assert max(first, at_once.first_to_keep(most)) == first


def test_turns_that_do_not_overlap_are_cut_one_by_one() -> None:
    pen = Pen()
    spans = TurnSpans()
    cuts = []
    for number in range(5):
        for draft in (prompt(f"t{number}"), answer(f"t{number}")):
            spans.add(pen.write(draft))
        cuts.append(spans.first_to_keep(2))
    assert cuts == [0, 0, 3, 5, 7]
