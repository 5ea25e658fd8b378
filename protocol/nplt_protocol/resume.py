"""How a client, or a server in its place, resumes a conversation after a gap. No I/O.

It is attached to one conversation and keeps a `Cursor`. After a lost connection,
`Cursor.attach` tells the server what it already has, and the server continues from there. A
turn that has ended by then (`has_ended`) is read from the record: `TurnProgress` takes its
entries and returns its end, and `Cursor.take_stored_text` returns the text that is missing.

The client library decodes each event (`Cursor.take`). An event that was received before is
dropped or cut to its new part. Text from beyond a gap is dropped too; the stored entry contains
it. A reader can therefore append every `TextDelta` it gets: they never overlap or skip, and
`replay_from` restarts the text.

A server that relays events to its client notes them undecoded (`Cursor.note_delta`,
`note_entry`), and resumes for a client that can't do so itself (protocol version 2).
"""

from __future__ import annotations

import sys
from typing import Literal, Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from nplt_protocol.errors import RemoteProtocolError
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    AgentThought,
    Attach,
    Attached,
    EntryAdded,
    Event,
    Request,
    SessionSwitch,
    TextDelta,
    TurnFinished,
    TurnStarted,
)

_E = TypeVar("_E", TextDelta, AgentThought)


class Extent:
    """The number of code points of one call's text that were received. Offsets use the same
    unit."""

    __slots__ = ("length",)

    def __init__(self, length: int = 0) -> None:
        self.length = length

    def take(self, offset: int, text: str, *, replay_from: int | None = None) -> str:
        """Returns the new part of `text`, or "" if all of it was received before or it starts
        beyond a gap. `replay_from` restarts the text there."""
        if replay_from is not None:
            self.length = replay_from
        if offset > self.length:
            return ""
        new = text[self.length - offset :]
        self.length += len(new)
        return new


class UndecodedEvent(Protocol):
    """An event in its encoded form."""

    @property
    def event(self) -> Event:
        """The event, decoded at the first access."""
        ...


TURN_CHARACTERS_MAX = 64 * 1024 * 1024
"""The most text and reasoning a client accepts in one turn. Readers keep it all, and a faulty
server might never stop. The count begins again with each connection."""


class Cursor:
    """How far a receiver has followed one conversation."""

    __slots__ = (
        "_noted_delta",
        "_noted_entry",
        "_seq",
        "asked_for",
        "call",
        "characters",
        "create",
        "observer",
        "reasoning_held",
        "session_id",
        "text_held",
        "turn_id",
    )

    def __init__(self, session_id: str, seq: int = 0) -> None:
        self.session_id = session_id
        self._seq = seq
        self.observer = False
        self.asked_for = ""
        """The id or name by which the conversation was requested."""
        self.create = False
        """Whether the request was to create a missing conversation."""
        self.turn_id: str | None = None
        """The turn whose text is being received."""
        self.call = 0
        """The call of that turn whose text is being received."""
        self.text_held = Extent()
        self.reasoning_held = Extent()
        self.characters = 0
        """The characters of text and reasoning received since the last turn ended."""
        self._noted_delta: UndecodedEvent | None = None
        self._noted_entry: UndecodedEvent | None = None

    @property
    def seq(self) -> int:
        """The seq of the newest entry received."""
        self._decode_noted()
        return self._seq

    def held(self, turn_id: str, call: int) -> int:
        """How many code points of that call's text were received; `sys.maxsize` if a later call
        of the turn has begun, because a call is complete then."""
        self._decode_noted()
        if turn_id != self.turn_id or call > self.call:
            return 0
        return self.text_held.length if call == self.call else sys.maxsize

    def attach(self) -> Attach:
        self._decode_noted()
        has_turn = self.turn_id is not None
        # A restarted server has to create the conversation again while it is empty.
        create = self.create and not self._seq
        return Attach(
            session_id=self.asked_for if create else self.session_id,
            create=create or None,
            after_seq=self._seq,
            turn_id=self.turn_id,
            call=self.call if has_turn else None,
            offset=self.text_held.length if has_turn else None,
            observer=self.observer,
        )

    def after_attach(self, attached: Attached, request: Request | None) -> Cursor:
        """The cursor after a reply to ATTACH or SESSION_SWITCH. The server will send the entries
        after the requested one, and continue the text of a call that is still running."""
        self._decode_noted()
        attach_request = request if isinstance(request, Attach) else None
        new = Cursor(attached.session_id, attached.head_seq)
        if isinstance(request, Attach | SessionSwitch):
            new.asked_for, new.create = request.session_id, bool(request.create)
        if attach_request is None:
            return new
        new.observer = attach_request.observer
        if attach_request.after_seq is not None and not attached.resync:
            new._seq = attach_request.after_seq
        if (attached.session_id, attach_request.turn_id) == (self.session_id, self.turn_id):
            new.turn_id, new.call = self.turn_id, self.call
            new.text_held, new.reasoning_held = self.text_held, self.reasoning_held
        return new

    def take(self, event: Event) -> Event | None:
        """Returns the new part of the event, or `None` if all of it was received before, starts
        beyond a gap, or belongs to another conversation."""
        session_id = getattr(event, "session_id", None)
        if session_id is not None and session_id != self.session_id:
            return None
        match event:
            case TextDelta():
                self._begin_call(event.turn_id, event.call)
                return self._counted(
                    _new_part(self.text_held, event, event.offset, event.replay_from)
                )
            case AgentThought(type="reasoning", offset=int(offset), text=str()):
                self._begin_call(event.turn_id, event.call or 0)
                return self._counted(_new_part(self.reasoning_held, event, offset))
            case EntryAdded() if isinstance(seq := event.entry.get("seq"), int):
                if seq <= self._seq:
                    return None
                self._seq = seq
            case AgentThought(type="retrying") if event.turn_id == self.turn_id:
                self.reasoning_held = Extent()  # the repeated call starts its reasoning at 0
            case TurnFinished():
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
            raise RemoteProtocolError(f"the server's answer does not end (more than {most})")
        return new

    def note_delta(self, delta: UndecodedEvent) -> None:
        """Notes a TEXT_DELTA that the server passes to its client undecoded. These events arrive
        in order, so only the last one is kept; it is decoded when the position is needed."""
        self._noted_delta = delta

    def note_entry(self, entry: UndecodedEvent) -> None:
        """Notes an ENTRY in the same way."""
        self._noted_entry = entry

    def take_stored_text(self, event: EntryAdded) -> TextDelta | None:
        """Returns the part of a stored answer that was not received yet, as a delta. From now on
        it counts as received."""
        content, call = event.entry.get("content"), event.call or 0
        is_output = event.entry.get("kind") == "model_output"
        if not is_output or event.turn_id is None or not isinstance(content, str):
            return None
        offset = self.held(event.turn_id, call)
        if offset >= len(content):
            return None
        self.turn_id, self.call, self.text_held = event.turn_id, call, Extent(len(content))
        return TextDelta(
            session_id=event.session_id,
            turn_id=event.turn_id,
            call=call,
            offset=offset,
            text=content[offset:],
        )

    def _begin_call(self, turn_id: str, call: int) -> None:
        if (turn_id, call) != (self.turn_id, self.call):
            self.turn_id, self.call = turn_id, call
            self.text_held, self.reasoning_held = Extent(), Extent()

    def _decode_noted(self) -> None:
        if self._noted_delta is not None:
            delta, self._noted_delta = self._noted_delta.event, None
            if isinstance(delta, TextDelta):
                self._begin_call(delta.turn_id, delta.call)
                self.text_held.length = delta.offset + len(delta.text)
        if self._noted_entry is not None:
            entry, self._noted_entry = self._noted_entry.event, None
            if isinstance(entry, EntryAdded):
                self._seq = max(self._seq, _seq_of(entry.entry))


