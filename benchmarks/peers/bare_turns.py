"""The least a durable echo turn can cost: `asyncio.Protocol`, `pwrite`, `fdatasync`.

A PROMPT is written to the connection's own file as one JSON line and synced in a thread;
then it gets its receipt and events, the answer is written the same way, and TURN_FINISHED
is sent: the lines and frames of the real server, with their fields. One write, one sync and
one reply at a time, with nothing else that a server needs: no states, no limits, no history,
no context, no recovery.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import orjson

HEADER = struct.Struct(">BHH")
WELCOME, HELLO, PROMPT = 0x01, 0x02, 0x07
STARTED, DELTA, FINISHED, ENTRY = 0x20, 0x21, 0x25, 0x28
THREADS = ThreadPoolExecutor(64)
MODEL = "bare/echo"


def frame(type_: int, seq: int, fields: dict[str, Any]) -> bytes:
    payload = orjson.dumps(fields)
    return HEADER.pack(type_, seq, len(payload)) + payload


class Turns(asyncio.Protocol):
    def __init__(self, directory: Path) -> None:
        self._rest = b""
        self._session_id = uuid4().hex
        path = directory / f"{self._session_id}.json"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._end = os.pwrite(self._file, b'{"messages":[\n', 0)
        self._seq = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.Transport, transport).write

    def connection_lost(self, exc: Exception | None) -> None:
        os.close(self._file)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        while len(data) >= HEADER.size:
            type_, seq, length = HEADER.unpack_from(data)
            stop = HEADER.size + length
            if stop > len(data):
                break
            if type_ == HELLO:
                self._write(frame(HELLO, seq, {"session_id": self._session_id}))
            elif type_ == PROMPT:
                text = orjson.loads(data[HEADER.size : stop])["text"]
                task = asyncio.ensure_future(self._turn(seq, text))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            data = data[stop:]
        self._rest = data

    async def _turn(self, seq: int, text: str) -> None:
        session = {"session_id": self._session_id}
        turn = {**session, "turn_id": uuid4().hex}
        entry = await self._append("model_input", "user", text, turn["turn_id"])
        receipt = {**turn, "seq": entry["seq"], "position": 0, "state": "running", "model": MODEL}
        started = {**turn, "seq": entry["seq"], "model": MODEL}
        delta = {**turn, "call": 0, "offset": 0, "text": text}
        self._write(
            frame(PROMPT, seq, receipt)
            + frame(ENTRY, 0, {**turn, "entry": entry})
            + frame(STARTED, 0, started)
            + frame(DELTA, 0, delta)
        )
        entry = await self._append(
            "model_output",
            "assistant",
            text,
            turn["turn_id"],
            call=0,
            state="completed",
            invocation={"provider": "bare", "specification": "bare", "model": "echo"},
            usage={"input_tokens": 6, "output_tokens": 2},
            stop_reason="end",
            sent={"tokens": 817, "budget_tokens": 1, "tools_digest": "", "head_seq": self._seq},
        )
        finished = {**turn, "state": "completed", "seq": entry["seq"], "model": MODEL}
        self._write(
            frame(ENTRY, 0, {**turn, "entry": entry, "call": 0}) + frame(FINISHED, 0, finished)
        )

    async def _append(
        self, kind: str, role: str, text: str, turn_id: str, **more: Any
    ) -> dict[str, Any]:
        self._seq += 1
        now = datetime.now(UTC).isoformat()
        entry = {
            "seq": self._seq,
            "id": uuid4().hex,
            "kind": kind,
            "turn_id": turn_id,
            "role": role,
            "content": text,
            "timestamp": now,
            "tool_calls": [],
            "metadata": {},
            **more,
        }
        body = orjson.dumps(entry)[:-1]
        line = b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))
        closing = b'],"updated_at":"%b","head_seq":%d}\n' % (now.encode(), self._seq)
        place, self._end = self._end, self._end + len(line)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(THREADS, self._commit, line + closing, place)
        return entry

    def _commit(self, data: bytes, place: int) -> None:
        os.pwrite(self._file, data, place)
        os.fdatasync(self._file)


async def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Turns(directory), "127.0.0.1", 0)
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
