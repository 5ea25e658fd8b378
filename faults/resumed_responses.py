"""P23: streams of responses are cut at random bytes, half of them by killing the server.

Each is read and resumed by OpenAI's own library, from the number of the last event that it got,
until it has the last event. What it put together must be what the record has: reasoning, text and
the calls of two tools. The numbers of all events must grow. A response that no kill cut off must be
complete.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai
from openai import OpenAI

from faults.plan import Plan
from faults.progress import Progress
from faults.results import Promised, Result
from faults.serving import PATIENCE_SECONDS, ServerProgram
from faults.thinking_model import TOOLS, arguments, words

_SETTINGS: dict[str, object] = {
    "providers": [
        {
            "id": "thinking",
            "type": "python",
            "function": "faults.thinking_model:answer",
            "models": ["model"],
        }
    ],
    "log_level": "error",
}
_STREAMS = 200
_BYTES_MAX = 40_000
"""More than half of a stream's bytes."""
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")
_TOOLS: Any = [{"type": "function", "name": name, "parameters": {}} for name in TOOLS]
_LOST = (openai.APIConnectionError, httpx2.HTTPError)


@dataclass(slots=True, kw_only=True)
class _Received:
    """What a client put together of one response."""

    prompt: str
    response_id: str = ""
    last_number: int = -1
    texts: dict[str, str] = field(default_factory=dict)
    last: Any = None
    was_killed: bool = False
    complaints: list[str] = field(default_factory=list)

    def take(self, events: Iterator[Any]) -> None:
        for event in events:
            if event.sequence_number <= self.last_number:
                self.complaints.append(
                    f"{self.prompt}: event {event.sequence_number} after {self.last_number}"
                )
            self.last_number = event.sequence_number
            if event.type == "response.created":
                self.response_id = event.response.id
            elif event.type.endswith(".delta"):
                place = f"{event.type} {event.output_index}"
                self.texts[place] = self.texts.get(place, "") + event.delta
            elif event.type in _LAST_EVENTS:
                self.last = event


def resumed_responses(plan: Plan) -> list[Result]:
    chance, complaints = plan.chance("responses"), list[str]()
    counts = {"cuts": 0, "kills": 0, "incomplete": 0}
    streams = 20 if plan.quick else _STREAMS
    progress = Progress("P23 streams", streams)
    with ServerProgram(plan.new_path("responses") / "data", settings=_SETTINGS) as server:
        server.start()
        for number in range(streams):
            received = _Received(prompt=f"stream {number}")
            _read(received, server, chance, kills=number % 2 == 0, counts=counts)
            _judge(received, server, counts, is_sabotaged=plan.sabotage)
            complaints += received.complaints
            progress.step(f"{counts}")
    progress.end()
    if not counts["incomplete"]:
        complaints.append("no response was ever cut off: nothing was tried")
    found = (
        f"{streams} streams, {counts['cuts']} cuts, {counts['kills']} kills, "
        f"{counts['incomplete']} incomplete"
    )
    what = "streams of responses, cut at random bytes and by kills, resumed by OpenAI's library"
    return [Promised(number="P23", what=what).judged(complaints, found)]


def _read(
    received: _Received,
    server: ServerProgram,
    chance: random.Random,
    *,
    kills: bool,
    counts: dict[str, int],
) -> None:
    """Reads until the last event. The first connection is cut, and perhaps a second one."""
    for attempt in range(100):
        bytes_max = chance.randrange(_BYTES_MAX) if attempt < 1 + chance.randrange(2) else None
        with (
            _cutting(server.http_port, bytes_max) as port,
            _client(port) as client,
            suppress(*_LOST),
        ):
            received.take(iter(_stream(client, received)))
        if received.last is not None:
            return
        counts["cuts"] += bytes_max is not None
        if kills and not received.was_killed:
            received.was_killed = True
            counts["kills"] += 1
            server.kill()
            server.start()
    received.complaints.append(f"{received.prompt}: it never ends")


def _stream(client: OpenAI, received: _Received) -> Any:
    if not received.response_id:  # the response had not begun for the client
        return client.responses.create(
            model="thinking/model", input=received.prompt, stream=True, tools=_TOOLS
        )
    return client.responses.retrieve(
        received.response_id, stream=True, starting_after=received.last_number
    )


def _client(port: int) -> OpenAI:
    return OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key="any",
        max_retries=0,
        timeout=PATIENCE_SECONDS,
    )


def _judge(
    received: _Received, server: ServerProgram, counts: dict[str, int], *, is_sabotaged: bool
) -> None:
    with _client(server.http_port) as client:
        stored = client.responses.retrieve(received.response_id)
    expected: dict[str, str] = {}
    for place, item in enumerate(stored.output):
        if item.type == "reasoning":
            expected[f"response.reasoning_summary_text.delta {place}"] = item.summary[0].text
        elif item.type == "message":
            expected[f"response.output_text.delta {place}"] = stored.output_text
        elif item.type == "function_call":
            expected[f"response.function_call_arguments.delta {place}"] = item.arguments
    if is_sabotaged:
        expected = {place: text[1:] for place, text in expected.items()}
    if received.texts != expected:
        received.complaints.append(
            f"{received.prompt}: received {received.texts!r}, stored {expected!r}"
        )
    whole = "".join(words(received.prompt))
    if stored.status == "completed":
        calls = [item.arguments for item in stored.output if item.type == "function_call"]
        if stored.output_text != whole or calls != [arguments(received.prompt)] * len(TOOLS):
            received.complaints.append(f"{received.prompt}: stored {stored.output!r}")
        return
    counts["incomplete"] += 1
    if not received.was_killed or not whole.startswith(stored.output_text):
        received.complaints.append(f"{received.prompt}: it is {stored.status}")


@contextmanager
def _cutting(port: int, bytes_max: int | None) -> Iterator[int]:
    """A port that leads to the server, until so many bytes have come from there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_forward, args=(listening, port, bytes_max), daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_SECONDS)


def _forward(listening: socket.socket, port: int, bytes_max: int | None) -> None:
    with suppress(OSError):
        client, _ = listening.accept()
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            up = threading.Thread(target=_pump, args=(client, server, None), daemon=True)
            up.start()
            _pump(server, client, bytes_max)
            for sock in (client, server):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            up.join(PATIENCE_SECONDS)


def _pump(source: socket.socket, target: socket.socket, bytes_max: int | None) -> None:
    left = bytes_max
    with suppress(OSError):
        while data := source.recv(4_096):
            if left is not None and len(data) >= left:
                target.sendall(data[:left])
                return
            target.sendall(data)
            if left is not None:
                left -= len(data)
        target.shutdown(socket.SHUT_WR)
