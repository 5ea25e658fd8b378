"""A prompt that comes a second time: what is known of the first.

What is sent twice runs once, however long ago that was, and whether it was taken
back meanwhile. Its sender is told how the turn stands: that is found by going on
from the prompt until the turn is over, and no further.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nplt_storage.conversation.standing import Ranges, is_in
from nplt_storage.conversation.turns import Turn, Turns, TurnState
from nplt_storage.facts.entries import Entry, ModelInputEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBefore:
    seq: int
    turn_id: str
    state: TurnState
    text: str | None
    """`None`: it was trimmed, and nobody knows any more."""


def sent_before(entries: Iterable[Entry], *, hidden: Ranges = ()) -> SentBefore | None:
    """Of the first of these, if that is a prompt."""
    following = iter(entries)
    prompt = next(following, None)
    if not isinstance(prompt, ModelInputEntry):
        return None
    turns = Turns()
    turns.add(prompt)
    turn = turns.get(prompt.turn_id)
    while turn is not None and not turn.is_over:
        entry = next(following, None)
        if entry is None:
            break
        turns.add(entry)
    return SentBefore(
        seq=prompt.seq,
        turn_id=prompt.turn_id or "",
        state=_state(prompt, turn, hidden),
        text=prompt.content,
    )


def _state(prompt: ModelInputEntry, turn: Turn | None, hidden: Ranges) -> TurnState:
    if turn is None:
        return "completed"
    if turn.end is not None and is_in(hidden, turn.end.seq) and not is_in(hidden, prompt.seq):
        return "interrupted"  # someone went back to where it had not ended
    return turn.state
