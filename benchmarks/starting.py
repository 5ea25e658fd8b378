"""B10: from nothing to listening, against importing what the server is built on.

Whole processes, by the clock on the wall, and their CPU time until they listen.
That no provider's SDK is loaded before anyone needs it is read from the
interpreter's own import log.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.measuring import alternate_several
from benchmarks.processes import cost_of, listening, server_command
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict, compared

ROUNDS = 15
Measure = Callable[[], dict[str, float]]
SDKS = frozenset({"openai", "anthropic", "mcp", "httpx", "httpx2", "tiktoken", "redis"})
_IMPORTED = re.compile(r"^import time:\s*\d+ \|\s*\d+ \|\s*(\S+)$", re.MULTILINE)


def starting(plan: Plan) -> list[Verdict]:
    def starts(checkout: Path | None) -> Measure:
        command = server_command(plan.new_path("start"), checkout=checkout)

        def start() -> dict[str, float]:
            with listening(command) as program:
                return {"wall": program.seconds_to_listen, "CPU": program.cpu_seconds()}

        return start

    def imports() -> dict[str, float]:
        cost = cost_of(sys.executable, "-c", "import anyio, pydantic, orjson")
        return {"wall": cost.wall_seconds, "CPU": cost.cpu_seconds}

    servers = {name: starts(checkout) for name, checkout in plan.checkouts.items()}
    things: dict[str, Measure] = {**servers, "imports": imports}
    for measure in things.values():
        measure()
    found = alternate_several(things, rounds=plan.rounds(ROUNDS))
    wall, cpu = found["wall"], found["CPU"]
    loaded = _modules_loaded(plan)
    return [
        Question(number="B10", what="start to listening").at_most(
            2,
            wall.ratio("here", "imports"),
            unit="× import anyio, pydantic, orjson",
            details=wall.told("here", "imports", unit="ms", per_unit=1e3),
        ),
        Question(number="B10", what="the same, CPU").without_goal(
            cpu.ratio("here", "imports"),
            unit="×",
            details=cpu.told("here", "imports", unit="ms", per_unit=1e3),
        ),
        *compared("B10", "time", wall, unit="ms", per_unit=1e3),
        *compared("B10", "CPU", cpu, unit="ms", per_unit=1e3),
        Question(number="B10", what="SDKs in sys.modules when it listens").holds(
            "none",
            not loaded & SDKS,
            ", ".join(sorted(loaded & SDKS)) or "none",
        ),
    ]


def _modules_loaded(plan: Plan) -> set[str]:
    """The top-level names of everything imported until it listened."""
    log = plan.new_path("imports")
    command = server_command(plan.new_path("start"), python=("-X", "importtime"))
    with listening(command, stderr=log):
        pass
    names = {name.split(".")[0] for name in _IMPORTED.findall(log.read_text())}
    if "nplt_server" not in names:
        raise LookupError("the import log can't be read")
    return names
