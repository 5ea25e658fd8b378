"""What a client is shown that was not there: entries as events, and a replay.

Pure: from history and a running turn to events. A message never outgrows the
limit of the wire; what is larger travels cut, with its real size.
"""

from __future__ import annotations

from dataclasses import replace

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.events import EntryAdded, Event, TextDelta
from nplt_protocol.requests import Attach
from nplt_server.household import ConversationLimits
from nplt_server.turn import Turn
from nplt_server.voice import Voice
from nplt_storage.cutting import cut_to_fit
from nplt_storage.entries import Entry
from nplt_storage.history import ConversationHistory
from nplt_storage.lines import entry_as_json

_ENVELOPE_BYTES = 512
"""Room for what stands around an entry in its event."""


def entry_event(session_id: str, entry: Entry, bytes_max: int) -> EntryAdded:
    call = getattr(entry, "call", None)
    return EntryAdded(
        session_id=session_id,
        entry=cut_to_fit(entry_as_json(entry), bytes_max - _ENVELOPE_BYTES),
        turn_id=entry.turn_id,
        call=call,
    )


def missed_entries(
    history: ConversationHistory, after_seq: int, limits: ConversationLimits
) -> list[Event]:
    missed = history.head_seq - after_seq
    if missed > limits.replay_entries_max:
        newest = history.head_seq - limits.replay_entries_max
        raise RequestError(
            ErrorCode.TOO_LARGE,
            f"{missed} entries are too many to replay: read them with HISTORY_REQUEST, "
            f"and attach with an after_seq of at least {newest}",
            field="after_seq",
        )
    return [
        entry_event(history.session_id, entry, limits.message_bytes_max)
        for entry in history.entries[max(0, after_seq) :]
    ]


def missed_text(turn: Turn, voice: Voice, cursor: Attach | None) -> list[Event]:
    """What was said of the running call, from where the client stands. A place
    we don't hold, or none: the call again from its beginning."""
    if turn.output is None:
        return []
    said = turn.output.text[: voice.offset]
    reasoned = turn.output.reasoning[: voice.reasoning_offset]
    same_call = (
        cursor is not None
        and cursor.turn_id == turn.turn_id
        and (cursor.call or 0) == turn.call
        and (cursor.offset or 0) <= len(said)
    )
    start = (cursor.offset or 0) if same_call and cursor is not None else 0
    if same_call:
        return voice.events("text", said[start:], start)
    again = voice.events("text", said, 0)
    return [*voice.events("reasoning", reasoned, 0), *map(_marked, again)]


def _marked(event: Event) -> Event:
    """The first delta of a call sent again says so: the client replaces."""
    if isinstance(event, TextDelta) and event.offset == 0:
        return replace(event, replay_from=0)
    return event
