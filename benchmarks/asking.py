"""B11: what `nplt ask` adds to the server's answer.

A whole `nplt ask` process against a server that answers at once, compared with
one that only imports anyio. Judged by process time, which waiting for the
server does not add to; the time on the wall, less what the same conversation
takes over a connection of ours, is shown beside it.
"""

from __future__ import annotations

import sys
import time
from statistics import median

from benchmarks.measuring import alternate
from benchmarks.processes import Program, cost_of, server
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict
from benchmarks.wire import PROMPT, TURN_FINISHED, Caller

ROUNDS = 15
TEXT = "hello"
IMPORT = (sys.executable, "-c", "import anyio")


def asking(plan: Plan) -> list[Verdict]:
    waits: list[float] = []
    with server(plan.new_path("ask")) as program:
        address = f"nplt://127.0.0.1:{program.port}"
        command = (sys.executable, "-m", "nplt_client", "ask", TEXT, "-q", "--server", address)

        def ask() -> float:
            cost = cost_of(*command)
            waits.append(cost.wall_seconds - _seconds_to_answer(program))
            return cost.cpu_seconds

        cost_of(*command)
        cost_of(*IMPORT)
        things = {"ask": ask, "import": lambda: cost_of(*IMPORT).cpu_seconds}
        rounds = alternate(things, rounds=plan.rounds(ROUNDS))
    details = rounds.told("ask", "import", unit="ms", per_unit=1e3)
    details += f"; on the wall, beyond the answer, {median(waits) * 1e3:.0f} ms"
    question = Question(number="B11", what="nplt ask, beyond the server's answer")
    ratio = rounds.ratio("ask", "import")
    return [question.at_most(2.5, ratio, unit="× import anyio", details=details)]


def _seconds_to_answer(program: Program) -> float:
    figures: list[float] = []
    for _ in range(5):
        begun = time.perf_counter()
        with Caller(program.port) as caller:
            caller.request(PROMPT, {"text": TEXT})
            caller.until(TURN_FINISHED)
        figures.append(time.perf_counter() - begun)
    return median(figures)
