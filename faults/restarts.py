"""Restarts one server again and again: start, compare, prompt, die.

All sudden deaths share this; only the way to die differs. After each death everything acknowledged
so far is compared. It all stays in one directory until comparing takes longer than dying: then an
empty directory begins.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from faults.clients import crowd
from faults.promises import Promises
from faults.sabotage import take_out_a_line
from faults.serving import Server
from faults.stored import judge

LIVES_PER_GENERATION = 25
_PROMISES_PER_LIFE_MAX = 60
_PATIENCE_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class Tally:
    deaths: int = 0
    promises: int = 0
    complaints: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.deaths += other.deaths
        self.promises += other.promises
        self.complain(other.complaints)

    def complain(self, complaints: Iterable[str]) -> None:
        """Notes each complaint once: what is lost is missing after every further death too."""
        known = set(self.complaints)
        self.complaints += [
            complaint for complaint in dict.fromkeys(complaints) if complaint not in known
        ]

    def __str__(self) -> str:
        return f"{self.promises:,} promises, {len(self.complaints)} broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deaths:
    """How the server dies, and how often. `strike` ends the server, whatever else it does."""

    count: int
    strike: Callable[[Promises], None]
    dies_starting: bool = True
    """Some deaths are during the start, while the server repairs what the last death left."""
    sabotage: bool = False


def live_and_die(
    server: Server, deaths: Deaths, chance: random.Random, *, died: Callable[[Tally], None]
) -> Tally:
    promises, tally = Promises(), Tally()
    try:
        for _ in range(deaths.count):
            server.start()
            tally.complain(judge(server.port, server.data_dir, promises.acked()))
            with crowd(server.port, promises, chance):
                _live_a_while(promises, chance, tally)
                deaths.strike(promises)
            promises.reopen()
            if deaths.dies_starting and chance.random() < 0.2:
                _die_starting(server, chance)
            if deaths.sabotage:
                take_out_a_line(server.data_dir, promises.acked())
            tally.deaths += 1
            tally.promises = len(promises)
            died(tally)
        server.start()
        tally.complain(judge(server.port, server.data_dir, promises.acked()))
    finally:
        server.kill()
    return tally


def _live_a_while(promises: Promises, chance: random.Random, tally: Tally) -> None:
    more = chance.randrange(_PROMISES_PER_LIFE_MAX)
    if not promises.wait_for(len(promises) + more, seconds_max=_PATIENCE_SECONDS):
        tally.complain([f"stuck: fewer than {more} promises in {_PATIENCE_SECONDS:g} s"])
    # Receipts follow syncs closely: a moment more lets deaths fall anywhere between two.
    time.sleep(chance.random() * 0.004)


def _die_starting(server: Server, chance: random.Random) -> None:
    server.spawn()
    time.sleep(chance.random() * 0.05)
    server.kill()
