"""Tracks what a client has received, and rebuilds what it missed. Pure.

Every event passes through the `Cursor`. One that was received before (a replay sends it
again) is dropped or cut to its new part. A piece of text from beyond a gap is dropped
too, since the stored entry will bring the whole. So whoever reads behind a cursor can
append each `TextDelta` to the text of its call: none overlaps, none leaves a gap, and one
with `replay_from` starts that text again. When the connection is lost, the cursor says
in an ATTACH what is held, and the server continues from there.

`Extent` is the one rule for placing a piece by its offset. `ReceivedTurn` uses it once
more, because it may be given a turn from the middle on (a prompt whose `message_id` ran
before). `join_deltas` is the rule for joining pieces that wait for a slow reader.
`replay_from_record` asks for the stored entries of a turn whose events were missed and
gives them as events. `PageGuard` stops at a server whose list has no end.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal, TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from nplt_client.errors import ProtocolViolation
from nplt_protocol import messages
from nplt_protocol.json_text import JsonObject

_E = TypeVar("_E", messages.TextDelta, messages.AgentThought)

T = TypeVar("T")
AnyReply: TypeAlias = "messages.Reply | JsonObject"
Steps: TypeAlias = "Generator[messages.Request, AnyReply, T]"
"""Yields requests, is sent their replies, and gives a result."""

JOINED_CHARACTERS_MAX = 4_096
TURN_CHARACTERS_MAX = 64 * 1024 * 1024
"""Of text and reasoning that are on their way. Readers keep them all, and a server might never
end them."""


class Extent:
    """How much of one call's text is held, in code points, as offsets count it."""

    __slots__ = ("length",)

    def __init__(self) -> None:
        self.length = 0

    def take(self, offset: int, text: str, *, replay_from: int | None = None) -> str:
        """The part that continues what is held. Nothing of a piece that was held before,
        nor of one from beyond a gap. With `replay_from`, the text begins again there."""
        if replay_from is not None:
            self.length = replay_from
        if offset > self.length:
            return ""
        new = text[self.length - offset :]
        self.length += len(new)
        return new


def join_deltas(last: messages.Event, event: messages.Event) -> messages.TextDelta | None:
    """Both as one event, if the second continues the first and the result stays small."""
    if (
        isinstance(last, messages.TextDelta)
        and isinstance(event, messages.TextDelta)
        and (event.turn_id, event.call) == (last.turn_id, last.call)
        and event.offset == last.offset + len(last.text)
        and event.replay_from is None
        and len(last.text) < JOINED_CHARACTERS_MAX
    ):
        return replace(last, text=last.text + event.text)
    return None


class Cursor(Struct, kw_only=True):
    session_id: str
    seq: int = 0
    """The newest entry that was received."""
    observer: bool = False
    asked_for: str = ""
    """The id or name by which the conversation was asked for."""
    create: bool = False
    """It was to be made if it was not there."""
    turn_id: str | None = None
    """The turn that sends text, its call, and how much of that call's text is held."""
    call: int = 0
    text: Extent = field(default_factory=Extent)
    reasoning: Extent = field(default_factory=Extent)
    characters: int = 0
    """How many were passed on since a turn has ended."""

    def attach(self) -> messages.Attach:
        has_turn = self.turn_id is not None
        # As long as nothing was said there, a server that was restarted has to make it again.
        create = self.create and not self.seq
        return messages.Attach(
            session_id=self.asked_for if create else self.session_id,
            create=create or None,
            after_seq=self.seq,
            turn_id=self.turn_id,
            call=self.call if has_turn else None,
            offset=self.text.length if has_turn else None,
            observer=self.observer,
        )

    def moved(self, attached: messages.Attached, request: messages.Request | None) -> Cursor:
        """The cursor after a reply to ATTACH or SESSION_SWITCH. Entries that were asked for
        are still to come; the text of a call that goes on is still held."""
        asked = request if isinstance(request, messages.Attach) else None
        moved = Cursor(session_id=attached.session_id, seq=attached.head_seq)
        if isinstance(request, messages.Attach | messages.SessionSwitch):
            moved.asked_for, moved.create = request.session_id, bool(request.create)
        if asked is None:
            return moved
        moved.observer = asked.observer
        if asked.after_seq is not None and not attached.resync:
            moved.seq = asked.after_seq
        if (attached.session_id, asked.turn_id) == (self.session_id, self.turn_id):
            moved.turn_id, moved.call = self.turn_id, self.call
            moved.text, moved.reasoning = self.text, self.reasoning
        return moved

    def take(self, event: messages.Event) -> messages.Event | None:
        """The new part of the event; `None`: all of it was received before."""
        session_id = getattr(event, "session_id", None)
        if session_id is not None and session_id != self.session_id:
            return None
        match event:
            case messages.TextDelta():
                self._begin_call(event.turn_id, event.call)
                return self._counted(_new_part(self.text, event, event.offset, event.replay_from))
            case messages.AgentThought(type="reasoning", offset=int(offset), text=str()):
                self._begin_call(event.turn_id, event.call or 0)
                return self._counted(_new_part(self.reasoning, event, offset))
            case messages.EntryAdded() if isinstance(seq := event.entry.get("seq"), int):
                if seq <= self.seq:
                    return None
                self.seq = seq
            case messages.TurnFinished():
                self.characters = 0
                if event.turn_id == self.turn_id:
                    self.turn_id = None
            case _:
                pass
        return event

    def _counted(self, new: _E | None) -> _E | None:
        self.characters += len(new.text or "") if new is not None else 0
        if self.characters > TURN_CHARACTERS_MAX:
            most = f"{TURN_CHARACTERS_MAX:,} characters"
            raise ProtocolViolation(f"the server sends an answer without end (more than {most})")
        return new

    def _begin_call(self, turn_id: str, call: int) -> None:
        if (turn_id, call) != (self.turn_id, self.call):
            self.turn_id, self.call = turn_id, call
            self.text, self.reasoning = Extent(), Extent()


