"""Each row of the table of epoch reasons: when it is due, and what the next context shows."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from tests.server.context.context_stage import Quarters, Talk, reopened, words
from tests.storage.conversations import START

from nplt_server.context.epochs import EPOCH_REASONS, RequestedReason
from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
)
from nplt_server.context.projection import Projection
from nplt_server.context.steps import Measure
from nplt_storage.entries import (
    ClearEntry,
    CompactionEntry,
    ModelOutputEntry,
    OutputPart,
    QuarantineEntry,
    RollbackEntry,
    SystemInstructionEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.rows import fold_all, new_row


def begun(talk: Talk) -> tuple[str | None, list[str]]:
    """The reason of the epoch that the next call begins, and what that call shows. The call
    after it begins none, and a projection made after a restart finds the same reason."""
    turn_id = talk.prompt("now")
    fresh = Projection(reopened(talk.history), Measure(Quarters()))
    due = fresh.due_epoch(turn_id, talk.call_budget)
    before = len(talk.epochs)
    shown = list(map(_text, talk.call(turn_id).messages))
    reasons = talk.reasons[before:]
    assert reasons == ([] if due is None else [due.reason])
    talk.output(turn_id)
    talk.turn()
    assert len(talk.epochs) == before + len(reasons)
    return (reasons[0] if reasons else None), shown


def _text(message: ContextMessage) -> str:
    match message:
        case SystemMessage():
            return message.instruction
        case ModelInputMessage():
            return message.text
        case ModelOutputMessage():
            return message.content
        case _:
            return " ".join(message.texts)


def test_epoch_reason_clear_hides_earlier_turns() -> None:
    talk = Talk()
    talk.turn("one")
    talk.write(ClearEntry())
    assert begun(talk) == ("clear", ["now"])


def test_epoch_reason_rollback_hides_the_turns_that_were_taken_back() -> None:
    talk = Talk()
    talk.turn("one", answer="first")
    talk.turn("two")
    talk.write(RollbackEntry(to_seq=2))
    assert begun(talk) == ("rollback", ["one", "first", "now"])


def test_epoch_reason_quarantine_hides_the_refused_entry() -> None:
    talk = Talk()
    talk.turn("one", answer="first")
    talk.write(QuarantineEntry(target_seq=1, code="refused", content="no"))
    assert begun(talk) == ("quarantine", ["first", "now"])


def test_epoch_reason_system_shows_the_new_system_message() -> None:
    talk = Talk()
    talk.turn("one", answer="first")
    talk.write(SystemInstructionEntry(content="be brief"))
    assert begun(talk) == ("system", ["be brief", "one", "first", "now"])


def test_epoch_reason_compaction_shows_the_summary_instead_of_its_turns() -> None:
    talk = Talk()
    talk.turn("one", answer="first")
    talk.turn("two", answer="second")
    talk.write(CompactionEntry(content="they met", from_seq=1, through_seq=2))
    summary = "## Summary of what came before (entries 1 to 2)\nthey met"
    assert begun(talk) == ("compaction", [summary, "two", "second", "now"])


def test_epoch_reason_tools_begins_with_other_tools_and_shows_the_same_turns() -> None:
    talk = Talk()
    talk.turn("one", answer="first")
    talk.tools_digest = "other tools"
    assert begun(talk) == ("tools", ["one", "first", "now"])


def test_epoch_reason_reach_leaves_out_turns_that_are_not_in_memory() -> None:
    talk = Talk()
    for name in ("one", "two", "three"):
        talk.turn(name, answer=f"{name}!")
    entries = list(talk.history.entries)
    row = fold_all(new_row("s1", user="u", created_at=START), entries)
    talk.pen.history = ConversationHistory("s1", entries[2:], row=row)
    talk.projection = Projection(talk.history, Measure(Quarters()))
    mine = talk.prompt("now")
    messages = talk.call(mine).messages
    assert talk.reasons == ["reach"]
    assert list(map(_text, messages)) == ["two", "two!", "three", "three!", "now"]


def test_epoch_reason_window_leaves_out_the_oldest_turn() -> None:
    talk = Talk(turns_max=1)
    talk.turn("one")
    talk.turn("two", answer="second")
    notice = "[Older turns of this conversation are left out here.]"
    assert begun(talk) == ("window", [notice, "two", "second", "now"])


def test_epoch_reason_budget_shows_older_turns_in_less_detail() -> None:
    talk = Talk(budget=1_000)
    for _ in range(7):
        talk.turn(words(111))
    reason, shown = begun(talk)
    assert reason == "budget"
    assert any(text.startswith(("[summary]", "[gist]")) for text in shown)


def test_epoch_reason_budget_is_not_due_for_a_smaller_window_than_recent_ones() -> None:
    talk = Talk(budget=1_000)
    for _ in range(5):
        talk.turn(words(110))
    talk.budget = 700
    assert begun(talk)[0] is None


def test_epoch_reason_asked_halves_the_tokens_of_older_turns() -> None:
    talk = Talk(budget=20_000)
    for _ in range(20):
        talk.turn(words(90))
    before = talk.projection.context(None, talk.call_budget).tokens
    draft = talk.projection.asked_epoch(talk.call_budget)
    assert draft.reason == "asked"
    talk.write(draft)
    assert talk.projection.context(None, talk.call_budget).tokens <= before / 2
    assert begun(talk)[0] is None


@pytest.mark.parametrize("reason", ["redaction", "pictures"])
def test_epoch_reason_redaction_and_pictures_show_the_same_turns_again(reason: str) -> None:
    talk = Talk()
    talk.turn("one", answer="first")
    talk.write(talk.projection.epoch_for(reason, talk.call_budget))
    assert begun(talk) == (None, ["one", "first", "now"])


def test_epoch_reason_reasoning_drops_the_sealed_reasoning_of_older_outputs() -> None:
    talk = Talk()
    mine = talk.prompt("one")
    talk.call(mine)
    parts = (OutputPart(kind="opaque", data={"sealed": "x"}), OutputPart(kind="text", size=4))
    talk.write(ModelOutputEntry(turn_id=mine, content="well", parts=parts))

    def sealed() -> list[bool]:
        messages = talk.projection.context(None, talk.call_budget).messages
        return [bool(each.parts) for each in messages if isinstance(each, ModelOutputMessage)]

    assert sealed() == [True]
    talk.write(talk.projection.epoch_for("reasoning", talk.call_budget))
    assert sealed() == [False]
    assert begun(talk)[0] is None


def test_every_epoch_reason_has_a_test_by_its_name() -> None:
    tests = [name for name in globals() if name.startswith("test_epoch_reason_")]
    tested = {word for name in tests for word in re.findall(r"[a-z]+", name.replace("_", " "))}
    assert {reason.name for reason in EPOCH_REASONS} <= tested


def test_the_epoch_reasons_begun_by_name_are_those_without_a_predicate() -> None:
    by_name = {reason.name for reason in EPOCH_REASONS if reason.is_due is None}
    assert by_name == set(get_args(RequestedReason))


def test_a_context_of_an_ended_turn_that_the_epoch_leaves_out_does_not_change_the_next() -> None:
    talk = Talk(budget=300)
    first = talk.turn(words(39), answer=words(20))
    second = talk.turn(words(175), answer=words(88))
    for turn_id in (first, second):
        kept = talk.projection.context(turn_id)
        fresh = Projection(talk.history, Measure(Quarters())).context(turn_id)
        assert list(kept.messages) == list(fresh.messages)