def _new_part(held: Extent, event: _E, offset: int, replay_from: int | None = None) -> _E | None:
    before = held.length
    new = held.take(offset, event.text or "", replay_from=replay_from)
    if replay_from is not None or (new and new == event.text):
        return event
    return replace(event, offset=before, text=new) if new else None


Ending: TypeAlias = Literal["completed", "interrupted", "failed"]


class TurnProgress:
    """Follows one turn by its events. Each entry counts once."""

    __slots__ = ("_newest_seq", "_usage", "end", "has_started", "is_over")

    def __init__(self) -> None:
        self.has_started = False
        self.is_over = False
        """Whether TURN_FINISHED was received."""
        self.end: TurnFinished | None = None
        """A TURN_FINISHED built from the entry that ended the turn."""
        self._newest_seq = 0
        self._usage: dict[str, int] = {}

    def apply(self, event: Event) -> bool:
        """Returns False, and changes nothing, for an entry that was received before."""
        match event:
            case EntryAdded():
                seq = event.entry.get("seq")
                if isinstance(seq, int):
                    if seq <= self._newest_seq:
                        return False
                    self._newest_seq = seq
                self._apply_entry(event)
            case TurnStarted():
                self.has_started = True
            case TurnFinished():
                self.is_over = True
            case _:
                pass
        return True

    def _apply_entry(self, event: EntryAdded) -> None:
        entry = event.entry
        usage = entry.get("usage")
        for name, count in usage.items() if isinstance(usage, dict) else ():
            if isinstance(count, int):
                self._usage[name] = self._usage.get(name, 0) + count
        state = _ending(entry)
        if state is None:
            return
        error, reason = entry.get("error"), entry.get("stop_reason")
        if entry.get("kind") == "tool_results":
            reason = "tool_calls"
        instead = entry.get("fallback_from")
        if entry.get("kind") == "fault":
            error = {"code": entry.get("code"), "message": entry.get("content")}
        self.end = TurnFinished(
            session_id=event.session_id,
            turn_id=event.turn_id or "",
            state=state,
            seq=_seq_of(entry),
            usage={**self._usage},
            error=error if isinstance(error, dict) and state != "completed" else None,
            stop_reason=reason if isinstance(reason, str) else None,
            fallback_from=instead if isinstance(instead, dict) else None,
        )


def _ending(entry: JsonObject) -> Ending | None:
    """How the turn ended, or `None` if this entry did not end it."""
    state = entry.get("state")
    if entry.get("kind") == "fault":
        return "failed" if state == "failed" else "interrupted"
    calls = entry.get("tool_calls")
    called = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    if entry.get("kind") == "tool_results":  # the client brings the others with a later prompt
        return "completed" if any(one.get("status") == "pending" for one in called) else None
    # A call that the client runs does not keep the turn going.
    has_own_calls = not all(call.get("by_client") for call in called)
    turn_continues = state == "completed" and (has_own_calls or entry.get("rejected"))
    if entry.get("kind") != "model_output" or turn_continues:
        return None
    match state:
        case "completed" | "failed":
            return state
        case _:
            return "interrupted"


def _seq_of(entry: JsonObject) -> int:
    seq = entry.get("seq")
    return seq if isinstance(seq, int) else 0


def has_ended(turn_id: str, attached: Attached) -> bool:
    """Whether a turn is over: according to the reply to ATTACH, it is neither running nor
    queued."""
    active = attached.active_turn
    is_running = active is not None and active.turn_id == turn_id
    return not is_running and turn_id not in attached.queue
