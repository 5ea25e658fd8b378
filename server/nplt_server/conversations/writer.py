"""The conversation's pen: one task, the only one that writes the record.

Whoever wants a line written hands in an order and waits for it; orders are
carried out one by one, so two clients can't interleave, and a client that goes
away in the middle doesn't tear anything. What must be seen to happen in the
moment of writing (the receipt, then the event) happens here, without a gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from nplt_server.conversations.activity import Activity, Spawn
from nplt_server.conversations.ledger import Ledger
from nplt_storage.errors import StorageError
from nplt_storage.facts.entries import Entry

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Ahead:
    """A line that must stand before another one, and not without it."""

    prepare: Callable[[], Entry | None]
    entry: Entry | None = None
    """What was written."""


@dataclass(slots=True, kw_only=True)
class _Order:
    prepare: Callable[[], Entry | None]
    stored: Callable[[Entry], None]
    ahead: Ahead | None = None
    done: anyio.Event = field(default_factory=anyio.Event)
    entry: Entry | None = None
    error: Exception | None = None


class Writer:
    __slots__ = (
        "_activity",
        "_ledger",
        "_orders",
        "_spawn",
        "_tell",
        "_writing",
    )

    def __init__(
        self,
        ledger: Ledger,
        *,
        spawn: Spawn,
        activity: Activity,
        tell: Callable[[Entry], None],
    ) -> None:
        self._ledger = ledger
        self._tell = tell
        self._spawn = spawn
        self._activity = activity
        # A list: it is short, and an empty deque takes 600 bytes of every idle connection.
        self._orders: list[_Order] = []
        self._writing = False

    async def write(
        self,
        prepare: Callable[[], Entry | None],
        stored: Callable[[Entry], None],
        *,
        ahead: Ahead | None = None,
    ) -> Entry | None:
        """`prepare` runs when the pen is free and gives the draft (or `None`:
        nothing to write); `stored` runs right after the entry is on disk, and tells
        of what went ahead of it too."""
        order = _Order(prepare=prepare, stored=stored, ahead=ahead)
        self._orders.append(order)
        if not self._writing:
            self._writing = True
            self._activity.begin()
            self._spawn(self._work_through)
        await order.done.wait()
        if order.error is not None:
            raise order.error
        return order.entry

    def tell(self, entry: Entry) -> None:
        self._tell(entry)

    async def record(self, draft: Entry) -> Entry:
        """On disk and told to everyone when it returns; not to be cancelled half way."""
        entry = await self.record_prepared(lambda: draft)
        assert entry is not None
        return entry

    async def record_prepared(
        self,
        prepare: Callable[[], Entry | None],
        then: Callable[[Entry], None] = lambda entry: None,
    ) -> Entry | None:
        """`then` runs right after it was told to everyone, before anything else is."""

        def stored(entry: Entry) -> None:
            self._tell(entry)
            then(entry)

        with anyio.CancelScope(shield=True):
            return await self.write(prepare, stored)
        return None

    async def _work_through(self) -> None:
        with anyio.CancelScope(shield=True):
            while self._orders:
                order = self._orders.pop(0)
                try:
                    await self._carry_out(order)
                except Exception as error:  # handed to whoever gave the order
                    order.error = error
                order.done.set()
        self._writing = False
        self._activity.end()

    async def _carry_out(self, order: _Order) -> None:
        if order.ahead is not None:
            await self._write_ahead(order.ahead)
        try:
            draft = order.prepare()
            if draft is None:
                return
            entry = order.entry = await self._ledger.append(draft)
        except Exception:
            if order.ahead is not None and order.ahead.entry is not None:
                await self._take_back(order.ahead.entry)
            raise
        order.stored(entry)

    async def _write_ahead(self, ahead: Ahead) -> None:
        draft = ahead.prepare()
        if draft is not None:
            ahead.entry = await self._ledger.append(draft)

    async def _take_back(self, entry: Entry) -> None:
        """What it should stand before could not be written. If neither can this, the
        record says what happened, and so do we."""
        self._tell(entry)
        try:
            draft = self._ledger.history.rollback_to(entry.seq - 1)
            self._tell(await self._ledger.append(draft))
        except StorageError as error:
            log.warning("%s: entry %d stays: %s", self._ledger.session_id, entry.seq, error)