def _new_part(held: Extent, event: _E, offset: int, replay_from: int | None = None) -> _E | None:
    before = held.length
    new = held.take(offset, event.text or "", replay_from=replay_from)
    if replay_from is not None or (new and new == event.text):
        return event
    return replace(event, offset=before, text=new) if new else None


ENDED = frozenset({"completed", "interrupted", "failed"})
"""States of a receipt after which no event of its turn will come."""

PAGES_MAX = 50
ENTRIES_PER_PAGE = 100

Ending: TypeAlias = Literal["completed", "interrupted", "failed"]


def replay_from_record(
    session_id: str, turn_id: str, prompt_seq: int, *, is_over: bool
) -> Steps[list[messages.Event]]:
    """The stored entries of a turn, as events.

    Entries that were cut to fit a page are read until they are whole. A turn that
    `is_over` also gets its end, or, if the record does not hold that, an end that says so.
    """
    events: list[messages.Event] = []
    outcome = TurnOutcome()
    cursor = prompt_seq
    for _ in range(PAGES_MAX):
        page = yield messages.HistoryRequest(
            session_id=session_id, after=cursor, limit=ENTRIES_PER_PAGE, view="entries"
        )
        if not isinstance(page, messages.HistoryPage):
            raise ProtocolViolation(f"the server answered HISTORY_REQUEST with {page!r}")
        for entry in page.messages:
            if entry.get("turn_id") != turn_id:
                continue
            whole = yield from _read_whole(session_id, entry)
            call = whole.get("call")
            event = messages.EntryAdded(
                session_id=session_id,
                turn_id=turn_id,
                call=call if isinstance(call, int) else None,
                entry=whole,
            )
            events.append(event)
            outcome.take(event)
            if (end := outcome.end) is not None:
                return [*events, end] if is_over else events
        if not page.page.has_more_after or page.page.after <= cursor:
            break
        cursor = page.page.after
    if not is_over:
        return events
    message = "the turn is over, and the record does not say how it ended"
    unknown_end = messages.TurnFinished(
        session_id=session_id,
        turn_id=turn_id,
        state="interrupted",
        seq=cursor,
        error={"code": "unavailable", "message": message},
    )
    return [*events, unknown_end]


class TurnOutcome:
    """How a turn ended, read from its entries; `end` is what TURN_FINISHED would say."""

    __slots__ = ("_usage", "end")

    def __init__(self) -> None:
        self.end: messages.TurnFinished | None = None
        self._usage: dict[str, int] = {}

    def take(self, event: messages.EntryAdded) -> None:
        entry = event.entry
        usage = entry.get("usage")
        for name, count in usage.items() if isinstance(usage, dict) else ():
            if isinstance(count, int):
                self._usage[name] = self._usage.get(name, 0) + count
        state = _ending(entry)
        if state is None:
            return
        error = entry.get("error")
        if entry.get("kind") == "fault":
            error = {"code": entry.get("code"), "message": entry.get("content")}
        self.end = messages.TurnFinished(
            session_id=event.session_id,
            turn_id=event.turn_id or "",
            state=state,
            seq=_seq(entry),
            usage={**self._usage},
            error=error if isinstance(error, dict) and state != "completed" else None,
        )


def _ending(entry: JsonObject) -> Ending | None:
    """How the turn ended, if this is the entry that ended it."""
    state = entry.get("state")
    if entry.get("kind") == "fault":
        return "failed" if state == "failed" else "interrupted"
    goes_on = state == "completed" and (entry.get("tool_calls") or entry.get("rejected"))
    if entry.get("kind") != "model_output" or goes_on:
        return None
    match state:
        case "completed" | "failed":
            return state
        case _:
            return "interrupted"


def _read_whole(session_id: str, entry: JsonObject) -> Steps[JsonObject]:
    """The entry with all of its content."""
    content, size = entry.get("content"), entry.get("size")
    if not (entry.get("truncated") and isinstance(content, str) and isinstance(size, int)):
        return entry
    while len(content) < size:
        part = yield messages.HistoryRequest(
            session_id=session_id, seq=_seq(entry), offset=len(content), limit=1
        )
        if not isinstance(part, messages.MessageRange):
            raise ProtocolViolation(f"the server answered HISTORY_REQUEST with {part!r}")
        if not part.content:
            return {**entry, "content": content}
        content += part.content
    return {name: value for name, value in entry.items() if name != "truncated"} | {
        "content": content
    }


def _seq(entry: JsonObject) -> int:
    seq = entry.get("seq")
    return seq if isinstance(seq, int) else 0


LIST_PAGES_MAX = 10_000


class PageGuard:
    """Walks a list page by page; refuses a cursor that comes twice, and too many pages."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def next_page(self, next_cursor: str | None) -> str | None:
        """Where to go on; `None`: that was the last page."""
        if next_cursor is None:
            return None
        if next_cursor in self._seen or len(self._seen) >= LIST_PAGES_MAX:
            raise ProtocolViolation("the server's list has no end")
        self._seen.add(next_cursor)
        return next_cursor
