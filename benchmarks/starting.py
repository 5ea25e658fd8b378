"""B10: from nothing to listening, against a bare program that listens.

That one (`peers.bare_start`) imports asyncio, msgspec and orjson and builds one pydantic
model. Judged by CPU time until they listen, which other programs disturb less; the time on
the wall is told beside it.
That no provider's SDK is loaded before anyone needs it is read from the
interpreter's own import log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.measuring import alternate_several
from benchmarks.processes import listening, peer, server_command
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

    def bare() -> dict[str, float]:
        with peer("bare_start") as program:
            return {"wall": program.seconds_to_listen, "CPU": program.cpu_seconds()}

    servers = {name: starts(checkout) for name, checkout in plan.checkouts.items()}
    things: dict[str, Measure] = {**servers, "bare": bare}
    for measure in things.values():
        measure()
    found = alternate_several(things, rounds=plan.rounds(ROUNDS))
    wall, cpu = found["wall"], found["CPU"]
    loaded = _modules_loaded(plan)
    return [
        Question(number="B10", what="start to listening, CPU").at_most(
            3,
            cpu.ratio("here", "bare"),
            unit="× a bare program that listens",
            details=cpu.summary("here", "bare", unit="ms", per_unit=1e3),
        ),
        Question(number="B10", what="the same, on the wall").without_goal(
            wall.ratio("here", "bare"),
            unit="×",
            details=wall.summary("here", "bare", unit="ms", per_unit=1e3),
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
