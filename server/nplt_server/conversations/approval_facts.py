"""What the record says of approvals: who was asked, what was decided, what is remembered.

Pure. A decision that is remembered holds as long as its entry stands: a rollback to
before it takes it back, a fork or an import begins without it, and stays so where a
rollback has gone back to before that beginning. Of a long conversation neither may be
at hand; then the whole record is gone through, once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from nplt_server.tools.asking import Permission
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.standing import is_in
from nplt_storage.facts.entries import ApprovalEntry, Entry, ForkedEntry

_LOOKED_BACK_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FarBack:
    """What a history does not tell that holds a conversation in part."""

    begun_at: int = 0
    """The newest beginning as a fork or an import, whether it stands or not."""
    decisions: tuple[ApprovalEntry, ...] = ()
    """Those to remember that stand before what is held, in order."""

    def with_batch(self, batch: Iterable[Entry], history: ConversationHistory) -> FarBack:
        decisions = (
            entry
            for entry in _remembered_among(batch)
            if entry.seq < history.first_seq and not is_in(history.hidden, entry.seq)
        )
        return FarBack(
            begun_at=max(self.begun_at, _beginning_among(batch)),
            decisions=(*self.decisions, *decisions),
        )


NOTHING_FAR_BACK: Final = FarBack()


def remembered_decisions(
    history: ConversationHistory, far: FarBack = NOTHING_FAR_BACK
) -> dict[str, ApprovalEntry]:
    """By the name of the tool."""
    begun_at = max(far.begun_at, _beginning_among(history.entries))
    told = (*far.decisions, *_remembered_among(history.standing))
    return {entry.tool_name: entry for entry in told if entry.seq > begun_at}


def _beginning_among(entries: Iterable[Entry]) -> int:
    return max((each.seq for each in entries if isinstance(each, ForkedEntry)), default=0)


def _remembered_among(entries: Iterable[Entry]) -> list[ApprovalEntry]:
    return [each for each in entries if isinstance(each, ApprovalEntry) and each.remember]


def last_word_on(history: ConversationHistory, approval_id: str) -> ApprovalEntry | None:
    """Not of questions that lie far back: anyone may ask for any id at any time."""
    for entry in islice(_newest_first(history), _LOOKED_BACK_MAX):
        if isinstance(entry, ApprovalEntry) and entry.approval_id == approval_id:
            return entry
    return None


def last_words_of_step(history: ConversationHistory, turn_id: str) -> dict[str, ApprovalEntry]:
    """Of the calls that have no results yet: the last that was said of each, by its id."""
    turn = history.turn(turn_id)
    if turn is None or turn.unanswered is None:
        return {}
    said: dict[str, ApprovalEntry] = {}
    for entry in _newest_first(history):
        if entry.seq <= turn.unanswered.seq:
            break
        if isinstance(entry, ApprovalEntry) and entry.turn_id == turn_id:
            said.setdefault(entry.tool_call_id, entry)
    return said


def is_open_question(entry: ApprovalEntry | None, now: datetime) -> bool:
    if entry is None or entry.state != "asked":
        return False
    return entry.expires_at is not None and entry.expires_at > now


def permission_by(decision: ApprovalEntry) -> Permission:
    if decision.state == "allowed":
        return Permission(allowed=True)
    return Permission(allowed=False, why_not=f"not run: {_why_denied(decision)}")


def _why_denied(decision: ApprovalEntry) -> str:
    tool = decision.tool_name
    if decision.decided_by is not None and decision.remember:
        return f"{decision.decided_by} said no to {tool} in this conversation"
    if decision.decided_by is not None:
        return f"{decision.decided_by} said no to this call of {tool}"
    match decision.reason:
        case "nobody_there":
            return f"{tool} needs someone's approval, and nobody is here who could be asked"
        case "expired":
            return f"{tool} needs someone's approval, and nobody answered in time"
        case _:
            return f"{tool} needs someone's approval, and it was not given"


def _newest_first(history: ConversationHistory) -> Iterable[Entry]:
    entries = history.entries
    return (entries[place] for place in range(len(entries) - 1, -1, -1))
