"""B22: a whole turn with a provider over HTTP, on loopback.

It is compared with what it can't be less than: the same turn with a function as its provider, and
the same exchange by aiohttp alone, with a body that was made before. All three are measured in the
same rounds, with a short context and with one of 1,600 turns (a megabyte of JSON).

The rate with 64 clients includes the vendor's process and the clients', on the same cores.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.measuring import Rounds, alternate_several, figure
from benchmarks.peers.http_exchanges import TEXT
from benchmarks.processes import PEERS, ROOT, Program, listening, peer, server
from benchmarks.scratch import Plan
from benchmarks.turn_load import cost_of_turns
from benchmarks.verdicts import Question, Verdict
from benchmarks.wire import PROMPT, SECONDS_MAX, TURN_FINISHED, Caller

ROUNDS = 9
LONG_TURNS = 1_600
TURNS = 60
"""In each round."""
CLIENTS = 64
SHORT_RATIO_MAX = 1.3
LONG_RATIO_MAX = 2.0
RATE_MIN = 500.0
HTTP, FUNCTION = "vendor/burst", "instant/echo"
WINDOW_TOKENS = 4_000_000
NO_AIOHTTP = "there is no aiohttp: make peers, or pip install aiohttp"


def http_turns(plan: Plan) -> list[Verdict]:
    with ExitStack() as stack:
        vendor = stack.enter_context(peer("streaming_vendor", "2"))
        program = stack.enter_context(
            server(plan.new_path("http"), settings=_settings(vendor), python_path=ROOT)
        )
        return [
            *_compared(plan, program, vendor, turns=0),
            *_compared(plan, program, vendor, turns=plan.sized(LONG_TURNS, smoke=10)),
            _rate(plan, program),
        ]


def _settings(vendor: Program) -> dict[str, object]:
    url = f"http://127.0.0.1:{vendor.port}/v1"
    function = "benchmarks.peers.instant_model:answer"
    return {
        "providers": [
            {"id": "instant", "type": "python", "function": function, "models": ["echo"]},
            {"id": "vendor", "type": "openai", "api": "chat", "base_url": url, "models": ["burst"]},
        ],
        "models": {model: {"context_tokens": WINDOW_TOKENS} for model in (HTTP, FUNCTION)},
        "limits": {"turns_per_user_max": CLIENTS},
    }


@dataclass(frozen=True, slots=True)
class _Talk:
    """One conversation, with a context of some length."""

    caller: Caller
    model: str

    def turns(self, count: int, text: str, model: str | None = None) -> None:
        for _ in range(count):
            self.caller.request(PROMPT, {"text": text, "model": model or self.model})
            self.caller.until(TURN_FINISHED)


def _compared(plan: Plan, program: Program, vendor: Program, *, turns: int) -> list[Verdict]:
    count = plan.sized(TURNS, smoke=2)
    with ExitStack() as stack:
        measures: dict[str, Callable[[], Mapping[str, float]]] = {}
        for name, model in (("nplt", HTTP), ("function", FUNCTION)):
            talk = _Talk(stack.enter_context(Caller(program.port)), model)
            talk.turns(turns, TEXT, FUNCTION)
            talk.turns(2, "hello world")
            measures[name] = _measure(program, count, partial(talk.turns, count, "hello world"))
        if (python := _python_with_aiohttp()) is not None:
            exchanges, alone = stack.enter_context(_exchanges(python, vendor, turns))
            exchanges(2)
            measures["aiohttp"] = _measure(alone, count, partial(exchanges, count))
        found = alternate_several(measures, rounds=plan.rounds(ROUNDS))
    what = f"turn over HTTP, {turns:,} turns in its context" if turns else "turn over HTTP"
    limit = LONG_RATIO_MAX if turns else SHORT_RATIO_MAX
    return [_verdict(f"{what}, {kind}", rounds, limit) for kind, rounds in found.items()]


def _measure(
    program: Program, count: int, act: Callable[[], None]
) -> Callable[[], dict[str, float]]:
    def measure() -> dict[str, float]:
        cpu, begun = program.cpu_seconds(), time.perf_counter()
        act()
        wall = time.perf_counter() - begun
        return {
            "server CPU": (program.cpu_seconds() - cpu) / count * 1e3,
            "time on the wall": wall / count * 1e3,
        }

    return measure


def _verdict(what: str, rounds: Rounds, limit: float) -> Verdict:
    question = Question(number="B22", what=what)
    details = rounds.summary(*rounds.figures, unit="ms")
    if "aiohttp" not in rounds.figures:
        return question.skipped(f"{NO_AIOHTTP}; {details}")
    figures = (rounds.figures[name] for name in ("nplt", "function", "aiohttp"))
    ratio = median(ours / (turn + wire) for ours, turn, wire in zip(*figures, strict=True))
    return question.at_most(limit, ratio, unit="× (function + aiohttp alone)", details=details)


def _rate(plan: Plan, program: Program) -> Verdict:
    clients = plan.sized(CLIENTS, smoke=4)
    costs = [
        cost_of_turns(program, "hello world", clients=clients, turns=4, model=HTTP)
        for _ in range(plan.rounds(ROUNDS))
    ]
    rate = median(1 / cost.wall_seconds for cost in costs)
    cpu = median(cost.cpu_seconds for cost in costs) * 1e3
    return Question(number="B22", what=f"the same, {clients} clients, rate").at_least(
        RATE_MIN,
        rate,
        unit="turns/s",
        details=f"with the vendor and the clients on these cores; server CPU {figure(cpu)} ms",
    )


def _python_with_aiohttp() -> Path | None:
    if importlib.util.find_spec("aiohttp") is not None:
        return Path(sys.executable)
    return python if (python := PEERS / "python").exists() else None


@contextmanager
def _exchanges(
    python: Path, vendor: Program, turns: int
) -> Iterator[tuple[Callable[[int], None], Program]]:
    script = str(ROOT / "benchmarks" / "peers" / "http_exchanges.py")
    with (
        listening([str(python), script, str(vendor.port), str(turns)]) as program,
        socket.create_connection(("127.0.0.1", program.port), timeout=SECONDS_MAX) as sock,
    ):
        lines = sock.makefile("rb")

        def exchange(count: int) -> None:
            sock.sendall(b"%d\n" % count)
            lines.readline()

        yield exchange, program
