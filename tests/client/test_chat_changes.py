"""What events become in a chat: changes in order, each once, safe to show."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.client.hostile_bits import BITS, FORBIDDEN
from tests.client.scripted_peer import SESSION, delta, finished, started
from tests.client.staged_server import message_json

from nplt_client.chat.approvals import ApprovalWanted
from nplt_client.chat.changes import (
    Change,
    ChangeQueue,
    EventTranslator,
    NoticeShown,
    Participant,
    PresenceChanged,
    PromptShown,
    TextGrew,
    TextReplaced,
    ToolShown,
    TranscriptOutdated,
    TurnBegan,
    TurnEnded,
    changes_from_history,
    other_participants,
)
from nplt_client.chat.chat_session import TurnStatus
from nplt_client.lines.printed_text import PrintedText
from nplt_client.render.text import safe_json
from nplt_protocol.json_text import JsonObject, JsonValue
from nplt_protocol.messages import (
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
from nplt_protocol.resume import Cursor


def translator() -> EventTranslator:
    return EventTranslator(lambda turn_id: turn_id == "turn-1")


def changes_of(*events: Event) -> list[Change]:
    translate = translator().changes_of
    return [change for event in events for change in translate(event)]


def stored(role: str, text: str) -> EntryAdded:
    content: JsonObject = {"seq": 2, "role": role, "content": text}
    return EntryAdded(session_id=SESSION, turn_id="turn-1", call=0, entry=content)


def test_a_turn_becomes_changes_from_its_prompt_to_its_end() -> None:
    prompt = EntryAdded(
        session_id=SESSION,
        turn_id="turn-1",
        entry={"seq": 7, "role": "user", "content": "hi", "message_id": "m"},
    )
    assert changes_of(
        prompt, started(), delta("good ", 0), stored("assistant", "good day"), finished()
    ) == [
        PromptShown(turn_id="turn-1", text="hi", message_id="m", seq=7, is_mine=True),
        TurnBegan(turn_id="turn-1", model="offline/echo"),
        TextGrew(turn_id="turn-1", call=0, piece="good "),
        TextReplaced(turn_id="turn-1", call=0, text="good day"),
        TurnEnded(turn_id="turn-1", state="completed", input_tokens=1, output_tokens=2),
    ]


@given(st.text(max_size=40), st.data())
def test_replayed_text_deltas_count_once(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [
        delta(text[start:end], start)
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)
    ]
    again = data.draw(st.lists(st.sampled_from(pieces), max_size=4))
    cursor = Cursor(session_id=SESSION)
    new = [one for event in (*pieces, *again) if (one := cursor.take(event)) is not None]
    grown = [change for change in changes_of(*new) if isinstance(change, TextGrew)]
    whole = [change for change in changes_of(delta(text, 0)) if isinstance(change, TextGrew)]
    assert "".join(one.piece for one in grown) == "".join(one.piece for one in whole)


def test_a_call_replayed_from_its_beginning_replaces_the_shown_text() -> None:
    again = TextDelta(
        session_id=SESSION, turn_id="turn-1", call=0, offset=0, text="new", replay_from=0
    )
    assert changes_of(delta("old words", 0), again)[1:] == [
        TextReplaced(turn_id="turn-1", call=0, text="", is_stored=False),
        TextGrew(turn_id="turn-1", call=0, piece="new"),
    ]


def test_the_text_of_a_running_call_can_be_shown_again() -> None:
    events = translator()
    for event in (started(), delta("half an ", 0), delta("answer", 8)):
        list(events.changes_of(event))
    assert events.so_far() == [
        TextReplaced(turn_id="turn-1", call=0, text="half an answer", is_stored=False)
    ]
    list(events.changes_of(finished()))
    assert events.so_far() == []


def test_a_truncated_entry_does_not_shorten_the_streamed_text() -> None:
    cut = EntryAdded(
        session_id=SESSION,
        turn_id="turn-1",
        call=0,
        entry={"role": "assistant", "content": "lo", "truncated": True, "size": 8},
    )
    assert changes_of(delta("long text", 0), cut)[1:] == []


def test_session_events_of_other_clients_become_changes() -> None:
    def happened(event: str, **details: object) -> Event:
        return SessionEvent(session_id=SESSION, event=event, details=details)  # type: ignore[arg-type]

    clients = [{"user": "ada", "client": "bot/1"}]
    participants = (Participant(user="ada", program="bot/1"),)
    assert changes_of(happened("presence", clients=clients)) == [
        PresenceChanged(participants=participants)
    ]
    assert isinstance(changes_of(happened("rolled_back", to_seq=3))[0], TranscriptOutdated)
    assert isinstance(changes_of(happened("cleared"))[0], NoticeShown)
    assert changes_of(happened("quarantined")) != changes_of(happened("released")) != []
    assert changes_of(happened("of a later version")) == []


def test_the_chat_marks_what_is_hidden_and_shows_notices() -> None:
    def event_of(event: str, **details: JsonValue) -> SessionEvent:
        return SessionEvent(session_id=SESSION, event=event, details=details)

    hidden = event_of("quarantined", seq=3, provider="a", part="pictures")
    assert changes_of(hidden) == [
        NoticeShown(text="models of a are not shown the pictures of entry 3, which was refused")
    ]
    again = event_of("released", seq=3)
    assert changes_of(again) == [NoticeShown(text="models are shown entry 3 again")]
    notice = AgentThought(session_id=SESSION, turn_id="t1", type="notice", content="no tools")
    assert changes_of(notice) == [NoticeShown(text="no tools")]


def test_other_participants_are_all_clients_but_this_one() -> None:
    me = Participant(user="me", program="nplt/1")
    ada, bot = Participant(user="ada", program="nplt/1"), Participant(user="me", program="bot/2")
    assert other_participants((me, ada, bot, me), me) == ("ada", "bot/2", "1 more window")
    assert other_participants((me, me, me), me) == ("2 more windows",)
    assert other_participants((), me) == other_participants((me,), me) == ()


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
    return [str(getattr(change, name)) for name in change.__struct_fields__]


@given(hostile)
def test_no_event_brings_a_hostile_character_to_the_screen(text: str) -> None:
    for change in changes_of(*events_full_of(text)):
        for words in words_in(change):
            assert not FORBIDDEN.search(words), change


@given(hostile)
def test_no_stored_message_brings_a_hostile_character_to_the_screen(text: str) -> None:
    call = {"tool_name": text, "tool_call_id": "1", "arguments": {text: text}, "result": text}
    messages = [
        message_json(1, "user", text),
        message_json(2, "assistant", text, reasoning=text, tool_calls=[call], state="failed"),
    ]
    for _, changes in changes_from_history(messages):
        for change in changes:
            assert not any(FORBIDDEN.search(words) for words in words_in(change))


def test_stored_messages_that_a_provider_refuses_are_marked() -> None:
    messages = [
        message_json(1, "user", "one", hidden="box"),
        message_json(2, "assistant", "two", hidden="box, gate", state="completed"),
    ]
    (_, (prompt, *_, end)), *_ = changes_from_history(messages)
    assert isinstance(prompt, PromptShown)
    assert isinstance(end, TurnEnded)
    assert prompt.shown == "one\n[hidden from box]"
    assert end.words == "hidden from box, gate"


def test_tool_arguments_are_shown_exactly_with_control_characters_escaped() -> None:
    shown = safe_json({"path": "a\x1b[2Kb\u202e", "名": "日本"})
    assert shown == '{"path": "a\\u001b[2Kb\\u202e", "名": "日本"}'
    wanted = changes_of(events_full_of("rm -rf /\x1b[1A")[7])[0]
    assert isinstance(wanted, ApprovalWanted)
    assert r"rm -rf /\u001b[1A" in wanted.arguments


def test_a_queued_prompt_is_shown_before_its_own_answer() -> None:
    page = [
        message_json(1, "user", "first", turn_id="a"),
        message_json(2, "user", "second", turn_id="b"),
        message_json(3, "assistant", "to the first", turn_id="a"),
        message_json(4, "assistant", "to the second", turn_id="b"),
    ]
    assert [
        (turn_id, [getattr(change, "text", None) for change in changes])
        for turn_id, changes in changes_from_history(page)
    ] == [("a", ["first", "to the first"]), ("b", ["second", "to the second"])]


def test_a_failed_turn_shows_its_reason_whichever_event_brings_it() -> None:
    error: JsonObject = {"code": "provider_unavailable", "message": "too busy"}
    cut: JsonObject = {"role": "assistant", "content": "half", "state": "failed", "error": error}
    fault: JsonObject = {
        "kind": "fault",
        "state": "failed",
        "code": "provider_unavailable",
        "content": "too busy",
    }
    for event in (
        finished(state="failed", error=error, usage={}),
        EntryAdded(session_id=SESSION, turn_id="turn-1", call=0, entry=cut),
        EntryAdded(session_id=SESSION, turn_id="turn-1", entry=fault),
    ):
        assert changes_of(event)[-1] == TurnEnded(
            turn_id="turn-1", state="failed", error="too busy", error_code="provider_unavailable"
        )


def test_exact_answers_leave_only_answers_unsanitized() -> None:
    hostile = "a\x1b[2Jb\u2028"
    exact = EventTranslator(lambda turn_id: True, exact_answers=True)
    (grew,) = exact.changes_of(delta(hostile, 0))
    (kept,) = exact.changes_of(stored("assistant", hostile + "c"))
    (prompt,) = exact.changes_of(stored("user", hostile))
    assert isinstance(grew, TextGrew)
    assert isinstance(kept, TextReplaced)
    assert isinstance(prompt, PromptShown)
    assert (grew.piece, kept.text) == (hostile, hostile + "c")
    assert not FORBIDDEN.search(prompt.text)


@given(st.text(max_size=40), st.lists(st.integers(0, 40), max_size=4), st.integers(0, 40))
def test_text_replayed_after_a_lost_connection_is_printed_once(
    text: str, places: list[int], lost_at: int
) -> None:
    printed = PrintedText()
    shown = printed.grow(text[: lost_at % (len(text) + 1)])
    shown += printed.begin_again("")
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    for a, b in pairwise(edges):
        shown += printed.grow(text[a:b])
    assert shown + (printed.finish(text) or "") == text == printed.text


def test_a_stored_text_that_differs_from_the_printed_one_is_detected() -> None:
    printed = PrintedText()
    printed.grow("what was streamed")
    assert printed.finish("what is kept") is None
    assert printed.text == "what is kept"


def test_a_tool_call_keeps_its_id_from_its_beginning_to_its_result() -> None:
    begun, ended = changes_of(*events_full_of("now")[5:7])
    assert isinstance(begun, ToolShown)
    assert isinstance(ended, ToolShown)
    assert (begun.tool_call_id, begun.status) == (ended.tool_call_id, "pending")
    assert (ended.status, ended.seconds, ended.result) == ("now", 1.0, "now")


def test_the_turn_status_has_the_running_and_the_queued_turns() -> None:
    turn_status = TurnStatus()
    for turn_id in ("a", "b"):
        turn_status.apply(PromptShown(turn_id=turn_id, text=""))
    turn_status.apply(TurnBegan(turn_id="a", model=""))
    assert (turn_status.running, list(turn_status.waiting)) == ("a", ["b"])
    turn_status.apply(TurnEnded(turn_id="a", state="interrupted", input_tokens=3, output_tokens=4))
    assert (turn_status.running, list(turn_status.waiting)) == (None, ["b"])
    assert (turn_status.input_tokens, turn_status.output_tokens) == (3, 4)


def test_the_change_queue_joins_adjacent_text_deltas() -> None:
    async def gather() -> list[Change]:
        change_queue = ChangeQueue()
        thought = TextGrew(turn_id="a", call=0, piece="hm", kind="reasoning")
        change_queue.add([TextGrew(turn_id="a", call=0, piece=piece) for piece in "abc"])
        change_queue.add([thought, thought, TextGrew(turn_id="a", call=0, piece="d")])
        return change_queue.take()

    assert asyncio.run(gather()) == [
        TextGrew(turn_id="a", call=0, piece="abc"),
        TextGrew(turn_id="a", call=0, piece="hmhm", kind="reasoning"),
        TextGrew(turn_id="a", call=0, piece="d"),
    ]
