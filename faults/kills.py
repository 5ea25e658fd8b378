"""P1: what was acknowledged survives `kill -9` at any moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.support.fork_server import ForkServer

from faults.plan import Plan
from faults.progress import Progress
from faults.promises import Promises
from faults.restarts import LIVES_PER_GENERATION, Deaths, Tally, live_and_die
from faults.results import Promised, Result
from faults.serving import ForkedServer, Server, clean_environment

_LANES = 2
"""Two servers at a time: while one starts, the other gets prompts."""


def kills(plan: Plan) -> list[Result]:
    count = 50 if plan.quick else 1_000
    progress = Progress("P1 kills", count)
    tally = killed(plan, count, progress)
    progress.end()
    promised = Promised(number="P1", what="kill -9 under load")
    return [promised.judged(tally.complaints, f"{tally.deaths:,} kills, {tally}")]


def killed(plan: Plan, count: int, progress: Progress) -> Tally:
    tally = Tally()
    with ThreadPoolExecutor(_LANES) as lanes:
        share = count // _LANES
        for lane in lanes.map(partial(_lane, plan, share, progress), range(_LANES)):
            tally.add(lane)
    return tally


def _lane(plan: Plan, count: int, progress: Progress, lane: int) -> Tally:
    tally, chance = Tally(), plan.chance("kills", lane)
    with ForkServer(clean_environment()) as fork_server:
        while tally.deaths < count:
            server = ForkedServer(fork_server, plan.new_path("kills") / "data")
            deaths = Deaths(
                count=min(LIVES_PER_GENERATION, count - tally.deaths),
                strike=partial(_kill, server),
                sabotage=plan.sabotage,
            )
            tally.add(live_and_die(server, deaths, chance, died=_shown(progress)))
    return tally


def _kill(server: Server, promises: Promises) -> None:
    server.kill()


def _shown(progress: Progress) -> Callable[[Tally], None]:
    return lambda tally: progress.step(str(tally))
