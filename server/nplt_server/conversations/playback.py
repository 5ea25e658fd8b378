"""What a client is shown that was not there: entries as events, and a replay.

Pure: from history and a running turn to frames. A message never outgrows the
limit of the wire; what is larger travels cut, with its real size. A replay is
bounded too. A client that missed more, or names a place we never were at (it
knew another life of this conversation), is attached all the same and told to
`resync`: to read from the record, page by page, what stands before the head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nplt_protocol.codec import encode_event
from nplt_protocol.events import EntryAdded, Event, TextDelta
from nplt_protocol.requests import Attach
from nplt_server.conversations.household import ConversationLimits
from nplt_server.conversations.turn import Turn
from nplt_server.conversations.voice import Voice
from nplt_storage.conversation.cutting import cut_to_fit
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.facts.entries import Entry
from nplt_storage.facts.lines import entry_as_json

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What goes out between the reply to ATTACH and whatever happens next."""

    frames: bytes
    resync: bool
    """The entries asked for are not in it: the client has to read them itself."""


def replay_of(
    history: ConversationHistory,
    cursor: Attach | None,
    *,
    turn: Turn | None,
    voice: Voice | None,
    limits: ConversationLimits,
) -> Replay:
    said = missed_text(turn, voice, cursor)
    if cursor is None or cursor.after_seq is None:
        return Replay(frames=b"".join(said), resync=False)
    entries = missed_entries(history, cursor.after_seq, limits)
    return Replay(frames=b"".join((entries or []) + said), resync=entries is None)


def missed_entries(
    history: ConversationHistory, after_seq: int, limits: ConversationLimits
) -> list[bytes] | None:
    """`None`: too many, or a place that is not in this record."""
    missed = history.head_seq - after_seq
    if missed < 0 or missed > limits.replay_entries_max:
        return None
    entries = history.entries_after(after_seq)
    if entries is None:
        return None
    frames: list[bytes] = []
    total = 0
    for entry in entries:
        event = entry_event(history.session_id, entry, limits.message_bytes_max)
        frames.append(encode_event(event, message_bytes_max=limits.message_bytes_max))
        total += len(frames[-1])
        if total > limits.replay_bytes_max:
            return None
    return frames


def missed_text(turn: Turn | None, voice: Voice | None, cursor: Attach | None) -> list[bytes]:
    """What was said of the running call, from where the client stands. A place
    we don't hold, or none: the call again from its beginning. Its reasoning
    always comes from the beginning: nobody says how much of it they hold."""
    if turn is None or voice is None or turn.output is None:
        return []
    said = turn.output.text[: voice.offset]
    events = voice.events("reasoning", turn.output.reasoning[: voice.reasoning_offset], 0)
    place = _place_held(turn, cursor)
    if place is not None and place <= len(said):
        events += voice.events("text", said[place:], place)
    else:
        again = voice.events("text", said, 0)
        if place is not None and not again:
            again = [voice.nothing()]  # else the client would keep what it holds
        events += [_marked(event) for event in again]
    return [encode_event(event) for event in events]


def _place_held(turn: Turn, cursor: Attach | None) -> int | None:
    if cursor is None or cursor.turn_id != turn.turn_id or (cursor.call or 0) != turn.call:
        return None
    return cursor.offset or 0


def _marked(event: Event) -> Event:
    """The first delta of a call sent again says so: the client replaces."""
    if isinstance(event, TextDelta) and event.offset == 0:
        return replace(event, replay_from=0)
    return event
