"""The least that a call over HTTP can cost: aiohttp sends bytes and reads the answer to its end.

    python -m benchmarks.peers.http_exchanges PORT TURNS

`PORT` is that of a `streaming_vendor`. The body is that of a request with so many turns in its
context. A line with a number makes it send as many requests, one after another; when they are
answered, it writes the line back.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

TEXT = "word " * 60
HEADERS = {"authorization": "Bearer none", "content-type": "application/json"}


def body_of(turns: int) -> bytes:
    said = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT}]
    messages = [*said * turns, {"role": "user", "content": "hello world"}]
    return json.dumps({"model": "burst", "stream": True, "messages": messages}).encode()


async def main(port: int, turns: int) -> None:
    aiohttp: Any = import_module("aiohttp")  # not everybody has it
    url, body = f"http://127.0.0.1:{port}/v1/chat/completions", body_of(turns)

    async with aiohttp.ClientSession() as http:

        async def obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                for _ in range(int(line)):
                    async with http.post(url, data=body, headers=HEADERS) as response:
                        async for _piece in response.content.iter_any():
                            pass
                writer.write(line)

        server = await asyncio.start_server(obey, "127.0.0.1", 0)
        print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
