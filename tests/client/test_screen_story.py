"""What events become on the screen: in order, once, and safe to show."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.client.hostile_bits import BITS, FORBIDDEN
from tests.client.scripted_peer import SESSION, delta, finished, started
from tests.client.staged_server import said

from nplt_client.fullscreen.changes import (
    ApprovalWanted,
    Change,
    OutOfDate,
    PresenceChanged,
    PromptShown,
    ReasoningGrew,
    TextGrew,
    TextStands,
    Told,
    ToolShown,
    TurnBegan,
    TurnEnded,
)
from nplt_client.fullscreen.company import Guest, others
from nplt_client.fullscreen.course import Course
from nplt_client.fullscreen.gathering import Gathering
from nplt_client.fullscreen.retold import retold
from nplt_client.fullscreen.safe_text import safe_json
from nplt_client.fullscreen.story import Story
from nplt_protocol.events import (
    AgentThought,
    ApprovalRequest,
    EntryAdded,
    ErrorReport,
    Event,
    SessionEvent,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from nplt_protocol.json_values import JsonObject


def story() -> Story:
    return Story(lambda turn_id: turn_id == "turn-1")


def told(*events: Event) -> list[Change]:
    teller = story()
    return [change for event in events for change in teller.changes_of(event)]


def stored(role: str, text: str) -> EntryAdded:
    content: JsonObject = {"seq": 2, "role": role, "content": text}
    return EntryAdded(session_id=SESSION, turn_id="turn-1", call=0, entry=content)


def test_a_turn_is_told_from_its_prompt_to_its_end() -> None:
    prompt = EntryAdded(
        session_id=SESSION,
        turn_id="turn-1",
        entry={"seq": 7, "role": "user", "content": "hi", "message_id": "m"},
    )
    assert told(
        prompt, started(), delta("good ", 0), stored("assistant", "good day"), finished()
    ) == [
        PromptShown(turn_id="turn-1", text="hi", message_id="m", seq=7, is_mine=True),
        TurnBegan(turn_id="turn-1", model="offline/echo"),
        TextGrew(turn_id="turn-1", call=0, piece="good "),
        TextStands(turn_id="turn-1", call=0, text="good day"),
        TurnEnded(turn_id="turn-1", state="completed", input_tokens=1, output_tokens=2),
    ]


@given(st.text(max_size=40), st.data())
def test_pieces_that_come_twice_are_told_once(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [
        delta(text[start:end], start)
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)
    ]
    again = data.draw(st.lists(st.sampled_from(pieces), max_size=4))
    grown = [change for change in told(*pieces, *again) if isinstance(change, TextGrew)]
    whole = [change for change in told(delta(text, 0)) if isinstance(change, TextGrew)]
    assert "".join(one.piece for one in grown) == "".join(one.piece for one in whole)


def test_a_call_that_is_told_again_replaces_what_was_shown() -> None:
    again = TextDelta(
        session_id=SESSION, turn_id="turn-1", call=0, offset=0, text="new", replay_from=0
    )
    assert told(delta("old words", 0), again)[1:] == [
        TextStands(turn_id="turn-1", call=0, text="", is_whole=False),
        TextGrew(turn_id="turn-1", call=0, piece="new"),
    ]


def test_what_runs_can_be_told_so_far() -> None:
    teller = story()
    for event in (started(), delta("half an ", 0), delta("answer", 8)):
        teller.changes_of(event)
    assert teller.so_far() == [
        TextStands(turn_id="turn-1", call=0, text="half an answer", is_whole=False)
    ]
    teller.changes_of(finished())
    assert teller.so_far() == []


def test_an_entry_that_was_cut_does_not_take_words_away() -> None:
    cut = EntryAdded(
        session_id=SESSION,
        turn_id="turn-1",
        call=0,
        entry={"role": "assistant", "content": "lo", "truncated": True, "size": 8},
    )
    assert told(delta("long text", 0), cut)[1:] == []


def test_what_others_do_is_told() -> None:
    def happened(event: str, **details: object) -> Event:
        return SessionEvent(session_id=SESSION, event=event, details=details)  # type: ignore[arg-type]

    clients = [{"user": "ada", "client": "bot/1"}]
    guests = (Guest(user="ada", program="bot/1"),)
    assert told(happened("presence", clients=clients)) == [PresenceChanged(guests=guests)]
    assert isinstance(told(happened("rolled_back", to_seq=3))[0], OutOfDate)
    assert isinstance(told(happened("cleared"))[0], Told)
    assert told(happened("quarantined")) != told(happened("released")) != []
    assert told(happened("of a later version")) == []


def test_others_are_everyone_but_ourselves() -> None:
    me = Guest(user="me", program="nplt/1")
    ada, bot = Guest(user="ada", program="nplt/1"), Guest(user="me", program="bot/2")
    assert others((me, ada, bot, me), me) == ("ada", "bot/2", "1 more window")
    assert others((me, me, me), me) == ("2 more windows",)
    assert others((), me) == others((me,), me) == ()


hostile = st.lists(st.sampled_from(BITS), max_size=8).map("".join)


def events_full_of(text: str) -> list[Event]:
    of_turn: dict[str, Any] = {"session_id": SESSION, "turn_id": "turn-1"}
    tool: dict[str, Any] = {"call": 0, "tool_call_id": "1", "tool_name": text}
    return [
        stored("user", text),
        started(),
        AgentThought(**of_turn, type="reasoning", call=0, offset=0, text=text),
        AgentThought(**of_turn, type="thinking", content=text),
        delta(text, 0),
        ToolStarted(**of_turn, **tool, arguments={text: text}),
        ToolFinished(**of_turn, **tool, status=text, duration=1.0, result=text),
        ApprovalRequest(
            **of_turn, approval_id="1", tool_name=text, arguments={"a": text}, expires_at=text
        ),
        SessionEvent(session_id=SESSION, event="renamed", details={"name": text}),
        SessionEvent(session_id=SESSION, event="model", details={"model": text}),
        SessionEvent(session_id=SESSION, event="presence", details={"clients": [{"user": text}]}),
        ErrorReport(code="internal", message=text),
        stored("assistant", text),
        finished(state="failed", error={"message": text}),
    ]


def words_in(change: Change) -> list[str]:
    values = [getattr(change, one.name) for one in fields(change)]
    return [str(value) for value in values]


@given(hostile)
def test_no_event_brings_a_hostile_character_to_the_screen(text: str) -> None:
    for change in told(*events_full_of(text)):
        for words in words_in(change):
            assert not FORBIDDEN.search(words), change


@given(hostile)
def test_no_stored_message_brings_a_hostile_character_to_the_screen(text: str) -> None:
    call = {"tool_name": text, "tool_call_id": "1", "arguments": {text: text}, "result": text}
    messages = [
        said(1, "user", text),
        said(2, "assistant", text, reasoning=text, tool_calls=[call], state="failed"),
    ]
    for _, changes in retold(messages):
        for change in changes:
            assert not any(FORBIDDEN.search(words) for words in words_in(change))


def test_arguments_are_shown_exactly_with_odd_characters_spelled_out() -> None:
    shown = safe_json({"path": "a\x1b[2Kb\u202e", "名": "日本"})
    assert shown == '{"path": "a\\u001b[2Kb\\u202e", "名": "日本"}'
    wanted = told(events_full_of("rm -rf /\x1b[1A")[7])[0]
    assert isinstance(wanted, ApprovalWanted)
    assert r"rm -rf /\u001b[1A" in wanted.arguments


def test_a_prompt_that_waited_stands_before_the_answer_it_waited_for() -> None:
    page = [
        said(1, "user", "first", turn_id="a"),
        said(2, "user", "second", turn_id="b"),
        said(3, "assistant", "to the first", turn_id="a"),
        said(4, "assistant", "to the second", turn_id="b"),
    ]
    assert [
        (turn_id, [getattr(change, "text", None) for change in changes])
        for turn_id, changes in retold(page)
    ] == [("a", ["first", "to the first"]), ("b", ["second", "to the second"])]


def test_a_tool_call_is_one_thing_from_its_beginning_to_its_result() -> None:
    begun, ended = told(*events_full_of("now")[5:7])
    assert isinstance(begun, ToolShown)
    assert isinstance(ended, ToolShown)
    assert (begun.tool_call_id, begun.status) == (ended.tool_call_id, "pending")
    assert (ended.status, ended.seconds, ended.result) == ("now", 1.0, "now")


def test_the_course_knows_what_runs_and_what_waits() -> None:
    course = Course()
    for turn_id in ("a", "b"):
        course.follow(PromptShown(turn_id=turn_id, text=""))
    course.follow(TurnBegan(turn_id="a", model=""))
    assert (course.running, course.waiting) == ("a", ["b"])
    course.follow(TurnEnded(turn_id="a", state="interrupted", input_tokens=3, output_tokens=4))
    assert (course.running, course.waiting) == (None, ["b"])
    assert (course.input_tokens, course.output_tokens) == (3, 4)


def test_neighbouring_pieces_are_joined_until_they_are_taken() -> None:
    async def gather() -> list[Change]:
        gathering = Gathering()
        thought = ReasoningGrew(turn_id="a", call=0, piece="hm")
        gathering.add([TextGrew(turn_id="a", call=0, piece=piece) for piece in "abc"])
        gathering.add([thought, thought, TextGrew(turn_id="a", call=0, piece="d")])
        return await gathering.take()

    assert asyncio.run(gather()) == [
        TextGrew(turn_id="a", call=0, piece="abc"),
        ReasoningGrew(turn_id="a", call=0, piece="hmhm"),
        TextGrew(turn_id="a", call=0, piece="d"),
    ]
