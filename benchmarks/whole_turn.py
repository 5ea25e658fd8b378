"""B15: a whole turn, from PROMPT to TURN_FINISHED, with a model that answers at once.

The figures are the server's CPU time per turn, with everything a turn does (record, commit,
events), and turns per second, beside a bare server that writes the same lines with `pwrite`
and `fdatasync` and answers the same frames (`peers.bare_turns`). The model is a Python
function (`type: python`). Commits are durable, so the rate also depends on the disk.

What people would run instead is measured if it is installed in `.venv-peers`
(`peers/requirements.txt`). Each of them answers from a mock: LiteLLM's proxy a chat
completion over HTTP, without a record; pydantic-ai and openai-agents in their own process,
with a record in SQLite.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from benchmarks.measuring import Rounds, alternate_several
from benchmarks.processes import PEERS, ROOT, Program, peer, server
from benchmarks.scratch import Plan
from benchmarks.turn_load import cost_of_turns
from benchmarks.verdicts import Question, Verdict, compared

ROUNDS = 9
CLIENTS = 64
TURNS = 256
"""In each round, of all clients together."""
TEXTS = {"2 words": "hello world", "1 kB": "word " * 200}
FLOOR_RATIOS_MAX = {"2 words": 1.6, "1 kB": 2.0}
PEER_RATIO_MIN = 5.0
SETTINGS = {
    "providers": [
        {
            "id": "instant",
            "type": "python",
            "function": "benchmarks.peers.instant_model:answer",
            "models": ["echo"],
        }
    ],
    "limits": {"turns_per_user_max": CLIENTS},
}
OTHERS = {"litellm": "a LiteLLM proxy", "pydantic_ai": "pydantic-ai", "agents": "openai-agents"}
PEER_TURNS = 100


def whole_turn(plan: Plan) -> list[Verdict]:
    verdicts: list[Verdict] = []
    short: float | None = None
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(
                server(
                    plan.new_path("turns"), settings=SETTINGS, checkout=checkout, python_path=ROOT
                )
            )
            for name, checkout in plan.checkouts.items()
        }
        programs["bare"] = stack.enter_context(peer("bare_turns", str(plan.new_path("bare"))))
        for clients in (1, plan.sized(CLIENTS, smoke=4)):
            for length, text in TEXTS.items():
                found = _measured(plan, programs, text, clients=clients)
                what = f"turn of {length}, {clients} client{'s' * (clients > 1)}"
                verdicts += _verdicts(what, found, ratio_max=FLOOR_RATIOS_MAX[length])
                short = found["CPU"].median("here") if short is None else short
    return verdicts + _peers(plan, short or 0.0)


def _measured(
    plan: Plan, programs: Mapping[str, Program], text: str, *, clients: int
) -> dict[str, Rounds]:
    turns = plan.sized(max(2, TURNS // clients), smoke=1)

    def measure(program: Program) -> dict[str, float]:
        cost = cost_of_turns(program, text, clients=clients, turns=turns)
        return {"CPU": cost.cpu_seconds * 1e3, "rate": 1 / cost.wall_seconds}

    measures: dict[str, Callable[[], dict[str, float]]] = {
        name: partial(measure, program) for name, program in programs.items()
    }
    return alternate_several(measures, rounds=plan.rounds(ROUNDS))


def _verdicts(what: str, found: dict[str, Rounds], *, ratio_max: float) -> list[Verdict]:
    cpu, rate = found["CPU"], found["rate"]
    of_cpu = Question(number="B15", what=f"{what}, server CPU")
    of_rate = Question(number="B15", what="the same, rate")
    milliseconds, per_second = cpu.median("here"), rate.median("here")
    least = f"least of all rounds {min(cpu.figures['here']):.2f} ms"
    rates = rate.summary("here", "bare", unit="turns/s")
    return [
        of_cpu.without_goal(milliseconds, unit="ms", details=least),
        Question(number="B15", what="the same, to the bare server").at_most(
            ratio_max,
            cpu.ratio("here", "bare"),
            unit="× bare",
            details=cpu.summary("here", "bare", unit="ms"),
        ),
        of_rate.without_goal(per_second, unit="turns/s", details=rates),
        *compared("B15", "CPU", cpu, unit="ms"),
        *compared("B15", "rate", rate, unit="turns/s"),
    ]


def _peers(plan: Plan, our_milliseconds: float) -> list[Verdict]:
    python = PEERS / "python"
    verdicts = []
    for module, name in OTHERS.items():
        question = Question(number="B15", what=f"CPU of {name}, one call of 2 words")
        if not python.exists():
            verdicts.append(question.skipped("there is no .venv-peers: make peers"))
            continue
        turns = plan.sized(PEER_TURNS, smoke=2)
        script = ROOT / "benchmarks" / "peers" / "other_turns.py"
        command = [str(python), str(script), module, str(turns), str(plan.new_path(module))]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            last = ran.stderr.strip().splitlines()[-1:] or ["no reason given"]
            verdicts.append(question.skipped(f"{last[0][:120]}; make peers"))
            continue
        milliseconds = float(ran.stdout.split()[-1])
        details = f"{name} {milliseconds:.2f} ms, nplt {our_milliseconds:.2f} ms"
        ratio = milliseconds / our_milliseconds
        verdicts.append(
            question.at_least(PEER_RATIO_MIN, ratio, unit="× ours", details=details)
            if module == "litellm"
            else question.without_goal(ratio, unit="× ours", details=details)
        )
    return verdicts
