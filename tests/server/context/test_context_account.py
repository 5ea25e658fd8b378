"""For every entry: whether it is shown, how, and if not, why not."""

from __future__ import annotations

from msgspec.structs import replace
from tests.server.context.context_stage import Quarters, Talk, words
from tests.storage.conversations import START

from nplt_server.context.projection import Projection
from nplt_server.context.steps import Measure
from nplt_server.conversations.context_report import EntryReport, report_entries
from nplt_storage.entries import (
    ClearEntry,
    CompactionEntry,
    EpochEntry,
    ForkedEntry,
    ModelInputEntry,
    QuarantineEntry,
    RenamedEntry,
    RollbackEntry,
    SystemInstructionEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.rows import fold_all, new_row


def rows(talk: Talk, turn_id: str | ModelInputEntry | None = None) -> tuple[EntryReport, ...]:
    view = talk.projection.context(turn_id, talk.call_budget)
    reported = report_entries(talk.history, view, turn_id)
    assert sum(row.tokens for row in reported) == view.tokens
    return reported


def reasons(talk: Talk, turn_id: str | None = None) -> list[tuple[int, int, str]]:
    return [(row.seq, row.through_seq, row.reason) for row in rows(talk, turn_id) if row.seq]


def test_what_is_sent_has_a_row_each_and_the_tools_one_of_their_own() -> None:
    talk = Talk(tools_tokens=7)
    talk.write(SystemInstructionEntry(content="be kind"))
    talk.turn("look", steps=1)
    reported = [(row.seq, row.kind, row.role, row.level, row.reason) for row in rows(talk)]
    assert reported == [
        (0, "tools", None, None, "tools"),
        (1, "system_instruction", "system", "live", "system"),
        (2, "model_input", "user", "live", "live"),
        (3, "model_output", "assistant", "live", "live"),
        (4, "tool_results", "tool", "live", "live"),
        (5, "model_output", "assistant", "live", "live"),
    ]
    assert rows(talk)[0].tokens == 7


def test_what_was_taken_back_cleared_or_is_no_business_of_a_model_says_so() -> None:
    talk = Talk()
    talk.turn("one")
    talk.write(RenamedEntry(name="tea"))
    talk.turn("two")
    talk.write(RollbackEntry(to_seq=3))
    talk.write(ClearEntry())
    talk.turn("three")
    assert reasons(talk) == [
        (1, 2, "cleared"),
        (3, 3, "not_for_models"),
        (4, 6, "rolled_back"),
        (7, 7, "not_for_models"),
        (8, 8, "live"),
        (9, 9, "not_for_models"),
        (10, 10, "live"),
    ]


def test_turns_that_wait_or_were_asked_for_later_say_so() -> None:
    talk = Talk()
    mine = talk.prompt("one")
    talk.prompt("two", waits=True)
    talk.fail(talk.prompt("three", waits=True))
    assert reasons(talk, mine) == [(1, 1, "live"), (2, 3, "later"), (4, 4, "not_for_models")]


def test_a_turn_abandoned_by_a_fork_has_that_reason_in_the_report() -> None:
    talk = Talk()
    talk.prompt("one")
    talk.write(ForkedEntry(from_session_id="s0", at_seq=1))
    assert reasons(talk) == [(1, 1, "abandoned"), (2, 2, "not_for_models")]


def test_a_call_that_waits_for_its_results_and_what_a_provider_refused_say_so() -> None:
    talk = Talk()
    talk.turn("one", steps=1)
    talk.write(QuarantineEntry(target_seq=3, code="refused", content="no"))
    mine = talk.prompt("two")
    talk.output(mine, calls=1)
    assert reasons(talk, mine)[:5] == [
        (1, 1, "live"),
        (2, 2, "live"),
        (3, 3, "quarantined"),
        (4, 4, "live"),
        (5, 5, "not_for_models"),
    ]
    assert reasons(talk, mine)[-1] == (7, 7, "unpaired")


def test_what_a_summary_or_a_window_or_the_want_of_room_leaves_out_says_so() -> None:
    talk = Talk(turns_max=3)
    for _ in range(5):
        talk.turn()
    talk.write(CompactionEntry(content="they met", from_seq=5, through_seq=6))
    talk.write(EpochEntry(reason="asked", omitted_through=7, gist_through=7, summary_through=7))
    assert reasons(talk) == [
        (1, 4, "window"),
        (5, 6, "compacted"),
        (7, 8, "omitted"),
        (9, 9, "live"),
        (10, 10, "not_for_models"),
        (11, 11, "live"),
        (12, 12, "head"),
        (13, 13, "head"),
    ]


def test_what_is_cut_out_of_a_trimmed_context_says_so_too() -> None:
    talk = Talk(budget=300)
    mine = talk.prompt(words(400))
    for _ in range(12):
        talk.output(mine, "wait", calls=2)
        talk.results(mine, words(50))
    reported = reasons(talk, mine)
    assert reported[0] == (1, 1, "cut")
    assert reported[1][2] == "omitted"
    assert reported[-1][1:] == (25, "cut")


def test_a_prompt_not_written_yet_has_the_last_row() -> None:
    talk = Talk()
    talk.turn("one")
    draft = ModelInputEntry(turn_id="t9", content="two")
    last = rows(talk, draft)[-1]
    assert (last.seq, last.kind, last.reason) == (3, "model_input", "live")


def test_an_epoch_not_written_yet_is_accounted_for_as_if_it_were() -> None:
    talk = Talk(budget=1_000)
    for _ in range(9):
        talk.turn(words(90))
    draft = ModelInputEntry(turn_id="t99", content=words(400))
    epoch = talk.projection.due_epoch(draft, talk.call_budget, screen="tea")
    assert epoch is not None
    view = talk.projection.context(draft, talk.call_budget, epoch=epoch)
    reported = report_entries(talk.history, view, draft)
    assert [row.reason for row in reported[-2:]] == ["live", "head"]
    assert sum(row.tokens for row in reported) == view.tokens


def test_many_entries_that_are_left_out_make_few_rows() -> None:
    talk = Talk(budget=None)
    for _ in range(100):
        turn_id = talk.prompt()
        talk.output(turn_id)
    entries = list(talk.history.entries)
    row = fold_all(new_row("s1", user="u", created_at=START), entries)
    tail = ConversationHistory("s1", entries[50:], row=row)
    tail.add(
        replace(EpochEntry(reason="asked", omitted_through=199), seq=201, id="e", timestamp=START)
    )
    view = Projection(tail, Measure(Quarters())).context(None)
    reported = [(row.seq, row.through_seq, row.reason) for row in report_entries(tail, view)]
    assert reported == [(1, 50, "not_held"), (51, 200, "omitted"), (201, 201, "not_for_models")]
