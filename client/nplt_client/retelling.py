"""A turn that ended while nobody listened, told again from the record. Pure.

Written as a conversation: it yields the requests it has, is sent their replies,
and returns the events. So the asynchronous client and the blocking commands
share it. Answers that were cut to fit a page are read on until they are whole.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from nplt_protocol.events import EntryAdded, Event, TurnFinished
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import HistoryPage, MessageRange, Receipt
from nplt_protocol.requests import HistoryRequest

ENDED = frozenset({"completed", "interrupted", "failed"})
"""States of a receipt after which no event of its turn will come."""

PAGES_MAX = 10
MESSAGES_PER_PAGE = 100

Record: TypeAlias = HistoryPage | MessageRange
Retelling: TypeAlias = "Generator[HistoryRequest, Record, list[Event]]"


def retelling(receipt: Receipt) -> Retelling:
    events: list[Event] = []
    last_seq = cursor = receipt.seq
    for _ in range(PAGES_MAX):
        page = yield HistoryRequest(
            session_id=receipt.session_id, after=cursor, limit=MESSAGES_PER_PAGE
        )
        if not isinstance(page, HistoryPage):
            break
        for message in page.messages:
            if message.get("role") != "assistant":
                continue
            if message.get("turn_id") == receipt.turn_id:
                last_seq = _seq(message)
                whole = yield from _read_on(receipt.session_id, message)
                events.append(_entry(receipt, whole, call=len(events)))
            elif events:  # turns answer one after the other: ours is over
                return [*events, _end(receipt, last_seq)]
        if not page.page.has_more_after or page.page.after <= cursor:
            break
        cursor = page.page.after
    return [*events, _end(receipt, last_seq)]


def _read_on(session_id: str, message: JsonObject) -> Generator[HistoryRequest, Record, JsonObject]:
    content, size = message.get("content"), message.get("size")
    if not (message.get("truncated") and isinstance(content, str) and isinstance(size, int)):
        return message
    while len(content) < size:
        part = yield HistoryRequest(
            session_id=session_id, seq=_seq(message), offset=len(content), limit=1
        )
        if not isinstance(part, MessageRange) or not part.content:
            return {**message, "content": content}
        content += part.content
    return {name: value for name, value in message.items() if name != "truncated"} | {
        "content": content
    }


def _entry(receipt: Receipt, message: JsonObject, *, call: int) -> EntryAdded:
    return EntryAdded(
        session_id=receipt.session_id, turn_id=receipt.turn_id, call=call, entry=message
    )


def _end(receipt: Receipt, seq: int) -> TurnFinished:
    return TurnFinished(
        session_id=receipt.session_id,
        turn_id=receipt.turn_id,
        state=receipt.state,  # type: ignore[arg-type]
        seq=seq,
    )


def _seq(message: JsonObject) -> int:
    seq = message.get("seq")
    return seq if isinstance(seq, int) else 0
