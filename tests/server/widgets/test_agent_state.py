"""State is what the entries say: checked on the way in, rebuilt by replay, never guessed."""

from __future__ import annotations

from typing import cast

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from msgspec.structs import replace
from tests.server.widgets.widget_lives import Life, events, windows
from tests.server.widgets.widget_stage import INVOCATION, WIDGETS, Stage, moment, now, tool_result

from nplt_protocol.json_text import JsonObject
from nplt_server.context.messages import ModelInputMessage, ModelOutputMessage, ToolResultsMessage
from nplt_server.context.steps import message_of
from nplt_server.conversations.agent_state import AgentState
from nplt_server.conversations.record import ConversationRecord
from nplt_storage.codec import decode_line, encode_line
from nplt_storage.entries import (
    BlobReference,
    DebugEntry,
    Entry,
    LevelOfDetail,
    ModelInputEntry,
    ModelOutputEntry,
    NotebookEntry,
    OutputState,
    SystemInstructionEntry,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.errors import BadEntry
from nplt_storage.history import ConversationHistory

LONG = "A long text that has a summary and a gist. " * 40


def state_of(state: AgentState) -> tuple[str, str, JsonObject, str]:
    return (
        state.system_instruction,
        state.notebook,
        state.widget_state("todo"),
        state.screen(),
    )


class ReadOnlyRecord:
    def __init__(self, history: ConversationHistory) -> None:
        self.history = history


class SlowRecord(ReadOnlyRecord):
    def __init__(self) -> None:
        super().__init__(ConversationHistory("s1"))
        self._lock = anyio.Lock()

    def exclusive(self) -> anyio.Lock:
        return self._lock

    async def append(self, draft: Entry) -> Entry:
        await anyio.lowlevel.checkpoint()
        history, number = self.history, self.history.head_seq + 1
        history.add(history.stamp(draft, id=f"id{number}", timestamp=moment(number)))
        return draft


def reader_of(history: ConversationHistory) -> AgentState:
    return AgentState(cast("ConversationRecord", ReadOnlyRecord(history)), widgets=WIDGETS)


@pytest.fixture
def stage() -> Stage:
    return Stage()


# What may be said


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_a_blank_prompt_is_refused(stage: Stage, text: str) -> None:
    with pytest.raises(BadEntry, match="not blank"):
        stage.ask("t1", text)
    assert stage.history.head_seq == 0


def test_an_output_with_neither_text_nor_calls_is_refused(stage: Stage) -> None:
    stage.ask("t1")
    with pytest.raises(BadEntry, match="text or tool calls"):
        stage.answer("t1", "")
    assert stage.history.head_seq == 1


def test_an_output_that_was_cut_may_be_all_reasoning(stage: Stage) -> None:
    stage.ask("t1")
    draft = ModelOutputEntry(
        turn_id="t1", content="", reasoning="hm", state="interrupted", invocation=INVOCATION
    )
    assert now(stage.state.append_model_output(draft)).seq == 2


@pytest.mark.parametrize("state", ["completed", "interrupted", "failed"])
def test_an_output_that_names_no_model_is_refused(stage: Stage, state: OutputState) -> None:
    stage.ask("t1")
    with pytest.raises(BadEntry, match="names the model"):
        now(
            stage.state.append_model_output(
                ModelOutputEntry(turn_id="t1", content="hi", state=state)
            )
        )
    assert stage.history.head_seq == 1


@pytest.mark.parametrize(
    ("given_ids", "noted"),
    [
        (("c1", "c2"), None),
        (("c1",), "call 'c2' of now has no result"),
        (("c3",), "call 'c1' of now has no result"),
        (("c1", "c2", "c3"), "result 'c3' of now answers none of the calls"),
        (("c2", "c1"), "the results are in another order than their calls"),
        (("c1", "c2", "c1"), "a call has more than one result"),
    ],
)
def test_results_that_do_not_match_their_calls_are_put_right_and_noted(
    stage: Stage, given_ids: tuple[str, ...], noted: str | None
) -> None:
    stage.ask("t1")
    stage.call_tools("t1", "c1", "c2")
    entry = stage.give_results("t1", *given_ids)
    assert [result.tool_call_id for result in entry.results] == ["c1", "c2"]
    assert [result.status for result in entry.results] == [
        "success" if call_id in given_ids else "failed" for call_id in ("c1", "c2")
    ]
    assert entry.metadata == ({} if noted is None else {"tool_result_mismatch": noted})
    debug = [each for each in stage.history.entries if isinstance(each, DebugEntry)]
    words = f"the results of entry {entry.seq} were matched to their calls: {noted}"
    assert [(each.category, each.content) for each in debug] == (
        [] if noted is None else [("history", words)]
    )


def test_an_error_of_the_whole_is_the_result_of_every_call(stage: Stage) -> None:
    stage.ask("t1")
    stage.call_tools("t1", "c1", "c2")
    draft = ToolResultsEntry(turn_id="t1", results=(), execute_error="the machine is off")
    entry = now(stage.state.append_tool_results(draft))
    assert entry.execute_error == "the machine is off"
    assert [(each.status, each.result) for each in entry.results] == [
        ("failed", "the machine is off")
    ] * 2
    assert entry.metadata == {}


def test_neither_results_nor_an_error_is_refused(stage: Stage) -> None:
    stage.ask("t1")
    stage.call_tools("t1", "c1")
    with pytest.raises(BadEntry, match="neither results nor an error"):
        stage.give_results("t1")
    assert stage.history.head_seq == 2


def test_tool_results_without_open_calls_are_refused(stage: Stage) -> None:
    stage.ask("t1")
    with pytest.raises(BadEntry, match="no calls that wait"):
        stage.give_results("t1", "c1")


# What is said with it


def test_summary_and_gist_are_made_when_they_are_asked_for(stage: Stage) -> None:
    prompt = stage.ask("t1", LONG)
    stage.call_tools("t1", "c1")
    results = stage.give_results("t1", "c1", text=LONG)
    answer = stage.answer("t1", LONG, call=1)
    assert prompt.sections is results.results[0].sections is answer.sections is None

    def texts(level: LevelOfDetail) -> list[str]:
        asked, given = message_of(prompt, level), message_of(results, level)
        message = message_of(answer, level)
        assert isinstance(asked, ModelInputMessage)
        assert isinstance(given, ToolResultsMessage)
        assert isinstance(message, ModelOutputMessage)
        return [asked.content, given.results[0].result, message.content]

    assert texts("live") == [LONG] * 3
    for summary, gist in zip(texts("summary"), texts("gist"), strict=True):
        assert len(LONG) > len(summary) > len(gist) > 0


def test_the_summary_of_a_result_kept_elsewhere_knows_how_long_the_whole_is(stage: Stage) -> None:
    stage.ask("t1")
    stage.call_tools("t1", "c1")
    blob = BlobReference(blob_id="b", size=123_456, sha256="b")
    draft = ToolResultsEntry(turn_id="t1", results=(replace(tool_result("c1", LONG), blob=blob),))
    shown = message_of(now(stage.state.append_tool_results(draft)), "summary")
    assert isinstance(shown, ToolResultsMessage)
    assert "123,456" in shown.results[0].result


def test_a_draft_alone_writes_nothing(stage: Stage) -> None:
    stage.state.draft_model_input(ModelInputEntry(turn_id="t1", content="a"))
    assert stage.history.head_seq == 0


# What is changed


def test_a_change_is_an_entry_and_none_is_none(stage: Stage) -> None:
    def add(state: JsonObject) -> JsonObject:
        return {**state, "items": []}

    for _ in range(2):
        now(stage.state.set_system_instruction("be brief"))
        now(stage.state.update_memory_notebook("tea"))
        now(stage.state.update_widget("todo", add))
    kinds = [type(entry) for entry in stage.history.entries]
    assert kinds == [SystemInstructionEntry, NotebookEntry, WidgetEntry]


def test_an_empty_instruction_is_written_first_so_that_no_other_holds(stage: Stage) -> None:
    for _ in range(2):
        now(stage.state.set_system_instruction(""))
    assert [type(entry) for entry in stage.history.entries] == [SystemInstructionEntry]


def test_nothing_is_written_to_say_that_there_is_nothing(stage: Stage) -> None:
    now(stage.state.update_memory_notebook(""))
    now(stage.state.update_widget("todo", lambda state: state))
    assert stage.history.head_seq == 0


def test_a_change_says_in_which_turn_it_was_made(stage: Stage) -> None:
    stage.ask("t1")
    now(stage.state.update_memory_notebook("tea", turn_id="t1"))
    assert stage.history.entries[-1].turn_id == "t1"
    stage.answer("t1")
    with pytest.raises(BadEntry, match="has ended"):
        now(stage.state.update_memory_notebook("too late", turn_id="t1"))


def test_a_change_that_fails_changes_nothing(stage: Stage) -> None:
    def fail(_: object) -> JsonObject:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        now(stage.state.update_widget("todo", fail))
    assert stage.history.head_seq == 0


def test_a_widget_that_is_not_hosted_has_no_state_to_change(stage: Stage) -> None:
    with pytest.raises(BadEntry, match="'clock'"):
        now(stage.state.update_widget("clock", lambda _: {"time": 1}))


def test_who_changes_a_state_it_was_shown_does_not_change_the_entry(stage: Stage) -> None:
    stage.use("todo", action="add", texts=["read"])
    stage.state.widget_state("todo")["items"] = "gone"
    items = stage.state.widget_state("todo")["items"]
    assert isinstance(items, list)
    items.clear()
    assert "1 read" in stage.state.screen()


async def test_two_notes_at_once_both_land() -> None:
    record = SlowRecord()
    state, history = AgentState(cast("ConversationRecord", record), widgets=WIDGETS), record.history
    async with anyio.create_task_group() as together:
        for line in ("one", "two", "three"):
            together.start_soon(state.update_memory_notebook, lambda text, line=line: text + line)
    assert sorted(history.notebook or "") == sorted("onetwothree")
    assert len(history.entries) == 3


def test_the_tools_of_all_widgets_come_in_their_order(stage: Stage) -> None:
    tools = stage.state.enumerate_widget_tools()
    assert [tool.description.name for tool in tools] == ["notebook", "todo"]
    assert {tool.description.tool_class for tool in tools} == {"write"}


# What follows from the entries


@given(events=events)
def test_replay_up_to_any_number_gives_the_state_there_was(events: list[int]) -> None:
    life = Life()
    stage = life.stage
    there = {}
    for event in events:
        life.happens(event)
        there[stage.history.head_seq] = state_of(stage.state)
    for seq, was in there.items():
        replayed = ConversationHistory.replay("s1", stage.history.entries, seq)
        assert state_of(reader_of(replayed)) == was


@given(events=events, turns_max=windows)
def test_replaying_a_recorded_conversation_gives_the_same_entries(
    events: list[int], turns_max: int | None
) -> None:
    life, again = Life(turns_max), Stage(turns_max)
    for event in events:
        life.happens(event)
    for entry in life.stage.history.entries:
        again.put_again(entry)
    recorded = [encode_line(entry) for entry in life.stage.history.entries]
    assert [encode_line(entry) for entry in again.history.entries] == recorded


@given(events=events, turns_max=windows)
def test_the_same_history_gives_the_same_context_to_the_byte(
    events: list[int], turns_max: int | None
) -> None:
    life = Life(turns_max)
    for event in events:
        life.happens(event)
    history, state = life.stage.history, life.stage.state
    read = [decode_line(encode_line(entry)) for entry in history.entries]
    copy = reader_of(ConversationHistory("s1", read, turns_max=turns_max))
    rendered = tuple(state.render_live_context().messages)
    head = history.head_seq
    assert repr(tuple(state.render_live_context().messages)) == repr(rendered)
    assert repr(tuple(copy.render_live_context().messages)) == repr(rendered)
    assert history.head_seq == head
