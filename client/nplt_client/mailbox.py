"""Events on their way from the connection to the one who reads them.

The connection puts, never waits, and goes on: a slow reader must not hold up
replies that others wait for. So each mailbox is kept small by its own rule
(`Add`): a turn's joins neighbouring pieces of text, a feed's forgets all and
says so. Reading is cancel-safe: an event leaves the box only when it is handed
over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from nplt_client.errors import NpltError
from nplt_protocol.events import Event, SessionEvent, TextDelta

Add: TypeAlias = "Callable[[deque[Event], Event], None]"

_UNMERGED_EVENTS_MAX = 1_000
_MERGED_CHARACTERS_MAX = 4_096
FEED_EVENTS_MAX = 10_000


def merge_text(waiting: deque[Event], event: Event) -> None:
    """Keeps every word of a turn; what waits costs about as much as its text."""
    last = waiting[-1] if len(waiting) > _UNMERGED_EVENTS_MAX else None
    if (
        isinstance(last, TextDelta)
        and isinstance(event, TextDelta)
        and event.call == last.call
        and event.offset == last.offset + len(last.text)
        and event.replay_from is None
        and len(last.text) < _MERGED_CHARACTERS_MAX
    ):
        waiting[-1] = replace(last, text=last.text + event.text)
    else:
        waiting.append(event)


def forget_when_full(waiting: deque[Event], event: Event) -> None:
    """As the server does with a client that can't keep up: `lagged`, and start afresh."""
    if len(waiting) >= FEED_EVENTS_MAX:
        dropped = len(waiting)
        waiting.clear()
        session_id = getattr(event, "session_id", None) or ""
        waiting.append(
            SessionEvent(session_id=session_id, event="lagged", details={"dropped": dropped})
        )
    waiting.append(event)


class Mailbox:
    __slots__ = ("__weakref__", "_add", "_arrived", "_closed", "_error", "_waiting")

    def __init__(self, add: Add) -> None:
        self._add = add
        self._waiting: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._closed = False
        self._error: NpltError | None = None

    def put(self, event: Event) -> None:
        if not self._closed:
            self._add(self._waiting, event)
            self._arrived.set()

    def close(self, error: NpltError | None = None) -> None:
        """What is inside can still be read; then the error is raised, or the end told."""
        if not self._closed:
            self._closed = True
            self._error = error
            self._arrived.set()

    async def get(self) -> Event | None:
        while not self._waiting:
            if self._closed:
                if self._error is not None:
                    raise self._error
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()


class EventFeed:
    """Everything pushed for the attached conversation, from the moment it is asked for."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def __aiter__(self) -> EventFeed:
        return self

    async def __anext__(self) -> Event:
        event = await self._mailbox.get()
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        self._mailbox.close()
