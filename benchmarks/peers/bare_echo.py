"""PING → PONG on a bare `asyncio.Protocol`: frames by offset walk, one write per read.

No HELLO, no limits, no outbox, no deadline, no other message: what the event
loop and the framing cost by themselves.
"""

from __future__ import annotations

import asyncio
import struct
from typing import cast

HEADER = struct.Struct(">BHH")
PONG = 0x05


class Echo(asyncio.Protocol):
    def __init__(self) -> None:
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        answers: list[bytes] = []
        offset, end = 0, len(data)
        while end - offset >= HEADER.size:
            _, seq, length = HEADER.unpack_from(data, offset)
            stop = offset + HEADER.size + length
            if stop > end:
                break
            answers.append(HEADER.pack(PONG, seq, length) + data[offset + HEADER.size : stop])
            offset = stop
        self._rest = data[offset:]
        self._write(b"".join(answers))


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
