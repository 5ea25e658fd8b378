"""Turns in many conversations at once: a closed loop, one prompt in flight for each client.

Every client is a connection with a conversation of its own. It sends a PROMPT, reads until
TURN_FINISHED, and sends the next. The first turns create the file and are not counted.
"""

from __future__ import annotations

import json
import select
import time
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.processes import Program
from benchmarks.wire import PROMPT, SECONDS_MAX, TURN_FINISHED, Caller, encode, split

FIRST_TURNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCost:
    cpu_seconds: float
    wall_seconds: float


def cost_of_turns(
    program: Program, text: str, *, clients: int, turns: int, model: str | None = None
) -> TurnCost:
    """Of one turn, on average. `model`: another than the server's default."""
    fields = {"text": text} | ({"model": model} if model else {})
    with ExitStack() as stack:
        callers = [stack.enter_context(Caller(program.port)) for _ in range(clients)]
        for caller in callers:
            for _ in range(FIRST_TURNS):
                caller.request(PROMPT, fields)
                _check(caller.until(TURN_FINISHED).payload)
        before, begun = program.cpu_seconds(), time.perf_counter()
        _take_turns(callers, encode(PROMPT, 9, fields), turns)
        wall, cpu = time.perf_counter() - begun, program.cpu_seconds() - before
    count = clients * turns
    return TurnCost(cpu_seconds=cpu / count, wall_seconds=wall / count)


def _take_turns(callers: list[Caller], prompt: bytes, turns: int) -> None:
    waiting = select.epoll()
    sockets = {caller.sock.fileno(): caller.sock for caller in callers}
    rests, left = dict.fromkeys(sockets, b""), dict.fromkeys(sockets, turns)
    for number, sock in sockets.items():
        waiting.register(number, select.EPOLLIN)
        sock.sendall(prompt)
    busy = len(sockets)
    while busy:
        ready = waiting.poll(SECONDS_MAX)
        if not ready:
            raise TimeoutError("a turn did not end")
        for number, _ in ready:
            data = sockets[number].recv(1 << 16)
            if not data:
                raise ConnectionError("the server closed a connection")
            frames, rests[number] = split(rests[number] + data)
            for frame in frames:
                if frame.type != TURN_FINISHED:
                    continue
                _check(frame.payload)
                left[number] -= 1
                if left[number]:
                    sockets[number].sendall(prompt)
                else:
                    busy -= 1
    waiting.close()


def _check(finished: bytes) -> None:
    if b'"state":"completed"' not in finished:
        raise ValueError(f"the turn did not complete: {json.loads(finished)}")
