"""B10: from nothing to listening, against importing what the server is built on.

Whole processes, by the clock on the wall. That no provider's SDK is loaded
before anyone needs it is read from the interpreter's own import log.
"""

from __future__ import annotations

import re
import sys

from benchmarks.measuring import alternate
from benchmarks.processes import cost_of, listening, server_command
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict

ROUNDS = 15
SDKS = frozenset({"openai", "anthropic", "mcp", "httpx", "httpx2", "tiktoken", "redis"})
_IMPORTED = re.compile(r"^import time:\s*\d+ \|\s*\d+ \|\s*(\S+)$", re.MULTILINE)


def starting(plan: Plan) -> list[Verdict]:
    data_dir = plan.new_path("start")

    def start() -> float:
        with listening(server_command(data_dir)) as program:
            return program.seconds_to_listen

    def imports() -> float:
        return cost_of(sys.executable, "-c", "import anyio, pydantic, orjson").wall_seconds

    start()
    imports()
    rounds = alternate({"start": start, "imports": imports}, rounds=ROUNDS)
    loaded = _modules_loaded(plan)
    return [
        Question(number="B10", what="start to listening").at_most(
            2,
            rounds.ratio("start", "imports"),
            unit="× import anyio, pydantic, orjson",
            details=rounds.told("start", "imports", unit="ms", per_unit=1e3),
        ),
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
