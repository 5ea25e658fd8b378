"""B20: what it costs a turn that twenty clients watch a thousand conversations.

Two servers have the same conversations; at one of them twenty connections have sent WATCH and
read what they are sent. The same turns run at both, by turns. Each of 64 clients prompts in a
conversation of its own, one after the other, so that rows change all the time; a single client is
measured too. Then nothing happens, and the CPU time of the watched server is counted.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.measuring import alternate
from benchmarks.processes import ROOT, Program, server
from benchmarks.scratch import Plan
from benchmarks.turn_load import cost_of_turns
from benchmarks.verdicts import Question, Verdict
from benchmarks.whole_turn import SETTINGS
from benchmarks.wire import SESSION_NEW, WATCH, Caller

WATCHERS = 20
CONVERSATIONS = 1_000
CLIENTS = 64
TURNS = 32
"""In each round, of each client."""
RATIO_MAX = 1.25
IDLE_SECONDS = 5.0
IDLE_PERCENT_MAX = 0.5
"""As an idle server without watchers: it looks at its connections once a second."""


def watching(plan: Plan) -> list[Verdict]:
    conversations = plan.sized(CONVERSATIONS, smoke=10)
    with ExitStack() as stack:
        programs: dict[str, Program] = {}
        for name in ("watched", "not watched"):
            path = plan.new_path(name.replace(" ", "-"))
            program = server(path, settings=SETTINGS, python_path=ROOT)
            programs[name] = stack.enter_context(program)
            with Caller(programs[name].port) as caller:
                for number in range(conversations):
                    caller.request(SESSION_NEW, {"name": f"conversation {number}"})
        stack.enter_context(_watchers(programs["watched"], plan.sized(WATCHERS, smoke=2)))
        verdicts = [
            _ratio(plan, programs, clients) for clients in (1, plan.sized(CLIENTS, smoke=4))
        ]
        return [*verdicts, _idle(programs, plan.sized(int(IDLE_SECONDS), smoke=1))]


def _ratio(plan: Plan, programs: dict[str, Program], clients: int) -> Verdict:
    turns = plan.sized(TURNS * (1 if clients > 1 else 8), smoke=2)

    def cpu_of(program: Program) -> float:
        return cost_of_turns(program, "hello world", clients=clients, turns=turns).cpu_seconds

    rounds = alternate(
        {
            "watched": lambda: cpu_of(programs["watched"]),
            "not watched": lambda: cpu_of(programs["not watched"]),
        },
        rounds=plan.rounds(),
    )
    what = f"turn with 20 watchers, {clients} client{'s' * (clients > 1)}, server CPU"
    return Question(number="B20", what=what).at_most(
        RATIO_MAX,
        rounds.ratio("watched", "not watched"),
        unit="× none",
        details=rounds.summary("watched", "not watched", unit="ms", per_unit=1e3),
    )


def _idle(programs: dict[str, Program], seconds: int) -> Verdict:
    time.sleep(1.0)  # the last rows are sent
    before = {name: program.cpu_seconds() for name, program in programs.items()}
    time.sleep(seconds)
    spent = {name: program.cpu_seconds() - before[name] for name, program in programs.items()}
    percent = {name: cpu / seconds * 100 for name, cpu in spent.items()}
    return Question(number="B20", what="idle with 20 watchers, more than without").at_most(
        IDLE_PERCENT_MAX,
        max(0.0, percent["watched"] - percent["not watched"]),
        unit="% of a processor",
        details=", ".join(f"{name} {each:.2f} %" for name, each in percent.items()),
    )


@contextmanager
def _watchers(program: Program, count: int) -> Iterator[None]:
    """That many connections that watch, and a thread that reads what they are sent."""
    with ExitStack() as stack:
        callers = [stack.enter_context(Caller(program.port)) for _ in range(count)]
        for caller in callers:
            caller.request(WATCH)
        stopped = threading.Event()

        def read() -> None:
            sockets = [caller.sock for caller in callers]
            while not stopped.is_set():
                for sock in select.select(sockets, [], [], 0.2)[0]:
                    sock.recv(1 << 20)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield
        finally:
            stopped.set()
            reader.join()
