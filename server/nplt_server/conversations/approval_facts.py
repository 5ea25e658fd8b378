"""What the record says of approvals: who was asked, what was decided, what is remembered.

Pure. A decision that is remembered holds as long as its entry stands and is at
hand: a rollback to before it takes it back, a fork begins without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Final

from nplt_server.tools.asking import Permission
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.facts.entries import ApprovalEntry, Entry, ForkedEntry

_LOOKED_BACK_MAX: Final = 1_000


def remembered_decisions(history: ConversationHistory) -> dict[str, ApprovalEntry]:
    """By the name of the tool."""
    remembered: dict[str, ApprovalEntry] = {}
    for entry in history.standing:
        match entry:
            case ForkedEntry():
                remembered.clear()
            case ApprovalEntry(remember=True):
                remembered[entry.tool_name] = entry
            case _:
                pass
    return remembered


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
