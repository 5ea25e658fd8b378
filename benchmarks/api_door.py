"""B19: OpenAI's API in front of the same turns as the protocol.

A vendor's stream passes through the server to a client: once as a PROMPT, once as a chat completion
in a conversation, once as one that is not recorded. The figures are the server's CPU time per chunk
of the vendor, and the time from the request to the first text. The vendor sends a chunk each
millisecond, so that each is an event of its own; as fast as they are taken is told besides.

LiteLLM's proxy is measured with a mock answer if it is installed in `.venv-peers`, beside a chat
completion of a model that answers at once. A thousand streams that are silent show what a waiting
client costs in memory.
"""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from benchmarks.measuring import alternate_several
from benchmarks.peers.streaming_vendor import WORD
from benchmarks.processes import PEERS, ROOT, Program, peer, server
from benchmarks.scratch import Plan
from benchmarks.streaming import _provider
from benchmarks.verdicts import Question, Verdict
from benchmarks.whole_turn import PEER_TURNS, SETTINGS
from benchmarks.wire import (
    HELLO,
    PROMPT,
    SECONDS_MAX,
    STATUS,
    TEXT_DELTA,
    TURN_FINISHED,
    Caller,
    encode,
    split,
)

CHUNKS = 2_000
STREAMS = 1_000
_RATIO_MAX = 2.0
_PEER_RATIO_MIN = 3.0
_DOORS = ("nplt", "http", "http unrecorded")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """One answer, as a client read it."""

    characters: int
    first_seconds: float


def api_door(plan: Plan) -> list[Verdict]:
    return [*_streams(plan), *_litellm(plan), _silent_streams(plan)]


def _streams(plan: Plan) -> list[Verdict]:
    chunks = plan.sized(CHUNKS, smoke=50)
    with (
        peer("streaming_vendor", str(chunks)) as vendor,
        server(plan.new_path("door"), settings={"providers": [_provider(vendor)]}) as ours,
    ):
        port = _http_port(ours)
        reads: dict[str, Callable[[str], _Read]] = {
            "nplt": lambda model: _prompt(ours, model),
            "http": lambda model: _complete(port, model, recorded=True),
            "http unrecorded": lambda model: _complete(port, model, recorded=False),
        }

        def measure(door: str, model: str) -> dict[str, float]:
            before = ours.cpu_seconds()
            read = reads[door](model)
            if read.characters != chunks * len(WORD):
                raise ValueError(f"{door}: it read {read.characters} characters")
            spent = ours.cpu_seconds() - before
            return {"CPU": spent * 1e6 / chunks, "first": read.first_seconds * 1e3}

        for door in _DOORS:
            measure(door, "burst")  # imports, and the first of everything
        found = {
            model: alternate_several(
                {door: partial(measure, door, model) for door in _DOORS},
                rounds=plan.rounds(),
            )
            for model in ("paced", "burst")
        }
    paced, burst = found["paced"], found["burst"]
    verdicts: list[Verdict] = []
    for door, goal in (("http", _RATIO_MAX), ("http unrecorded", None)):
        what = "in a conversation" if goal else "unrecorded"
        rows = (
            (f"chat completions {what}, CPU per chunk, one each ms", paced["CPU"], "µs"),
            ("the same, chunks as fast as they are taken", burst["CPU"], "µs"),
            ("the same, first text", paced["first"], "ms"),
        )
        for name, rounds, unit in rows:
            question = Question(number="B19", what=name)
            ratio, details = rounds.ratio(door, "nplt"), rounds.summary("nplt", door, unit=unit)
            has_goal = goal is not None and rounds is not burst["CPU"]
            verdicts.append(
                question.at_most(_RATIO_MAX, ratio, unit="× nplt", details=details)
                if has_goal
                else question.without_goal(ratio, unit="× nplt", details=details)
            )
    return verdicts


def _http_port(program: Program) -> int:
    with Caller(program.port) as caller:
        url: str = caller.request(STATUS)["http"]
    return int(url.rstrip("/").rsplit(":", 1)[1])


