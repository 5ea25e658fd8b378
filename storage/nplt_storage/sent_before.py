"""Recognizes a prompt that is sent again, by the stored entries of the first one."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from nplt_storage.active_entries import ActiveEntries, is_in
from nplt_storage.entries import Entry, ModelInputEntry
from nplt_storage.rows import Ranges
from nplt_storage.turns import TurnState


class SentBefore(Struct, frozen=True, kw_only=True):
    """The stored prompt that is sent again. A prompt runs only once, however long ago that was,
    and even if it was rolled back. The sender gets the state of its turn, which is found by reading
    from the prompt to the end of the turn."""

    seq: int
    turn_id: str
    state: TurnState
    text: str | None
    """`None` if it was trimmed."""
    body_sha256: str | None = None
    """The digest of the request that brought it."""


def sent_before(
    entries: Iterable[Entry], *, message_id: str | None = None, hidden: Ranges = ()
) -> SentBefore | None:
    """The prompt that the entries begin with, and the state of its turn; `None` if they begin with
    another entry or its message id differs."""
    following = iter(entries)
    prompt = next(following, None)
    if not isinstance(prompt, ModelInputEntry) or message_id not in (None, prompt.message_id):
        return None
    read = ActiveEntries([prompt])
    turn = read.turns.get(prompt.turn_id)
    state: TurnState = "completed"
    if turn is not None:
        for entry in following:
            read.add(entry)
            if turn.is_over:
                break
        state = turn.state
        if turn.end and is_in(hidden, turn.end.seq) and not is_in(hidden, prompt.seq):
            state = "interrupted"  # a rollback hides the end of the turn, but not its prompt
    turn_id = prompt.turn_id or ""
    return SentBefore(
        seq=prompt.seq,
        turn_id=turn_id,
        state=state,
        text=prompt.content,
        body_sha256=prompt.body_sha256,
    )
