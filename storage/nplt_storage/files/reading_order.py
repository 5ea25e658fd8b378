"""Which of many files is read next: those somebody waits for come first.

When the catalogue was lost, everything is read again while conversations are
served already. Files are read in one thread, so that what is known of each only
grows; who asks for one that was not read yet waits for its turn, which is next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock


class ReadingOrder:
    def __init__(self) -> None:
        self._lock = Lock()
        self._left: dict[str, None] = {}
        """Those whose turn is to come."""
        self._unread: set[str] = set()
        """Those, and the ones that are being read."""
        self._urgent: deque[str] = deque()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    # On the event loop

    async def wait_for(self, session_id: str) -> None:
        """Returns when it was read, if that is still to come."""
        with self._lock:
            if session_id not in self._unread:
                return
            read = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(session_id, []).append(read)
            self._urgent.append(session_id)
        await read

    # In the thread that reads

    def begin(self, session_ids: Iterable[str]) -> None:
        with self._lock:
            self._left = dict.fromkeys(session_ids)
            before, self._unread = self._unread, set(self._left)
            for session_id in before - self._unread:
                self._tell(session_id)

    def take(self) -> str | None:
        """The next one; `None`: all were taken."""
        urgent = self.take_urgent()
        with self._lock:
            if urgent is None and self._left:
                urgent = next(iter(self._left))
                del self._left[urgent]
            return urgent

    def take_urgent(self) -> str | None:
        with self._lock:
            while self._urgent:
                session_id = self._urgent.popleft()
                if session_id in self._left:
                    del self._left[session_id]
                    return session_id
            return None

    def done(self, session_id: str) -> None:
        with self._lock:
            self._unread.discard(session_id)
            self._tell(session_id)

    def _tell(self, session_id: str) -> None:
        for read in self._waiting.pop(session_id, []):
            with suppress(RuntimeError):  # its loop is gone
                read.get_loop().call_soon_threadsafe(_settle, read)


def _settle(read: asyncio.Future[None]) -> None:
    if not read.done():
        read.set_result(None)
