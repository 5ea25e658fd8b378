"""B11: a question from the command line, until its process has ended.

`nplt ask` against a server that answers at once, and what people run instead: `llm` with a
plugin that answers with the prompt, from `.venv-peers` if it is there. Both keep a record.
`curl` to a local server that answers at once is the floor. In the same rounds, by the clock;
the process's own CPU time, which other programs disturb less, is told beside it.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.measuring import Rounds, alternate_several
from benchmarks.processes import PEERS, cost_of, peer, server
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict

ROUNDS = 9
TEXT = "hello"
MS_MAX = 120.0
LLM_RATIO_MIN = 5.0


def asking(plan: Plan) -> list[Verdict]:
    floor = Question(number="B11", what="curl to a local server, the floor")
    llm = Question(number="B11", what="nplt ask, to llm with an echo plugin")
    with server(plan.new_path("ask")) as program, peer("streaming_vendor", "1") as vendor:
        address = f"nplt://127.0.0.1:{program.port}"
        nplt = Path(sys.executable).parent / "nplt"
        things = {"ask": _running(str(nplt), "ask", TEXT, "-q", "--server", address)}
        if curl := shutil.which("curl"):
            body = json.dumps({"model": "burst", "messages": [{"role": "user", "content": TEXT}]})
            url = f"http://127.0.0.1:{vendor.port}/v1/chat/completions"
            things["curl"] = _running(curl, "-sf", url, "-d", body)
        if (other := PEERS / "llm").exists():
            place = str(plan.new_path("llm"))
            things["llm"] = _running(str(other), "-m", "echo", TEXT, LLM_USER_PATH=place)
        for measure in things.values():
            measure()
        found = alternate_several(things, rounds=plan.rounds(ROUNDS))
    wall = found["wall"]
    least = f"; least {min(wall.figures['ask']) * 1e3:.0f} ms"
    return [
        Question(number="B11", what="nplt ask, on an idle core").at_most(
            MS_MAX, wall.median("ask") * 1e3, unit="ms", details=_summary(found, "ask") + least
        ),
        llm.at_least(
            LLM_RATIO_MIN,
            wall.ratio("llm", "ask"),
            unit="× quicker than llm",
            details=f"{_summary(found, 'ask')}; {_summary(found, 'llm')}",
        )
        if "llm" in things
        else llm.skipped("there is no llm in .venv-peers: make peers"),
        floor.without_goal(wall.median("curl") * 1e3, unit="ms", details=_summary(found, "curl"))
        if "curl" in things
        else floor.skipped("there is no curl: install it"),
    ]


def _running(*command: str, **variables: str) -> Callable[[], Mapping[str, float]]:
    def measure() -> Mapping[str, float]:
        cost = cost_of(*command, variables=variables)
        return {"wall": cost.wall_seconds, "CPU": cost.cpu_seconds}

    return measure


def _summary(found: dict[str, Rounds], name: str) -> str:
    cpu = found["CPU"].median(name) * 1e3
    return f"{found['wall'].summary(name, unit='ms', per_unit=1e3)}, {cpu:.0f} ms CPU"
