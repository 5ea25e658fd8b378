"""A vendor that does nothing but stream: chat completions as OpenAI sends them.

Every chunk is an event of its own, in an HTTP chunk of its own. The model `burst` says
all of them as fast as they are taken, `paced` waits after each until it has surely been
read, as a model that thinks does. `stamped` thinks first; then its first word says when it
got the request and when it says this, in nanoseconds of the clock that all processes share.

    python -m benchmarks.peers.streaming_vendor CHUNKS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial

PAUSE_SECONDS = 0.001
THINKING_SECONDS = 0.005
STAMPED_WORDS = 4
WORD = "word "


def events(count: int) -> list[bytes]:
    """As they go over the wire, the last one too."""
    event_json = {
        "id": "chatcmpl-0123456789abcdefghijklmnop",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "gpt-5.6-2026-01-01",
        "service_tier": "default",
        "system_fingerprint": "fp_0123456789",
    }

    def choice(delta: dict[str, object], reason: str | None = None) -> dict[str, object]:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}

    usage = {
        "prompt_tokens": 10,
        "completion_tokens": count,
        "total_tokens": count + 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    chunks: list[dict[str, object]] = [
        {**event_json, "choices": [choice({"role": "assistant", "content": "", "refusal": None})]},
        *[{**event_json, "choices": [choice({"content": WORD})], "usage": None}] * count,
        {**event_json, "choices": [choice({}, "stop")], "usage": None},
        {**event_json, "choices": [], "usage": usage},
    ]
    texts = [json.dumps(chunk, separators=(",", ":")) for chunk in chunks]
    return [f"data: {text}\n\n".encode() for text in (*texts, "[DONE]")]


def _with_times(event: bytes, got: int) -> bytes:
    return event.replace(WORD.encode(), f"{got}:{time.perf_counter_ns()} ".encode())


async def answer(
    raw_events: list[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    stamped = events(STAMPED_WORDS)
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = head.lower().split(b"content-length:")[1].split(b"\r\n")[0]
            asked = json.loads(await reader.readexactly(int(length)))
            got = time.perf_counter_ns()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )
            is_stamped = asked["model"] == "stamped"
            for number, event in enumerate(stamped if is_stamped else raw_events):
                if is_stamped and number == 1:
                    await asyncio.sleep(THINKING_SECONDS)
                    event_json = _with_times(event, got)
                else:
                    event_json = event
                writer.write(b"%x\r\n%b\r\n" % (len(event_json), event_json))
                await writer.drain()
                if asked["model"] != "burst":
                    await asyncio.sleep(PAUSE_SECONDS)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(chunks: int) -> None:
    server = await asyncio.start_server(partial(answer, events(chunks)), "127.0.0.1", 0)
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
