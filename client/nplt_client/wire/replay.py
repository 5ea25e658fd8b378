"""Reads from the record a turn whose events were missed. No I/O.

`replay_from_record` requests the stored entries of a turn and returns them as events.
`PageGuard` protects against a server whose list has no end.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from nplt_client.errors import ProtocolViolation
from nplt_protocol import messages
from nplt_protocol.json_text import JsonObject
from nplt_protocol.resume import TurnProgress

T = TypeVar("T")
AnyReply: TypeAlias = "messages.Reply | JsonObject"
Steps: TypeAlias = "Generator[messages.Request, AnyReply, T]"
"""A generator that yields requests, is sent their replies, and returns a result."""

ENDED = frozenset({"completed", "interrupted", "failed"})
"""States of a receipt whose turn will send no more events."""

PAGES_MAX = 50
ENTRIES_PER_PAGE = 100


def replay_from_record(
    session_id: str, turn_id: str, prompt_seq: int, *, is_over: bool
) -> Steps[list[messages.Event]]:
    """Reads the stored entries of a turn, as events.

    The rest of truncated entries is read too. If the turn `is_over`, a TURN_FINISHED is added. If
    the record does not say how the turn ended, neither does the TURN_FINISHED.
    """
    events: list[messages.Event] = []
    progress = TurnProgress()
    cursor = prompt_seq
    for _ in range(PAGES_MAX):
        page = yield messages.HistoryRequest(
            session_id=session_id, after=cursor, limit=ENTRIES_PER_PAGE, view="entries"
        )
        if not isinstance(page, messages.HistoryPage):
            raise ProtocolViolation(f"the server answered HISTORY_REQUEST with {page!r}")
        for entry in page.messages:
            if entry.get("turn_id") != turn_id:
                continue
            whole = yield from _read_whole(session_id, entry)
            call = whole.get("call")
            event = messages.EntryAdded(
                session_id=session_id,
                turn_id=turn_id,
                call=call if isinstance(call, int) else None,
                entry=whole,
            )
            events.append(event)
            progress.apply(event)
            if progress.end is not None:
                return [*events, progress.end] if is_over else events
        if not page.page.has_more_after or page.page.after <= cursor:
            break
        cursor = page.page.after
    if not is_over:
        return events
    message = "the turn is over, and the record does not say how it ended"
    unknown_end = messages.TurnFinished(
        session_id=session_id,
        turn_id=turn_id,
        state="interrupted",
        seq=cursor,
        error={"code": "unavailable", "message": message},
    )
    return [*events, unknown_end]


def _read_whole(session_id: str, entry: JsonObject) -> Steps[JsonObject]:
    """Reads the rest of a truncated entry."""
    content, size, seq = entry.get("content"), entry.get("size"), entry.get("seq")
    if not (entry.get("truncated") and isinstance(content, str) and isinstance(size, int)):
        return entry
    while len(content) < size:
        part = yield messages.HistoryRequest(
            session_id=session_id,
            seq=seq if isinstance(seq, int) else 0,
            offset=len(content),
            limit=1,
        )
        if not isinstance(part, messages.MessageRange):
            raise ProtocolViolation(f"the server answered HISTORY_REQUEST with {part!r}")
        if not part.content:
            return {**entry, "content": content}
        content += part.content
    return {name: value for name, value in entry.items() if name != "truncated"} | {
        "content": content
    }


LIST_PAGES_MAX = 10_000


class PageGuard:
    """Refuses a repeated cursor, and too many pages of a list."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def next_page(self, next_cursor: str | None) -> str | None:
        """Returns the cursor of the next page, or `None` after the last one."""
        if next_cursor is None:
            return None
        if next_cursor in self._seen or len(self._seen) >= LIST_PAGES_MAX:
            raise ProtocolViolation("the server's list has no end")
        self._seen.add(next_cursor)
        return next_cursor
