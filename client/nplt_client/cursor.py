"""Where a client stands in its conversation: what it has heard, to the letter. Pure.

Every event passes through here. One that was heard before (a replay told it
again) is dropped or cut to its new part; a piece of text from beyond a gap is
dropped too, since the stored entry will bring the whole. So whoever reads
behind a cursor never sees a word twice, nor two words with one missing between
them. When the connection is lost, the cursor says in an ATTACH what is held,
and the server goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from nplt_protocol.events import AgentThought, EntryAdded, Event, TextDelta, TurnFinished
from nplt_protocol.replies import Attached
from nplt_protocol.requests import Attach, Request

_E = TypeVar("_E", TextDelta, AgentThought)


@dataclass(slots=True, kw_only=True)
class Cursor:
    session_id: str
    seq: int = 0
    """The newest entry that was heard."""
    observer: bool = False
    turn_id: str | None = None
    """The turn that speaks, its call, and how much of that call's text is held."""
    call: int = 0
    offset: int = 0
    reasoning: int = 0

    def attach(self) -> Attach:
        is_heard = self.turn_id is not None
        return Attach(
            session_id=self.session_id,
            after_seq=self.seq,
            turn_id=self.turn_id,
            call=self.call if is_heard else None,
            offset=self.offset if is_heard else None,
            observer=self.observer,
        )

    def moved(self, attached: Attached, request: Request | None) -> Cursor:
        """After a reply to ATTACH or SESSION_SWITCH. Entries that were asked for are
        still to come; a call that is told on is still held."""
        asked = request if isinstance(request, Attach) else None
        moved = Cursor(session_id=attached.session_id, seq=attached.head_seq)
        if asked is None:
            return moved
        moved.observer = asked.observer
        if asked.after_seq is not None and not attached.resync:
            moved.seq = asked.after_seq
        if (asked.session_id, asked.turn_id) == (self.session_id, self.turn_id):
            moved.turn_id, moved.call = self.turn_id, self.call
            moved.offset, moved.reasoning = self.offset, self.reasoning
        return moved

    def take(self, event: Event) -> Event | None:
        """The event as it is new here; `None`: nothing of it is."""
        session_id = getattr(event, "session_id", None)
        if session_id is not None and session_id != self.session_id:
            return None
        match event:
            case TextDelta():
                return self._take_text(event)
            case AgentThought(type="reasoning"):
                return self._take_reasoning(event)
            case EntryAdded():
                return self._take_entry(event)
            case TurnFinished() if event.turn_id == self.turn_id:
                self.turn_id = None
            case _:
                pass
        return event

    def _take_entry(self, event: EntryAdded) -> EntryAdded | None:
        seq = event.entry.get("seq")
        if isinstance(seq, int):
            if seq <= self.seq:
                return None
            self.seq = seq
        return event

    def _take_text(self, event: TextDelta) -> TextDelta | None:
        self._listen_to(event.turn_id, event.call)
        if event.replay_from is not None:
            self.offset = event.offset + len(event.text)
            return event
        new = _new_part(event, event.offset, self.offset)
        if new is not None:
            self.offset += len(new.text)
        return new

    def _take_reasoning(self, event: AgentThought) -> AgentThought | None:
        if event.offset is None or event.text is None:
            return event
        self._listen_to(event.turn_id, event.call or 0)
        new = _new_part(event, event.offset, self.reasoning)
        if new is not None:
            self.reasoning += len(new.text or "")
        return new

    def _listen_to(self, turn_id: str, call: int) -> None:
        if (turn_id, call) != (self.turn_id, self.call):
            self.turn_id, self.call = turn_id, call
            self.offset = self.reasoning = 0


def _new_part(event: _E, offset: int, held: int) -> _E | None:
    text = event.text or ""
    if offset > held or offset + len(text) <= held:
        return None
    return event if offset == held else replace(event, offset=held, text=text[held - offset :])
