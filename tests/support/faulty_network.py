"""A road between clients and a server that fragments, delays, cuts and resets.

Every connection is given a number of bytes for each direction; when one is used
up the line is cut there, in the middle of whatever was said. How it is cut is
left to chance: an end or a reset; and what the road had already taken from the
client may still arrive at the server later, as on real ones. `smooth` makes it
a road like any other; `target` may change, when a server comes back elsewhere.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from anyio.from_thread import start_blocking_portal

_PIECE_BYTES = 16 * 1024
_PIECES_MAX = 4
_PAUSE_SECONDS_MAX = 0.002
_PAUSES = 0.2
"""How often a piece waits a moment."""
_RESETS = 0.5
_ARRIVES_LATE = 0.3


class FaultyNetwork:
    def __init__(
        self,
        chance: random.Random,
        *,
        target: int,
        up_bytes: tuple[int, int] = (60, 10_000),
        down_bytes: tuple[int, int] = (300, 50_000),
        is_smooth: bool = False,
    ) -> None:
        self.target = target
        self.smooth = is_smooth
        self.cuts = 0
        self._chance = chance
        self._up_bytes = up_bytes
        self._down_bytes = down_bytes
        self._server: asyncio.Server | None = None
        self._journeys: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"nplt://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> FaultyNetwork:
        self._server = await asyncio.start_server(self._arrive, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        journeys = tuple(self._journeys)
        for journey in journeys:
            journey.cancel()
        await asyncio.gather(*journeys, return_exceptions=True)

    def _arrive(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        journey = asyncio.create_task(self._travel(near, to_near))
        self._journeys.add(journey)
        journey.add_done_callback(self._journeys.discard)

    async def _travel(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        ends = [to_near]
        try:
            far, to_far = await asyncio.open_connection("127.0.0.1", self.target)
            ends.append(to_far)
            up = asyncio.create_task(self._carry(near, to_far, self._allowance(self._up_bytes)))
            down = asyncio.create_task(self._carry(far, to_near, self._allowance(self._down_bytes)))
            try:
                await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
                if not up.done() and self._chance.random() < _ARRIVES_LATE:
                    to_near.transport.abort()
                    await up
            finally:
                up.cancel()
                down.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
        except OSError:
            pass  # nobody is there: the client finds a closed door
        finally:
            for end in ends:
                self._close(end)

    def _allowance(self, limits: tuple[int, int]) -> int | None:
        """Often little, sometimes much: what is longer than most roads must get through too."""
        least, most = map(math.log, limits)
        return None if self.smooth else int(math.exp(self._chance.uniform(least, most)))

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, allowance: int | None
    ) -> None:
        with suppress(OSError):
            while data := await source.read(_PIECE_BYTES):
                is_last = allowance is not None and len(data) >= allowance
                if allowance is not None:
                    data = data[:allowance]
                    allowance -= len(data)
                await self._put(sink, data)
                if is_last and not self.smooth:
                    self.cuts += 1
                    return

    async def _put(self, sink: asyncio.StreamWriter, data: bytes) -> None:
        while data:
            size = len(data)
            if not self.smooth:
                size = max(1, self._chance.randint(size // _PIECES_MAX, size))
            sink.write(data[:size])
            await sink.drain()
            data = data[size:]
            if not self.smooth and self._chance.random() < _PAUSES:
                await asyncio.sleep(self._chance.random() * _PAUSE_SECONDS_MAX)

    def _close(self, end: asyncio.StreamWriter) -> None:
        wire = end.get_extra_info("socket")
        if wire is not None and self._chance.random() < _RESETS:
            with suppress(OSError):
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()


@contextmanager
def open_road(target: int) -> Iterator[FaultyNetwork]:
    """A smooth one, in a thread of its own: an address that stays when a server moves."""
    with start_blocking_portal() as portal:
        road = FaultyNetwork(random.Random(0), target=target, is_smooth=True)
        with portal.wrap_async_context_manager(road):
            yield road
