"""Changes that come while a model is answering, or before it was asked, or before a restart."""

from __future__ import annotations

import pytest
from tests.server.context.context_stage import Quarters, Talk, reopened, words

from nplt_server.context.projection import Projection
from nplt_server.context.steps import Measure
from nplt_storage.entries import (
    ClearEntry,
    CompactionEntry,
    Entry,
    ModelOutputEntry,
    QuarantineEntry,
    RollbackEntry,
    SystemInstructionEntry,
)

CHANGES = [
    (ClearEntry(), "clear"),
    (QuarantineEntry(target_seq=1, code="refused", content="no"), "quarantine"),
    (CompactionEntry(content="they met", from_seq=1, through_seq=2), "compaction"),
    (SystemInstructionEntry(content="be brief"), "system"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_a_change_that_lands_while_a_model_answers_begins_an_epoch_once(
    change: Entry, reason: str
) -> None:
    talk = Talk()
    talk.turn()
    mine = talk.prompt()
    talk.call(mine)
    talk.write(change)
    talk.output(mine)
    talk.turn(steps=1)
    talk.turn()
    assert talk.reasons == [reason]


def test_so_does_one_that_lands_after_an_epoch_in_the_turn_that_began_it() -> None:
    talk = Talk()
    talk.turn()
    talk.write(ClearEntry())
    mine = talk.prompt()
    talk.call(mine)
    talk.write(SystemInstructionEntry(content="be brief"))
    talk.output(mine)
    talk.turn()
    talk.turn()
    assert talk.reasons == ["clear", "system"]


def test_what_the_first_call_was_shown_already_begins_nothing() -> None:
    talk = Talk()
    mine = talk.prompt()
    talk.write(SystemInstructionEntry(content="be kind"))
    talk.run(mine, steps=1)
    talk.turn()
    assert talk.reasons == []


@pytest.mark.parametrize("change", [ClearEntry(), SystemInstructionEntry(content="be brief")])
def test_neither_does_a_change_in_an_epoch_in_which_nothing_was_sent_yet(change: Entry) -> None:
    talk = Talk()
    talk.turn()
    talk.write(talk.projection.asked_epoch(talk.call_budget))
    talk.write(change)
    talk.turn()
    talk.turn()
    assert talk.reasons == ["asked"]


def test_but_a_summary_is_shown_by_an_epoch_after_it_whatever_was_sent() -> None:
    talk = Talk()
    talk.turn()
    talk.write(talk.projection.asked_epoch(talk.call_budget))
    talk.write(CompactionEntry(content="they met", from_seq=1, through_seq=2))
    talk.turn()
    talk.turn()
    assert talk.reasons == ["asked", "compaction"]
    assert "they met" in str(talk.requests[-1].messages[0])


def test_inside_a_turn_a_summary_waits_for_the_next_one() -> None:
    talk = Talk()
    talk.turn()
    mine = talk.prompt()
    talk.call(mine)
    talk.output(mine, calls=1)
    talk.write(CompactionEntry(content="they met", from_seq=1, through_seq=2))
    talk.results(mine)
    talk.run(mine, steps=1)
    assert talk.reasons == []
    talk.turn()
    assert talk.reasons == ["compaction"]


@pytest.mark.parametrize("to_seq", [1, 2, 4])
def test_a_rollback_begins_an_epoch_also_after_the_conversation_was_opened_again(
    to_seq: int,
) -> None:
    talk = Talk()
    for _ in range(3):
        talk.turn()
    talk.write(RollbackEntry(to_seq=to_seq))
    history = reopened(talk.history)
    assert history.entries[-1].seq == to_seq
    draft = Projection(history, Measure(Quarters())).due_epoch(None, talk.call_budget)
    assert draft is not None
    assert draft.reason == "rollback"
    assert draft == talk.projection.due_epoch(None, talk.call_budget)


def test_and_only_one() -> None:
    talk = Talk()
    for _ in range(3):
        talk.turn()
    talk.write(RollbackEntry(to_seq=2))
    talk.turn()
    history = reopened(talk.history)
    assert talk.reasons == ["rollback"]
    assert Projection(history, Measure(Quarters())).due_epoch(None, talk.call_budget) is None


def test_the_record_says_what_a_call_was_made_from_and_whether_it_was_trimmed() -> None:
    talk = Talk(budget=20_000)
    for _ in range(5):
        talk.turn(words(90))
    talk.budget = 300
    mine = talk.prompt()
    talk.call(mine)
    talk.note("meanwhile")
    talk.output(mine)
    outputs = [entry for entry in talk.history.entries if isinstance(entry, ModelOutputEntry)]
    sent = [output.sent for output in outputs if output.sent is not None]
    assert [(figures.head_seq, figures.trimmed) for figures in sent[-2:]] == [
        (9, False),
        (11, True),
    ]
