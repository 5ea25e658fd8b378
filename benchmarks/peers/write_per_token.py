"""Fan-out at its simplest: every token is one write to every client.

Four bytes from any client name a number of tokens; each becomes one frame,
encoded once, and is written to all who are connected. As many tokens go out
between two looks at the network as `offline/echo` says in one breath.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import cast

from benchmarks.wire import TEXT_DELTA, encode

BREATH = 64
COUNT = struct.Struct(">I")
SESSION_ID = "0123456789abcdef0123456789abcdef"


def frame_of(number: int) -> bytes:
    delta = {"session_id": SESSION_ID, "turn_id": SESSION_ID, "call": 0, "offset": number * 2}
    return encode(TEXT_DELTA, 0, json.dumps({**delta, "text": "a "}, separators=(",", ":")))


class Listener(asyncio.Protocol):
    everyone: set[asyncio.Transport] = set()  # noqa: RUF012 (shared on purpose)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.everyone.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.everyone.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        (tokens,) = COUNT.unpack(data)
        self._turn = asyncio.get_running_loop().create_task(self._speak(tokens))

    async def _speak(self, tokens: int) -> None:
        for number in range(tokens):
            frame = frame_of(number)
            for transport in self.everyone:
                transport.write(frame)
            if number % BREATH == BREATH - 1:
                await asyncio.sleep(0)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Listener, "127.0.0.1", 0)
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
