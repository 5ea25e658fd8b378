"""What a summarizer is told of a conversation, and what its summary may then stand for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.server.context.context_stage import Talk, words

from nplt_server.context.projection import SummaryTask
from nplt_storage.entries import CompactionEntry, EpochEntry

_LEVELS = ("gist", "summary", "live")


def talk_of(sizes: list[int]) -> Talk:
    talk = Talk(budget=None)
    for number, size in enumerate(sizes):
        talk.turn(f"{number} {words(size)}")
    return talk


def asked_of(talk: Talk, room: int | None) -> SummaryTask | None:
    """To tell all turns, if there were room for them."""
    last = talk.history.head_seq
    draft = EpochEntry(reason="asked", summary_through=last)
    return talk.projection.summary_task(None, draft, room=room)


def sum_up(talk: Talk, room: int | None = None) -> CompactionEntry:
    task = asked_of(talk, room)
    assert task is not None
    entry = talk.write(
        CompactionEntry(content="sums", from_seq=task.from_seq, through_seq=task.through_seq)
    )
    assert isinstance(entry, CompactionEntry)
    return entry


@given(
    st.lists(st.integers(1, 120), min_size=1, max_size=12),
    st.lists(st.integers(1, 120), min_size=1, max_size=12),
    st.booleans(),
    st.integers(20, 900),
)
def test_a_summary_replaces_only_the_turns_it_was_given(
    older: list[int], newer: list[int], has_standing: bool, room: int
) -> None:
    talk = talk_of(older)
    standing = sum_up(talk) if has_standing else None
    for size in newer:
        talk.turn(words(size))
    task = asked_of(talk, room)
    if task is None:
        return
    assert task.tokens <= room
    assert (task.shown_summary is not None) == has_standing
    shown = {message.seq for message in task.messages}
    for turn in talk.history.shown_turns:
        assert turn.end is not None
        is_claimed = task.from_seq <= turn.number and turn.end.seq <= task.through_seq
        is_covered = standing is not None and turn.end.seq <= standing.through_seq
        assert not is_claimed or turn.number in shown or is_covered
    levels = [_LEVELS.index(message.level) for message in task.messages]
    assert levels == sorted(levels)


def test_a_summary_request_shows_older_turns_at_lower_levels_before_it_omits_any() -> None:
    talk = talk_of([60] * 20)
    whole = asked_of(talk, None)
    assert whole is not None
    task = asked_of(talk, whole.tokens - 1)
    assert task is not None
    assert not task.leaves_out
    assert (task.from_seq, task.through_seq) == (whole.from_seq, whole.through_seq)
    assert {message.level for message in task.messages} == {"live", "summary", "gist"}
    assert task.tokens > whole.tokens * 3 / 4


def test_what_does_not_fit_at_all_is_left_out_from_the_oldest_on_and_not_claimed() -> None:
    talk = talk_of([60] * 20)
    task = asked_of(talk, 200)
    assert task is not None
    assert task.leaves_out
    assert task.from_seq == task.messages[0].seq > 1
    assert task.through_seq == talk.history.head_seq


def test_a_summary_request_begins_with_the_previous_summary_and_replaces_it() -> None:
    talk = talk_of([60] * 5)
    standing = sum_up(talk)
    for _ in range(5):
        talk.turn(words(60))
    task = asked_of(talk, 250)
    assert task is not None
    assert task.shown_summary is not None
    assert "sums" in task.shown_summary.content
    assert not task.leaves_out
    assert task.from_seq == standing.from_seq
    assert task.messages[0].seq > standing.through_seq


def test_a_summary_request_never_shows_an_omitted_turn_after_a_later_one() -> None:
    talk = talk_of([60] * 20)
    standing = sum_up(talk, 200)
    talk.turn("one more")
    task = asked_of(talk, None)
    assert task is not None
    assert task.from_seq == standing.from_seq > 1
    assert task.messages[0].seq > standing.through_seq


def test_nothing_is_asked_for_where_not_even_the_newest_turn_fits() -> None:
    talk = talk_of([60] * 3)
    assert asked_of(talk, 5) is None
