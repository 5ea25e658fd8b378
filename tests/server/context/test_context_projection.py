"""From history to context: who sees what, in which order and in how much detail."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace
from tests.server.context.context_stage import Quarters, Talk, calls_in, render_context, words
from tests.storage.conversations import answer_to, call

from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.context.projection import Projection
from nplt_server.context.selection import SHORTENED, EpochPlan, Selection
from nplt_server.context.steps import HIDDEN_RESULT, Measure, message_of, steps_of
from nplt_storage.entries import (
    LIVE_SCREEN,
    BlobReference,
    ClearEntry,
    CompactionEntry,
    EpochEntry,
    LevelOfDetailSections,
    ModelInputEntry,
    ModelOutputEntry,
    QuarantineEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.redaction import redacted
from nplt_storage.turns import Turn


def contents(messages: tuple[ContextMessage, ...] | list[ContextMessage]) -> list[str]:
    """What stands in each message, in short."""
    texts: list[str] = []
    for message in messages:
        match message:
            case SystemMessage():
                texts.append(f"system: {message.instruction}")
            case ModelInputMessage():
                texts.append(message.text)
            case ModelOutputMessage():
                texts.append(message.content)
            case ToolResultsMessage():
                texts += message.texts
    return texts


def shown(talk: Talk, turn_id: str | None = None) -> list[str]:
    return contents(list(talk.projection.context(turn_id).messages))


def test_a_turn_sees_the_instruction_the_turns_before_it_and_its_own_entries() -> None:
    talk = Talk()
    talk.write(SystemInstructionEntry(content="be kind"))
    talk.turn("one", answer="first")
    mine = talk.prompt("two")
    talk.prompt("three", waits=True)
    assert shown(talk, mine) == ["system: be kind", "one", "first", "two"]


def test_turns_stand_in_the_order_they_were_asked_for_and_not_the_one_they_ended_in() -> None:
    talk = Talk()
    running = talk.prompt("one")
    talk.fail(talk.prompt("two", waits=True))
    assert shown(talk, running) == ["one"]
    talk.run(running, answer="first")
    assert shown(talk) == ["one", "first", "two"]


def test_the_prompt_of_a_turn_that_failed_is_shown_and_what_it_failed_of_is_not() -> None:
    talk = Talk()
    talk.fail(talk.prompt("one"))
    assert shown(talk) == ["one"]


def test_a_prompt_taken_back_while_it_waited_is_shown_to_no_model_and_stays_in_the_record() -> None:
    talk = Talk()
    running = talk.prompt("one")
    talk.take_back(talk.prompt("never mind", waits=True))
    talk.run(running, answer="first")
    assert shown(talk) == ["one", "first"]
    assert [turn.number for turn in talk.history.shown_turns] == [1]
    assert "never mind" in [getattr(entry, "content", "") for entry in talk.history.entries]


def test_an_output_whose_tools_still_work_is_shown_once_they_have_answered() -> None:
    talk = Talk()
    mine = talk.prompt("look")
    talk.output(mine, "wait", calls=1)
    assert shown(talk, mine) == ["look"]
    talk.results(mine, "seen")
    assert shown(talk, mine) == ["look", "wait", "seen"]


def test_of_a_quarantined_call_or_its_results_it_is_shown_that_the_tool_ran() -> None:
    for target, contents, given in ((2, "", "seen"), (3, "let me see", HIDDEN_RESULT)):
        talk = Talk()
        mine = talk.prompt("look")
        asked = replace(call(), raw_arguments='{"at": 1}', arguments={"at": 1})
        talk.write(ModelOutputEntry(turn_id=mine, content="let me see", tool_calls=(asked,)))
        talk.results(mine, "seen")
        talk.output(mine, "done")
        talk.write(QuarantineEntry(target_seq=target, code="refused", content="no"))
        assert shown(talk) == ["look", contents, given, "done"]
        (called,) = [call for m in render_context(talk.history) for call in calls_in(m)]
        assert called.arguments == ({} if target == 2 else {"at": 1})


def test_a_quarantine_that_is_lifted_is_none() -> None:
    talk = Talk()
    talk.turn("look", answer="done")
    for lifted in (False, True):
        talk.write(QuarantineEntry(target_seq=1, code="refused", content="no", lifted=lifted))
        assert shown(talk) == (["look", "done"] if lifted else ["done"])


def test_calls_and_results_that_do_not_match_are_shown_as_far_as_they_do() -> None:
    first, second = call(id="c1"), call(id="c2")
    output = ModelOutputEntry(turn_id="t", seq=1, content="", tool_calls=(first, second))
    results = ToolResultsEntry(
        turn_id="t", seq=2, results=(answer_to(call(id="c9")), answer_to(second))
    )
    turn = Turn(number=1, entries=[output, results])
    [(shown_output, shown_results)] = steps_of(turn, ())
    assert isinstance(shown_output, ModelOutputEntry)
    assert isinstance(shown_results, ToolResultsEntry)
    assert shown_output.tool_calls == (second,)
    assert [result.tool_call_id for result in shown_results.results] == ["c2"]


def test_tool_calls_without_results_are_left_out_of_the_context_but_their_text_is_shown() -> None:
    ended = ModelOutputEntry(
        turn_id="t", seq=2, content="I will", tool_calls=(call(),), state="interrupted"
    )
    stray = ToolResultsEntry(turn_id="t", seq=1, results=(answer_to(call()),))
    turn = Turn(number=1, entries=[stray, ended], end=ended)
    assert list(steps_of(turn, ())) == [(replace(ended, tool_calls=()),)]
    blank = replace(ended, content=" ")
    assert list(steps_of(Turn(number=1, entries=[blank], end=blank), ())) == []


def test_what_was_erased_is_shown_as_the_tombstone_it_is() -> None:
    talk = Talk()
    talk.turn(words(90), answer="first")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    entries = [redacted(entry, at) for entry in talk.history.entries]
    assert contents(render_context(ConversationHistory("s1", entries))) == [
        "[redacted]",
        "[redacted]",
    ]


def test_a_window_shows_the_newest_turns_whole() -> None:
    talk = Talk(turns_max=1)
    talk.turn("one")
    talk.turn("two", steps=1, result="seen", answer="second")
    notice = "[Only the last turn of this conversation is shown here.]"
    expected = [notice, "two", "let me see", "seen", "seen", "second", "three"]
    assert shown(talk, talk.prompt("three")) == expected


def test_an_epoch_shows_older_turns_in_less_detail_and_its_screen_before_all_of_them() -> None:
    talk = Talk()
    for name in "abcd":
        talk.note(f"notes of {name}")
        talk.turn(name + words(99))
    talk.write(
        EpochEntry(
            reason="asked", omitted_through=2, gist_through=5, summary_through=8, screen="new notes"
        )
    )
    head, gist, _, summary, _, live, _ = shown(talk)
    assert head == f"{SHORTENED}\n\nnew notes"
    assert gist.startswith("[gist] (gist) b")
    assert summary.startswith("[summary] (summary) c")
    assert live == "d" + words(99)


def test_a_screen_written_in_the_epoch_is_shown_where_it_was_written() -> None:
    talk = Talk()
    talk.turn("one")
    talk.note("tea")
    talk.turn("two", answer="second")
    assert shown(talk) == ["one", "well", "two\n\ntea", "second"]


def test_a_summary_stands_for_the_turns_it_covers_from_the_next_epoch_on() -> None:
    talk = Talk()
    talk.turn("one")
    talk.turn("two")
    talk.write(EpochEntry(reason="asked"))
    talk.write(CompactionEntry(content="they met", from_seq=1, through_seq=3))
    assert shown(talk) == ["one", "well", "two", "well"]
    talk.write(EpochEntry(reason="compaction"))
    head = "## Summary of what came before (entries 1 to 3)\nthey met"
    assert shown(talk) == [head, "two", "well"]
    talk.write(ClearEntry())
    assert "they met" not in "".join(shown(talk))


def test_a_summary_covers_the_turns_that_lie_in_its_range_from_beginning_to_end() -> None:
    compaction = CompactionEntry(content="they met", from_seq=2, through_seq=5)
    selection = Selection(plan=EpochPlan(), compaction=compaction)
    end = ModelOutputEntry(turn_id="t", seq=6, content="well")
    assert not selection.covers(Turn(number=2, end=end))
    assert selection.covers(Turn(number=2, end=replace(end, seq=5)))
    assert not selection.covers(Turn(number=1, end=replace(end, seq=5)))
    assert not selection.covers(Turn(number=2))


def test_a_prompt_not_written_yet_is_shown_as_it_will_be() -> None:
    talk = Talk()
    talk.turn("one", answer="first")
    draft = ModelInputEntry(turn_id="t9", content="two")
    before = talk.projection.context(draft, talk.call_budget)
    talk.write(draft)
    after = talk.projection.context("t9", talk.call_budget)
    assert (
        contents(list(before.messages)) == contents(list(after.messages)) == ["one", "first", "two"]
    )
    assert before.tokens == after.tokens


def test_what_was_given_does_not_change_when_the_conversation_goes_on() -> None:
    talk = Talk()
    talk.turn("one")
    view = talk.projection.context(None)
    before = list(view.messages)
    talk.turn("two")
    assert list(view.messages) == before
    assert view.messages[-1] == before[-1]
    assert list(view.messages[1:]) == before[1:]


def test_a_further_turn_counts_nothing_but_what_is_new() -> None:
    talk = Talk(budget=100_000)
    for _ in range(50):
        talk.turn()
    before = talk.projection.measure.counted
    talk.turn(steps=1)
    # Prompt, output and results; the last answer is counted with the next turn.
    assert talk.projection.measure.counted - before <= 5


def test_no_entry_is_counted_twice_when_the_context_is_rebuilt() -> None:
    talk = Talk(budget=100_000)
    for _ in range(10):
        talk.turn()
    measure = talk.projection.measure
    Projection(talk.history, measure).context(None, talk.call_budget)
    before = measure.counted
    Projection(talk.history, measure).context(None, talk.call_budget)
    assert measure.counted == before


def test_a_measure_remembers_no_more_than_it_may() -> None:
    measure = Measure(Quarters(), remembered_max=2)
    entries = [ModelInputEntry(id=f"e{n}", content="hello") for n in range(3)]
    for entry in (*entries, *entries):
        assert measure.entry(entry, "live").tokens == 6
    assert measure.counted == 6
    measure.entry(entries[-1], "live")
    assert measure.counted == 6


def test_an_entry_that_says_something_else_now_is_counted_again() -> None:
    measure = Measure(Quarters())
    entry = ModelInputEntry(id="e1", content=words(50))
    assert measure.entry(entry, "live").tokens == 54
    assert measure.entry(replace(entry, content="[redacted]"), "live").tokens == 7


def test_with_newest_live_only_the_newest_input_is_shown_in_full() -> None:
    talk = Talk(policy="newest_live")
    talk.note("tea")
    talk.turn("a" + words(99), answer="b" + words(99))
    mine = talk.prompt("c" + words(99))
    texts = shown(talk, mine)
    assert texts[0] == f"{SHORTENED}\n\ntea"
    assert texts[1].startswith("[summary] (summary) a")
    assert texts[2:] == ["b" + words(99), "c" + words(99)]
    assert talk.projection.due_epoch(mine, talk.call_budget) is None


def test_the_screen_comes_with_the_last_result_and_the_results_stay_as_they_were() -> None:
    sections = LevelOfDetailSections(live=(("", "two"),)).with_live_section(LIVE_SCREEN, "tea")
    given = (
        answer_to(call(id="c1"), "one"),
        replace(answer_to(call(id="c2"), "two"), sections=sections),
    )
    message = message_of(ToolResultsEntry(turn_id="t", results=given), "live")
    assert isinstance(message, ToolResultsMessage)
    assert message.texts == ("one", "two\n\ntea")
    assert [result.result for result in message.results] == ["one", "two"]
    at_summary = message_of(ToolResultsEntry(turn_id="t", results=given), "summary")
    assert isinstance(at_summary, ToolResultsMessage)
    assert at_summary.texts == ("one", "two")


def test_a_tool_result_kept_as_a_blob_is_marked_as_shortened() -> None:
    blob = BlobReference(blob_id="b", size=1_000_003, sha256="")
    result = replace(answer_to(call(id="c1"), "abc"), blob=blob)
    message = message_of(ToolResultsEntry(turn_id="t", results=(result,)), "live")
    how = 'read_result reads them, tool_call_id "c1"'
    assert contents([message]) == [f"abc\n[… 1,000,000 bytes more: {how} …]"]


def test_long_arguments_are_shortened_with_the_output_and_stay_an_object() -> None:
    long = replace(
        call(),
        raw_arguments='{"a":"%s","b":1}' % ("x" * 5_000),
        arguments={"a": "x" * 5_000, "b": 1},
    )
    output = ModelOutputEntry(turn_id="t", content="", tool_calls=(long,))
    [live] = calls_in(message_of(output, "live"))
    [gist] = calls_in(message_of(output, "gist"))
    assert live == long
    assert gist.arguments is not None
    assert gist.arguments["b"] == 1
    assert len(gist.raw_arguments) < 250
