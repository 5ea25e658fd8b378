"""B4: one turn's deltas to a hundred attached clients.

Compared with one write per token and client. The server may join tokens that
come within one tick of its loop into one frame, so the figure is its CPU time
per token and client: for the peer that is one frame each. The whole turn
counts, its entries and its commits too, from the prompt to TURN_FINISHED.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.fan_out_load import listen
from benchmarks.measuring import alternate
from benchmarks.peers.write_per_token import COUNT, frame_of
from benchmarks.processes import Program, peer, server
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict
from benchmarks.wire import (
    ATTACH,
    PROMPT,
    SECONDS_MAX,
    SESSION_EVENT,
    STATUS,
    TEXT_DELTA,
    TURN_FINISHED,
    Caller,
    encode,
    split,
)

CLIENTS = 100
OUR_TOKENS = 8_000
PEER_TOKENS = 1_000


def fanning_out(plan: Plan) -> list[Verdict]:
    clients = plan.sized(CLIENTS, smoke=5)
    with (
        server(plan.new_path("fan-out")) as ours,
        peer("write_per_token") as other,
        _turns_of_ours(ours, clients, plan.sized(OUR_TOKENS, smoke=200)) as turns,
        _turns_of_peer(other, clients, plan.sized(PEER_TOKENS, smoke=200)) as of_peer,
    ):
        rounds = alternate(
            {"nplt": turns.measure, "write per token": of_peer}, rounds=plan.rounds()
        )
    details = rounds.summary("nplt", "write per token", unit="µs")
    details += (
        f" a token and client; {turns.tokens_received / turns.frames_received:.0f} tokens a frame"
    )
    question = Question(number="B4", what="deltas to 100 clients, server CPU")
    ratio = rounds.ratio("nplt", "write per token")
    return [question.at_most(0.2, ratio, unit="× one write per token", details=details)]


@dataclass(slots=True)
class _TurnEar:
    text: list[str] = field(default_factory=list)
    _rest: bytes = b""

    def receive(self, data: bytes) -> bool:
        frames, self._rest = split(self._rest + data)
        for frame in frames:
            if frame.type == TEXT_DELTA:
                self.text.append(json.loads(frame.payload)["text"])
            elif frame.type == SESSION_EVENT and json.loads(frame.payload)["event"] == "lagged":
                raise ConnectionError(f"a client could not keep up: {frame.payload!r}")
            elif frame.type == TURN_FINISHED:
                return True
        return False


@dataclass(slots=True)
class _CountingEar:
    missing: int

    def receive(self, data: bytes) -> bool:
        self.missing -= len(data)
        return self.missing == 0


@dataclass(slots=True, kw_only=True)
class _Turns:
    program: Program
    callers: list[Caller]
    tokens: int
    tokens_received: int = 0
    frames_received: int = 0

    def measure(self) -> float:
        text = "a " * self.tokens
        before = self.program.cpu_seconds()
        self.callers[0].sock.sendall(encode(PROMPT, 100, {"text": text}))
        ears = listen([caller.sock for caller in self.callers], _TurnEar)
        spent = self.program.cpu_seconds() - before
        for ear in ears:
            assert isinstance(ear, _TurnEar)
            if "".join(ear.text) != text:
                raise ValueError("a client heard something else")
            self.frames_received += len(ear.text)
        tokens = self.tokens * len(self.callers)
        self.tokens_received += tokens
        return spent / tokens * 1e6


@contextmanager
def _turns_of_ours(program: Program, clients: int, tokens: int) -> Iterator[_Turns]:
    callers = [Caller(program.port) for _ in range(clients)]
    session_id = callers[0].welcome["session_id"]
    for caller in callers[1:]:
        caller.request(ATTACH, {"session_id": session_id})
    for caller in callers:
        caller.request(STATUS)  # its reply comes after the presence events of all who attached
    try:
        turns = _Turns(program=program, callers=callers, tokens=tokens)
        turns.measure()
        yield turns
    finally:
        for caller in callers:
            caller.sock.close()


@contextmanager
def _turns_of_peer(program: Program, clients: int, tokens: int) -> Iterator[Callable[[], float]]:
    address = ("127.0.0.1", program.port)
    sockets = [socket.create_connection(address, timeout=SECONDS_MAX) for _ in range(clients)]
    due_bytes = sum(len(frame_of(number)) for number in range(tokens))

    def measure() -> float:
        before = program.cpu_seconds()
        sockets[0].sendall(COUNT.pack(tokens))
        listen(sockets, lambda: _CountingEar(due_bytes))
        return (program.cpu_seconds() - before) / (tokens * clients) * 1e6

    try:
        yield measure
    finally:
        for sock in sockets:
            sock.close()
