"""The conversation's pen: one task, the only one that writes the record.

Whoever wants a line written hands in an order and waits for it; orders are
carried out one by one, so two clients can't interleave, and a client that goes
away in the middle doesn't tear anything. What must be seen to happen in the
moment of writing (the receipt, then the event) happens here, without a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from nplt_server.conversations.activity import Activity, Spawn
from nplt_server.conversations.ledger import Ledger
from nplt_storage.facts.entries import Entry


@dataclass(slots=True, kw_only=True)
class _Order:
    prepare: Callable[[], Entry | None]
    stored: Callable[[Entry], None]
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
        self, prepare: Callable[[], Entry | None], stored: Callable[[Entry], None]
    ) -> Entry | None:
        """`prepare` runs when the pen is free and gives the draft (or `None`:
        nothing to write); `stored` runs right after the entry is on disk."""
        order = _Order(prepare=prepare, stored=stored)
        self._orders.append(order)
        if not self._writing:
            self._writing = True
            self._activity.begin()
            self._spawn(self._work_through)
        await order.done.wait()
        if order.error is not None:
            raise order.error
        return order.entry

    async def record(self, draft: Entry) -> Entry:
        """On disk and told to everyone when it returns; not to be cancelled half way."""
        entry = await self.record_prepared(lambda: draft)
        assert entry is not None
        return entry

    async def record_prepared(self, prepare: Callable[[], Entry | None]) -> Entry | None:
        with anyio.CancelScope(shield=True):
            return await self.write(prepare, self._tell)
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
        draft = order.prepare()
        if draft is None:
            return
        entry = order.entry = await self._ledger.append(draft)
        order.stored(entry)
