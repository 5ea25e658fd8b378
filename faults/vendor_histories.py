"""Thousands of random conversations: models in any order, cancels, crashes, failures, changes by
people.

Whatever happened, no vendor may refuse the next request. Each is a real conversation with its turn
loop, without HTTP and disk; every core takes its share.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.support.vendor_conversation_plans import life_plans
from tests.support.vendor_conversations import Life, TurnPlan

from faults.plan import Plan
from faults.progress import Progress
from faults.results import Promised, Result

_AT_ONCE = 250


@dataclass(slots=True)
class _Lived:
    lives: int = 0
    calls: int = 0
    deaths: int = 0
    cancels: int = 0
    complaints: list[str] = field(default_factory=list)

    def add(self, other: _Lived) -> None:
        self.lives += other.lives
        self.calls += other.calls
        self.deaths += other.deaths
        self.cancels += other.cancels
        self.complaints += other.complaints


def random_histories(plan: Plan) -> Result:
    count = 500 if plan.quick else 10_000
    seeds = [plan.chance("histories", n).getrandbits(32) for n in range(count // _AT_ONCE)]
    progress = Progress("P15 histories", count // _AT_ONCE)
    total = _Lived()
    # Fresh processes: this one has threads, which a fork would not take along.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as cores:
        for lived in cores.map(_sabotaged if plan.sabotage else _live_some, seeds):
            total.add(lived)
            progress.step()
    progress.end()
    if not (total.deaths and total.cancels):
        total.complaints.append("nothing ever broke")
    today = (
        f"{total.lives:,} conversations, {total.calls:,} calls, {total.cancels:,} cancels, "
        f"{total.deaths:,} crashes, {len(total.complaints)} refused"
    )
    return Promised(number="P15", what="random histories").judged(total.complaints, today)


def _live_some(chosen: int) -> _Lived:
    total = _Lived()

    @seed(chosen)
    @settings(
        max_examples=_AT_ONCE,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(life_plans)
    def live(plan: tuple[Sequence[TurnPlan], int]) -> None:
        turns, context_tokens = plan
        life = Life(context_tokens=context_tokens)
        asyncio.run(life.live(turns))
        refused = [f"{rejection!r} after {turns}" for rejection in life.rejections]
        total.add(_Lived(1, life.calls, life.deaths, life.cancels, refused))

    live()
    return total


def _sabotaged(chosen: int) -> _Lived:
    """Leaves out one repair: names that no vendor takes are sent as they are."""
    place = "nplt_server.providers.compiler.fitting_tool_name"
    with patch(place, lambda name: name):
        return _live_some(chosen)
