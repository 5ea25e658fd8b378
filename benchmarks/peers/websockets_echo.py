"""The same echo over WebSocket, by the `websockets` library at its plainest.

Compression and keep-alive are off: both would cost it time, and neither has a
counterpart on our side.
"""

from __future__ import annotations

import asyncio

from websockets.asyncio.server import ServerConnection, serve


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


async def main() -> None:
    async with serve(echo, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        (listening,) = server.sockets
        print(f"listening on 127.0.0.1:{listening.getsockname()[1]}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
