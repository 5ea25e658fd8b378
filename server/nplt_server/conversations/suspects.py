"""Which entries a provider's refusal is about, so that a conversation can go on.

Where it names a message, all entries that are shown in it, for any of them may be the
cause. Where it names nothing, there is no guessing, but for what no provider has ever
taken: prompts that were refused before, with no answer since; and in the midst of a
turn, whose last call was taken, what the tools have given since then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nplt_protocol.codes import ErrorCode
from nplt_server.errors import ProviderRefused
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.turns import Turn
from nplt_storage.facts.entries import FaultEntry, ModelOutputEntry, ToolResultsEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    earlier: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    """Of the turn that is refused."""


def suspects(refusal: ProviderRefused, history: ConversationHistory, *, turn_id: str) -> Suspects:
    running = history.turn(turn_id)
    own_seqs = [entry.seq for entry in running.entries] if running is not None else []
    if refusal.entry_seqs:
        return Suspects(
            earlier=tuple(seq for seq in refusal.entry_seqs if seq not in own_seqs),
            own=tuple(seq for seq in refusal.entry_seqs if seq in own_seqs),
        )
    if not refusal.is_of_request or running is None:
        return Suspects()
    last = running.entries[-1]
    if isinstance(last, ToolResultsEntry):
        return Suspects(own=(last.seq,))
    return Suspects(earlier=tuple(_refused_in_vain(history)))


def _refused_in_vain(history: ConversationHistory) -> Iterator[int]:
    for turn in reversed(history.shown_turns):
        if any(isinstance(entry, ModelOutputEntry) for entry in turn.entries):
            return  # whoever answered took all that was said before
        if _was_refused(turn) and turn.prompt is not None:
            yield turn.prompt.seq


def _was_refused(turn: Turn) -> bool:
    return isinstance(turn.end, FaultEntry) and turn.end.code == ErrorCode.PROVIDER_REFUSED
