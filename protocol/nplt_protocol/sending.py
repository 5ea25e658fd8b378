"""The writing half of a stream: one write per tick, and a deadline.

Bytes wait in the outbox until the end of the tick and then go to the
transport in one piece. When the transport is full they stay in the outbox, so
that replies and events can be told apart and a slow reader noticed. The
deadline watches only while the transport holds something; any byte the kernel
takes counts as progress.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nplt_protocol.outbox import Outbox

if TYPE_CHECKING:
    import asyncio

    from nplt_protocol.limits import WireLimits

TRANSPORT_BYTES_MAX = 64 * 1024
UNSENT_REPLY_BYTES_MAX = 256 * 1024
_CHECKS_PER_DEADLINE = 4


class SendingSide:
    __slots__ = (
        "_flush_due",
        "_limits",
        "_loop",
        "_on_stalled",
        "_outbox",
        "_progress",
        "_takes_more",
        "_transport",
        "_watch",
        "is_blocked",
        "last_sent",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: WireLimits,
        on_stalled: Callable[[], None],
    ) -> None:
        self.is_blocked = False
        """The transport is full; the outbox keeps what comes."""
        self.last_sent = loop.time()
        self._loop = loop
        self._limits = limits
        self._on_stalled = on_stalled
        self._outbox = Outbox()
        self._transport: asyncio.Transport | None = None
        self._flush_due = False
        self._takes_more = True
        self._watch: asyncio.TimerHandle | None = None
        self._progress = (0, 0.0)

    def start(self, transport: asyncio.Transport) -> None:
        high = min(TRANSPORT_BYTES_MAX, self._limits.event_bytes_max)
        transport.set_write_buffer_limits(high=high, low=high // 4)
        self._transport = transport
        self._flush_soon()

    def finish(self) -> None:
        """Hands over what is kept, even to a full transport; takes no more."""
        self.flush(even_if_blocked=True)
        self._takes_more = False

    def stop(self) -> None:
        """The connection is gone: nothing waits any more."""
        self._transport = None
        self._takes_more = self.is_blocked = False
        self._outbox.clear()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    @property
    def unsent_bytes(self) -> int:
        return self._outbox.unsent_bytes(self._transport_bytes)

    @property
    def replies_pile_up(self) -> bool:
        """The peer asks and asks, and doesn't read the answers."""
        if not self.is_blocked:
            return False
        return self._outbox.unsent_reply_bytes(self._transport_bytes) > UNSENT_REPLY_BYTES_MAX

    def add_reply(self, data: bytes) -> None:
        if self._takes_more:
            self._outbox.add_reply(data)
            self._flush_soon()

    def add_answer(self, data: bytes) -> None:
        """A reply for which the caller will `flush` in this very tick."""
        if self._takes_more:
            self._outbox.add_reply(data)

    def add_event(self, data: bytes) -> bool:
        if not self._takes_more or self._reader_is_slow():
            return False
        self._outbox.add_event(data)
        self._flush_soon()
        return True

    def flush(self, *, even_if_blocked: bool = False) -> None:
        self._flush_due = False
        transport = self._transport
        if transport is None or not self._outbox or (self.is_blocked and not even_if_blocked):
            return
        transport.write(self._outbox.take(transport.get_write_buffer_size()))
        self.last_sent = self._loop.time()
        if self._watch is None and transport.get_write_buffer_size():
            self._progress = (self._sent_bytes, self.last_sent)
            self._watch_again()

    def block(self) -> None:
        self.is_blocked = True

    def unblock(self) -> None:
        self.is_blocked = False
        self.flush()

    def _flush_soon(self) -> None:
        if not self._flush_due and not self.is_blocked and self._transport is not None:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def _reader_is_slow(self) -> bool:
        limit = self._limits.event_bytes_max
        if not self.is_blocked:
            # Most of the time: nothing to ask the transport about.
            if self._outbox.kept_bytes <= limit:
                return False
            self.flush()
        return self._outbox.unsent_event_bytes(self._transport_bytes) > limit

    @property
    def _transport_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def _sent_bytes(self) -> int:
        return self._outbox.sent_bytes(self._transport_bytes)

    def _watch_again(self) -> None:
        pause = self._limits.write_seconds_max / _CHECKS_PER_DEADLINE
        self._watch = self._loop.call_later(pause, self._check_progress)

    def _check_progress(self) -> None:
        self._watch = None
        if self._transport_bytes == 0:
            return
        sent, since = self._progress
        now = self._loop.time()
        if self._sent_bytes != sent:
            self._progress = (self._sent_bytes, now)
        elif now - since >= self._limits.write_seconds_max:
            self._on_stalled()
            return
        self._watch_again()
