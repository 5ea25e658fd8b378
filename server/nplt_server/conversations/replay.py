"""Finds the events that an attaching client missed.

A cursor (ATTACH) names the last entry that a client has received, and how much of the running
call's text. The client is sent the entries after that one and the rest of the text. A client that
missed too much gets `resync` instead, and has to read the history itself.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from nplt_protocol.codec import encode_event
from nplt_protocol.messages import Attach
from nplt_server.conversations.broadcast import entry_event
from nplt_server.conversations.record import ConversationRecord
from nplt_server.conversations.turn_events import TurnEvents

_REPLAY_ENTRIES_MAX: Final = 1_000
_REPLAY_BYTES_MAX: Final = 4 * 1024 * 1024


def missed_events(
    record: ConversationRecord, running: TurnEvents | None, cursor: Attach | None
) -> tuple[bytes, bool]:
    """The frames that the client missed, and whether it must `resync`. It must if it missed too
    much, or names a seq that this record does not have (it knows another copy of this
    conversation, for example from before a backup was restored); then the missed entries are left
    out. `running`: the events of the running turn."""
    entries: list[bytes] | None = []
    if cursor is not None and cursor.after_seq is not None:
        entries = _missed_entries(record, cursor.after_seq)
    text = [] if running is None else _missed_text(running, cursor)
    return b"".join((*(entries or ()), *text)), entries is None


def _missed_entries(record: ConversationRecord, after_seq: int) -> list[bytes] | None:
    """The events of the entries after `after_seq`; `None` if there are too many, or if the seq
    is not in this record."""
    history, row, bytes_max = record.history, record.row, record.broadcast.bytes_max
    lost = row.lost if row is not None else None
    if lost is not None and lost[0] <= after_seq <= lost[1]:
        return None  # the client may know an entry with this seq that a restored backup removed
    missed = history.head_seq - after_seq
    if missed < 0 or missed > _REPLAY_ENTRIES_MAX:
        return None
    entries = history.entries_after(after_seq)
    if entries is None:
        return None
    frames: list[bytes] = []
    total = 0
    for entry in entries:
        event = entry_event(history.session_id, entry, bytes_max)
        frames.append(encode_event(event, message_bytes_max=bytes_max))
        total += len(frames[-1])
        if total > _REPLAY_BYTES_MAX:
            return None
    return frames


def _missed_text(running: TurnEvents, cursor: Attach | None) -> list[bytes]:
    """The output of the running call, from the client's offset on. If the cursor names no
    offset in this call, or one that does not exist, the text is sent from its beginning.
    Reasoning is always sent from its beginning, because cursors have no offset for it."""
    if not running.has_output:
        return []
    text = running.sent_text("text")
    events = running.deltas("reasoning", running.sent_text("reasoning"), 0)
    offset = None
    if cursor and cursor.turn_id == running.turn_id and (cursor.call or 0) == running.call:
        offset = cursor.offset or 0
    if offset is not None and offset <= len(text):
        events += running.deltas("text", text[offset:], offset)
    else:
        from_start = running.deltas("text", text, 0)
        if offset is not None and not from_start:
            from_start = [running.delta("text", "", 0)]  # so that the client drops its text
        # `replay_from` in the first delta tells the client to replace the text it has.
        events += [replace(event, replay_from=0) for event in from_start[:1]] + from_start[1:]
    return [encode_event(event) for event in events]