def _prompt(program: Program, model: str) -> _Read:
    """A prompt in a conversation of its own, by the protocol."""
    with socket.create_connection(("127.0.0.1", program.port), timeout=SECONDS_MAX) as sock:
        begun = time.perf_counter()
        sock.sendall(
            encode(HELLO, 1) + encode(PROMPT, 2, {"text": "go", "model": f"vendor/{model}"})
        )
        buffer, characters, first = b"", 0, 0.0
        while data := sock.recv(65_536):
            frames, buffer = split(buffer + data)
            for frame in frames:
                if frame.type == TEXT_DELTA:
                    first = first or time.perf_counter() - begun
                    characters += len(json.loads(frame.payload)["text"])
                elif frame.type == TURN_FINISHED:
                    return _Read(characters=characters, first_seconds=first)
    raise ConnectionError("the server closed the connection")


_NUMBERS = count()


def _complete(port: int, model: str, *, recorded: bool) -> _Read:
    place = f"/c/door-{next(_NUMBERS)}" if recorded else ""
    begun = time.perf_counter()
    characters, first = 0, 0.0
    for event in _events(port, place, {"model": f"vendor/{model}", "stream": True}):
        text = event["choices"][0]["delta"].get("content") if event["choices"] else None
        if text:
            first = first or time.perf_counter() - begun
            characters += len(text)
    return _Read(characters=characters, first_seconds=first)


def _events(port: int, place: str, fields: dict[str, object]) -> Iterator[Any]:
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX) as sock:
        sock.sendall(_request(place, fields))
        buffer = b""
        while data := sock.recv(65_536):
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data: [DONE]"):
                    return
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])


def _request(place: str, fields: dict[str, object], text: str = "go") -> bytes:
    body = json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode()
    head = (
        f"POST {place}/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _litellm(plan: Plan) -> list[Verdict]:
    question = Question(number="B19", what="CPU of a LiteLLM proxy, one call of 2 words")
    python = PEERS / "python"
    if not python.exists():
        return [question.skipped("there is no .venv-peers: make peers")]
    turns = plan.sized(PEER_TURNS, smoke=2)
    script = ROOT / "benchmarks" / "peers" / "other_turns.py"
    command = [str(python), str(script), "litellm", str(turns), str(plan.new_path("litellm"))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or ["no reason given"]
        return [question.skipped(f"{last[0][:120]}; make peers")]
    theirs = float(ran.stdout.split()[-1])
    with server(plan.new_path("instant"), settings=SETTINGS, python_path=ROOT) as ours:
        port = _http_port(ours)
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX) as sock:
            before = begun = 0.0
            for number in range(turns + 5):
                if number == 5:  # after the imports
                    before, begun = ours.cpu_seconds(), time.perf_counter()
                sock.sendall(_request("/c/peer", {"model": "instant/echo"}, "hello world"))
                _read_response(sock)
            wall = (time.perf_counter() - begun) * 1e3 / turns
            spent = (ours.cpu_seconds() - before) * 1e3 / turns
    details = f"LiteLLM {theirs:.2f} ms, nplt {spent:.2f} ms in a conversation"
    return [
        question.at_least(_PEER_RATIO_MIN, theirs / spent, unit="× ours", details=details),
        Question(number="B19", what="the same call to nplt, on the wall").without_goal(
            wall, unit="ms"
        ),
    ]


def _read_response(sock: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(65_536)


def _silent_streams(plan: Plan) -> Verdict:
    streams = plan.sized(STREAMS, smoke=10)
    limits = {"turns_max": streams + 10, "connections_max": streams + 10}
    with _descriptors(), server(plan.new_path("silent"), settings={"limits": limits}) as ours:
        port = _http_port(ours)
        with ExitStack() as stack:

            def open_stream() -> None:
                sock = socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)
                stack.enter_context(sock)
                sock.sendall(_request("", {"stream": True}, "!slow 86400 one two three four"))
                received = b""
                while b"[" not in received.partition(b"\r\n\r\n")[2]:
                    received += sock.recv(65_536)

            open_stream()
            before = ours.resident_bytes()
            for _ in range(streams):
                open_stream()
            held = (ours.resident_bytes() - before) / streams / 1024
    question = Question(number="B19", what=f"{streams:,} silent streams, memory of each")
    return question.without_goal(held, unit="KiB")


@contextmanager
def _descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
