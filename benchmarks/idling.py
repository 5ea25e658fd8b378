"""B9: what a connection costs while nobody says anything.

A thousand connections that said HELLO and stand in a conversation of their
own; the server's resident memory before and after, divided. A few are opened
first and stay, so that what the server allocates once is not counted.
"""

from __future__ import annotations

import resource
import time
from statistics import median

from benchmarks.processes import Program, server
from benchmarks.progress import tick
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict
from benchmarks.wire import Caller

CONNECTIONS = 1_000
EARLIER = 20
ROUNDS = 5
LOOKS_MAX = 10
ROOM = {"limits": {"connections_max": CONNECTIONS + 2 * EARLIER}}


def idling(plan: Plan) -> list[Verdict]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connections = plan.sized(CONNECTIONS, smoke=50)
    figures = []
    for _ in range(plan.rounds(ROUNDS)):
        with server(plan.new_path("idle"), settings=ROOM) as program:
            figures.append(_bytes_per_connection(program, connections) / 1024)
        tick()
    question = Question(number="B9", what="an idle connection, session state included")
    return [question.at_most(8, median(figures), unit="KiB RSS")]


def _bytes_per_connection(program: Program, connections: int) -> float:
    callers = [Caller(program.port) for _ in range(EARLIER)]
    before = _settled_bytes(program)
    callers += [Caller(program.port) for _ in range(connections)]
    after = _settled_bytes(program)
    for caller in callers:
        caller.sock.close()
    return (after - before) / connections


def _settled_bytes(program: Program) -> int:
    """The first two equal looks, a sweep of the server apart."""
    now = program.resident_bytes()
    for _ in range(LOOKS_MAX):
        time.sleep(1.2)
        last, now = now, program.resident_bytes()
        if now == last:
            break
    return now
