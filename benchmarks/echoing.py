"""B1, B2: PING → PONG through the real server, against the least that could do it.

The figure is the server's CPU time per echo of 64 bytes. B1 keeps sixteen in
flight on each of 64 connections, so framing counts; B2 keeps one, so the way
from the socket to the decoder and back counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.echo_load import BARE, STRUCTURED, WEBSOCKET, EchoLoad, Talk
from benchmarks.measuring import Rounds, alternate
from benchmarks.processes import Program, peer, server
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict

CONNECTIONS = 64
SECONDS, SMOKE_SECONDS = 0.6, 0.05
ROUNDS = 9


def pipelined(plan: Plan) -> list[Verdict]:
    rounds = _measured(plan, in_flight=16)
    return [
        Question(number="B1", what="PING→PONG, 64 × 16, server CPU per frame").at_most(
            1.5,
            rounds.ratio("nplt", "bare"),
            unit="× bare Protocol",
            details=rounds.summary("nplt", "bare", unit="µs"),
        ),
        Question(number="B1", what="the same, websockets' CPU to ours").at_least(
            10,
            rounds.ratio("websockets", "nplt"),
            unit="×",
            details=rounds.summary("nplt", "websockets", unit="µs"),
        ),
    ]


def one_at_a_time(plan: Plan) -> list[Verdict]:
    rounds = _measured(plan, in_flight=1)
    return [
        Question(number="B2", what="PING→PONG, 64 × 1, server CPU per frame").at_most(
            1.6,
            rounds.ratio("nplt", "bare"),
            unit="× bare Protocol",
            details=rounds.summary("nplt", "bare", unit="µs"),
        ),
        Question(number="B2", what="the same, websockets' CPU to ours").at_least(
            1.8,
            rounds.ratio("websockets", "nplt"),
            unit="×",
            details=rounds.summary("nplt", "websockets", unit="µs"),
        ),
    ]


def _measured(plan: Plan, *, in_flight: int) -> Rounds:
    seconds = plan.sized(SECONDS, smoke=SMOKE_SECONDS)
    with (
        server(plan.new_path("echo")) as ours,
        peer("bare_echo") as bare,
        peer("websockets_echo") as websockets,
        cpu_per_echo(STRUCTURED, ours, in_flight=in_flight, seconds=seconds) as of_ours,
        cpu_per_echo(BARE, bare, in_flight=in_flight, seconds=seconds) as of_bare,
        cpu_per_echo(WEBSOCKET, websockets, in_flight=in_flight, seconds=seconds) as of_websockets,
    ):
        things = {"nplt": of_ours, "bare": of_bare, "websockets": of_websockets}
        return alternate(things, rounds=plan.rounds(ROUNDS))


@contextmanager
def cpu_per_echo(
    talk: Talk, program: Program, *, in_flight: int, seconds: float
) -> Iterator[Callable[[], float]]:
    """Microseconds of the program's CPU time per echo, as often as it is asked."""
    load = EchoLoad(talk, program.port, connections=CONNECTIONS, in_flight=in_flight)

    def measure() -> float:
        before = program.cpu_seconds()
        echoes = load.run(seconds)
        return (program.cpu_seconds() - before) / echoes * 1e6

    try:
        load.run(seconds / 4)
        yield measure
    finally:
        load.close()
