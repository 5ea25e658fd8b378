"""What the record holds of a turn whose events were missed. Pure.

Written as a conversation: it yields the requests it has, is sent their replies,
and returns the events. So the asynchronous client and the blocking commands
share it. Answers that were cut to fit a page are read on until they are whole.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal, TypeAlias

from nplt_protocol.events import EntryAdded, Event, TurnFinished
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import HistoryPage, MessageRange, Receipt
from nplt_protocol.requests import HistoryRequest

ENDED = frozenset({"completed", "interrupted", "failed"})
"""States of a receipt after which no event of its turn will come."""

PAGES_MAX = 50
ENTRIES_PER_PAGE = 100

Record: TypeAlias = HistoryPage | MessageRange
Retelling: TypeAlias = "Generator[HistoryRequest, Record, list[Event]]"
Ending: TypeAlias = Literal["completed", "interrupted", "failed"]


def retelling(receipt: Receipt, *, is_over: bool = True) -> Retelling:
    """The entries of its turn, as events. One that `is_over` also gets its end, and if
    the record does not hold that, an end that says so."""
    events: list[Event] = []
    story = Storyline()
    cursor = receipt.seq
    for _ in range(PAGES_MAX):
        page = yield HistoryRequest(
            session_id=receipt.session_id, after=cursor, limit=ENTRIES_PER_PAGE, view="entries"
        )
        if not isinstance(page, HistoryPage):
            break
        for entry in page.messages:
            if entry.get("turn_id") != receipt.turn_id:
                continue
            whole = yield from _read_on(receipt.session_id, entry)
            told = _told(receipt, whole)
            events.append(told)
            story.take(told)
            if (end := story.end) is not None:
                return [*events, end] if is_over else events
        if not page.page.has_more_after or page.page.after <= cursor:
            break
        cursor = page.page.after
    return [*events, _unknown_end(receipt, seq=cursor)] if is_over else events


class Storyline:
    """What the entries of a turn say of its end, as TURN_FINISHED would."""

    __slots__ = ("_usage", "end")

    def __init__(self) -> None:
        self.end: TurnFinished | None = None
        self._usage: dict[str, int] = {}

    def take(self, told: EntryAdded) -> None:
        entry = told.entry
        usage = entry.get("usage")
        for name, count in usage.items() if isinstance(usage, dict) else ():
            if isinstance(count, int):
                self._usage[name] = self._usage.get(name, 0) + count
        state = _ending(entry)
        if state is None:
            return
        error = entry.get("error")
        if entry.get("kind") == "fault":
            error = {"code": entry.get("code"), "message": entry.get("content")}
        self.end = TurnFinished(
            session_id=told.session_id,
            turn_id=told.turn_id or "",
            state=state,
            seq=_seq(entry),
            usage={**self._usage},
            error=error if isinstance(error, dict) and state != "completed" else None,
        )


def _ending(entry: JsonObject) -> Ending | None:
    """How the turn ended, if this is the entry that ended it."""
    state = entry.get("state")
    if entry.get("kind") == "fault":
        return "failed" if state == "failed" else "interrupted"
    if entry.get("kind") != "model_output" or (state == "completed" and entry.get("tool_calls")):
        return None
    match state:
        case "completed" | "failed":
            return state
        case _:
            return "interrupted"


def _read_on(session_id: str, entry: JsonObject) -> Generator[HistoryRequest, Record, JsonObject]:
    content, size = entry.get("content"), entry.get("size")
    if not (entry.get("truncated") and isinstance(content, str) and isinstance(size, int)):
        return entry
    while len(content) < size:
        part = yield HistoryRequest(
            session_id=session_id, seq=_seq(entry), offset=len(content), limit=1
        )
        if not isinstance(part, MessageRange) or not part.content:
            return {**entry, "content": content}
        content += part.content
    return {name: value for name, value in entry.items() if name != "truncated"} | {
        "content": content
    }


def _told(receipt: Receipt, entry: JsonObject) -> EntryAdded:
    call = entry.get("call")
    return EntryAdded(
        session_id=receipt.session_id,
        turn_id=receipt.turn_id,
        call=call if isinstance(call, int) else None,
        entry=entry,
    )


def _unknown_end(receipt: Receipt, *, seq: int) -> TurnFinished:
    message = "the turn is over, and the record does not say how it ended"
    return TurnFinished(
        session_id=receipt.session_id,
        turn_id=receipt.turn_id,
        state="interrupted",
        seq=seq,
        error={"code": "unavailable", "message": message},
    )


def _seq(entry: JsonObject) -> int:
    seq = entry.get("seq")
    return seq if isinstance(seq, int) else 0
