"""Programs that read a streamed answer to its end whenever they are told to: through
nplt's own client, or with OpenAI's SDK directly.

    python -m benchmarks.peers.stream_readers nplt|sdk PORT

prints where it listens; a line with the name of a model makes it ask that one, and it
answers with the number of characters it has read. For the model `stamped` also with two
times, in nanoseconds: from asking to the vendor, and from the vendor to here.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any


class Reading:
    """One answer, piece by piece."""

    def __init__(self) -> None:
        self._asked = time.perf_counter_ns()
        self._length = 0
        self._times: tuple[int, int] | None = None

    def take(self, text: str) -> None:
        if not self._length and ":" in text:
            now = time.perf_counter_ns()
            got, received = map(int, text.split()[0].split(":"))
            self._times = got - self._asked, now - received
        self._length += len(text)

    def __str__(self) -> str:
        return " ".join(map(str, (self._length, *(self._times or ()))))


Read = Callable[[str], Awaitable[Reading]]


async def serve(read: Read) -> None:
    async def obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(f"{await read(line.decode().strip())}\n".encode())

    server = await asyncio.start_server(obey, "127.0.0.1", 0)
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def read_through_nplt(port: int) -> None:
    import nplt_client
    from nplt_protocol.messages import TextDelta

    async with nplt_client.connect(f"nplt://127.0.0.1:{port}") as client:

        async def read(model: str) -> Reading:
            reading = Reading()
            async with client.ask("go on", model=f"vendor/{model}") as turn:
                async for event in turn:
                    if isinstance(event, TextDelta):
                        reading.take(event.text)
            return reading

        await serve(read)


async def read_with_the_sdk(port: int) -> None:
    import httpx2
    import openai

    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key="none",
        max_retries=0,
        http_client=httpx2.AsyncClient(verify=False),
    ) as sdk:

        async def read(model: str) -> Reading:
            reading = Reading()
            asked: Any = {"messages": [{"role": "user", "content": "go on"}], "stream": True}
            async for chunk in await sdk.chat.completions.create(model=model, **asked):
                for choice in chunk.choices:
                    reading.take(choice.delta.content or "")
            return reading

        await serve(read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=["nplt", "sdk"])
    parser.add_argument("port", type=int)
    given = parser.parse_args()
    how = {"nplt": read_through_nplt, "sdk": read_with_the_sdk}[given.how]
    asyncio.run(how(given.port))
