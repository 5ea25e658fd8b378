"""B15: a whole turn, from PROMPT to TURN_FINISHED, with a provider that answers at once.

The figures are the server's CPU time per turn, with everything a turn does (record,
commit, events), and turns per second. Every measurement is the same work: as many turns
in as many new conversations, one conversation after another or all at once. Commits are
durable, so the rate also depends on the disk. The first turn of each conversation creates
its file and is not counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from benchmarks.measuring import Rounds, alternate_several
from benchmarks.processes import Program, server
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict, compared
from benchmarks.wire import PROMPT, TURN_FINISHED, Caller

ROUNDS = 5
CONVERSATIONS = 8
TURNS_EACH = 15
SHORT_WORDS, LONG_WORDS = 2, 200
CPU_MS_MAX = 1.0
"""For the short turn. The other goals of B15 need peers that are not here yet."""


def whole_turn(plan: Plan) -> list[Verdict]:
    verdicts: list[Verdict] = []
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(server(plan.new_path("turns"), checkout=checkout))
            for name, checkout in plan.checkouts.items()
        }
        for clients in (1, CONVERSATIONS):
            for words in (SHORT_WORDS, LONG_WORDS):
                rounds = _measured(plan, programs, clients=clients, words=words)
                what = f"turn of {words} words, {clients} client{'s' * (clients > 1)}"
                verdicts += _verdicts(what, rounds, has_goal=words == SHORT_WORDS)
    return verdicts


def _verdicts(what: str, found: dict[str, Rounds], *, has_goal: bool) -> list[Verdict]:
    cpu, rate = found["CPU"], found["rate"]
    of_cpu = Question(number="B15", what=f"{what}, server CPU")
    milliseconds = cpu.median("here")
    return [
        of_cpu.at_most(CPU_MS_MAX, milliseconds, unit="ms")
        if has_goal
        else of_cpu.without_goal(milliseconds, unit="ms"),
        Question(number="B15", what="the same, rate").without_goal(
            rate.median("here"), unit="turns/s"
        ),
        *compared("B15", "CPU", cpu, unit="ms"),
        *compared("B15", "rate", rate, unit="turns/s"),
    ]


def _measured(
    plan: Plan, programs: dict[str, Program], *, clients: int, words: int
) -> dict[str, Rounds]:
    turns = plan.sized(TURNS_EACH, smoke=1)
    text = " ".join(["word"] * words)
    measures: dict[str, Callable[[], dict[str, float]]] = {
        name: partial(_cost_of_turns, program, text, clients=clients, turns=turns)
        for name, program in programs.items()
    }
    for warm_up in measures.values():
        warm_up()
    return alternate_several(measures, rounds=plan.rounds(ROUNDS))


def _cost_of_turns(program: Program, text: str, *, clients: int, turns: int) -> dict[str, float]:
    with ExitStack() as stack, ThreadPoolExecutor(clients) as pool:
        callers = [stack.enter_context(Caller(program.port)) for _ in range(CONVERSATIONS)]
        for caller in callers:
            _take_turns(caller, text, 1)
        before, begun = program.cpu_seconds(), time.perf_counter()
        list(pool.map(lambda caller: _take_turns(caller, text, turns), callers))
        seconds, cpu_seconds = time.perf_counter() - begun, program.cpu_seconds() - before
    count = CONVERSATIONS * turns
    return {"CPU": cpu_seconds / count * 1e3, "rate": count / seconds}


def _take_turns(caller: Caller, text: str, turns: int) -> None:
    for _ in range(turns):
        caller.request(PROMPT, {"text": text})
        finished = json.loads(caller.until(TURN_FINISHED).payload)
        if finished["state"] != "completed":
            raise ValueError(f"the turn did not complete: {finished}")
