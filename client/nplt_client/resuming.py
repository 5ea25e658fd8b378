"""Taking up a conversation where it was left: ATTACH, and what became of the turns.

The server replays what the cursor lacks. Of a turn that ended meanwhile it
replays the entries, which hold every word, but not the event that says it is
over: the last entry says it too. What is not replayed is read from the record.
"""

from __future__ import annotations

from nplt_client.errors import ProtocolViolation
from nplt_client.line import Line
from nplt_client.listeners import Followed, Listeners
from nplt_client.pending import pending_questions
from nplt_client.retelling import retelling
from nplt_protocol.events import Event, SessionEvent, TurnStarted
from nplt_protocol.replies import Attached, HistoryPage, MessageRange, Receipt
from nplt_protocol.requests import Attach


async def take_up(line: Line, place: Attach, listeners: Listeners, *, timeout: float) -> None:
    """Everyone who listens has missed nothing, or been told so, when it returns."""
    attached = await line.request(place, timeout=timeout)
    if not isinstance(attached, Attached):
        raise ProtocolViolation(f"the server answered ATTACH with {attached!r}")
    if attached.resync:
        listeners.put_to_feeds(
            SessionEvent(
                session_id=attached.session_id,
                event="lagged",
                details={"head_seq": attached.head_seq},
            )
        )
    for question in pending_questions(attached):
        listeners.put(question)
    for turn in listeners.turns:
        if turn.session_id == attached.session_id and not turn.is_over:
            await _catch_up(line, turn, attached, timeout=timeout)


async def _catch_up(line: Line, turn: Followed, attached: Attached, *, timeout: float) -> None:
    active = attached.active_turn
    if active is not None and active.turn_id == turn.turn_id:
        if not turn.has_started:
            turn.put(
                TurnStarted(
                    session_id=turn.session_id,
                    turn_id=turn.turn_id,
                    seq=turn.prompt_seq,
                    model=active.model,
                )
            )
        if attached.resync:
            await tell_again(line, turn, is_over=False, timeout=timeout)
    elif turn.turn_id not in attached.queue:
        await tell_end(line, turn, timeout=timeout)


async def tell_end(line: Line, turn: Followed, *, timeout: float) -> None:
    if turn.story.end is None:
        await tell_again(line, turn, is_over=True, timeout=timeout)
    else:
        turn.put(turn.story.end)


async def tell_again(line: Line, turn: Followed, *, is_over: bool, timeout: float) -> None:
    receipt = Receipt(
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        seq=turn.prompt_seq,
        message_id=None,
        position=0,
        state="",
    )
    for event in await read_again(line, receipt, is_over=is_over, timeout=timeout):
        turn.put(event)


async def read_again(line: Line, receipt: Receipt, *, is_over: bool, timeout: float) -> list[Event]:
    story = retelling(receipt, is_over=is_over)
    try:
        request = next(story)
        while True:
            reply = await line.request(request, timeout=timeout)
            if not isinstance(reply, HistoryPage | MessageRange):
                raise ProtocolViolation(f"the server answered HISTORY_REQUEST with {reply!r}")
            request = story.send(reply)
    except StopIteration as told:
        events: list[Event] = told.value
        return events
