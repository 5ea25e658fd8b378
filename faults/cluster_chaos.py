"""Twenty minutes of faults of servers, links and Redis, in any order.

Where packets can be dropped (`private_network`), some of the faults are black holes: between all
servers and Redis, between one and Redis, or between servers, in one direction or both.

Besides what CLUSTER checks, every end that a client received must be the one in the record, and
reach each connection once; all text that was shown must be stored; no end may be `failed`, because
the model never fails; and within `_RECOVERY_SECONDS_MAX` of the end of a fault every turn that was
accepted before has ended.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from faults.cluster import LEASE_SECONDS, Cluster, running_cluster
from faults.cluster_crowd import Crowd, untrue, verdict
from faults.cluster_rows import Fault, Faults, figures, records_after
from faults.counted_model import calls_in
from faults.plan import Plan
from faults.private_network import Way, black_hole, private_network_if_possible
from faults.progress import Progress
from faults.results import Promised, Result

_SECONDS, _QUICK_SECONDS = 20 * 60, 60
_CONVERSATIONS = 20
_WINDOW = 20
"""Entries in memory: what servers do about long conversations is tested from the first minute."""
_WORDS_MAX = 60
"""Faults meet running answers, and not only their beginnings and ends."""
_RECOVERY_SECONDS_MAX = 30.0
_FULL_BYTES = 1
_HOLE_SECONDS, _HOLE_WEIGHTS = (1.0, 2.0, 10.0, 40.0), (4, 4, 2, 1)
_WAYS: Sequence[Way] = ("both ways", "towards", "back")


class Chaos(Faults):
    """The faults of CLUSTER, those of a Redis that is away for a while, and black holes."""

    drops_packets = False
    dropped = 0

    def redis_away(self) -> None:
        redis = self._cluster.storage.server
        redis.kill()
        self._pause(0.5, LEASE_SECONDS * 3)
        redis.start()

    def redis_hangs(self) -> None:
        redis = self._cluster.storage.server
        redis.freeze()
        self._pause(0.5, LEASE_SECONDS * 3)
        redis.thaw()

    def redis_full(self) -> None:
        redis = self._cluster.storage.server
        redis.call("CONFIG", "SET", "maxmemory", _FULL_BYTES)
        self._pause(0.5, LEASE_SECONDS * 2)
        redis.call("CONFIG", "SET", "maxmemory", 0)

    def black_hole_before_redis(self) -> None:
        victims = [self.owner()] if self._chance.random() < 0.5 else self._cluster.members
        self._drop([each.to_redis.port for each in victims if each.to_redis is not None])

    def black_hole_between_servers(self) -> None:
        self._drop([self.owner().to_peers.port])

    def _drop(self, ports: Sequence[int]) -> None:
        seconds = self._chance.choices(_HOLE_SECONDS, _HOLE_WEIGHTS)[0]
        with black_hole(ports, self._chance.choice(_WAYS)) as hole:
            time.sleep(seconds)
        self.dropped += hole.dropped

    @property
    def all(self) -> list[Fault]:
        faults = [
            *(self.kill, self.stop, self.cut_from_redis, self.cut_from_peers, self.restart_redis),
            *(self.redis_away, self.redis_hangs, self.redis_full),
        ]
        if self.drops_packets:
            faults += [self.black_hole_before_redis, self.black_hole_between_servers]
        return faults

    def run(self, seconds: float) -> float:
        """Carries out faults for so long. Returns the longest time after a fault until every turn
        from before its end was over."""
        began, longest = time.monotonic(), 0.0
        progress = Progress("CHAOS faults")
        while time.monotonic() - began < seconds:
            fault = self._chance.choice(self.all)
            fault()
            self.met[fault.__name__.replace("_", " ")] += 1
            longest = max(longest, self.recover(fault.__name__))
            self._pause(0, 2)
            progress.step(f"{len(self._crowd.acknowledged):,} acknowledged")
        progress.end()
        return longest

    def recover(self, fault: str) -> float:
        """Waits until every turn that was accepted before is over."""
        before = {receipt.turn_id for receipt in tuple(self._crowd.acknowledged)}
        recovered = time.monotonic()
        while open_turns := before & _unfinished(self._cluster, self._crowd):
            if time.monotonic() - recovered > _RECOVERY_SECONDS_MAX:
                self._crowd.complain(
                    f"{len(open_turns)} turns were not over {_RECOVERY_SECONDS_MAX:g} s after: "
                    f"{fault}"
                )
                break
            time.sleep(0.1)
        return time.monotonic() - recovered


def _unfinished(cluster: Cluster, crowd: Crowd) -> set[str]:
    """The turns that have not ended, by the rows that lists show."""
    streams, client = cluster.streams(), cluster.storage.connect()
    found: set[str] = set()
    for session_id in crowd.conversations:
        row: Any = client.hget(streams.key(session_id, "meta"), "row")
        found.update(turn_id for turn_id, _ in json.loads(row).get("unfinished", ()))
    return found


def chaos(plan: Plan) -> list[Result]:
    with private_network_if_possible() as why_not:
        return [_chaos(plan, why_not)]


def _chaos(plan: Plan, why_no_black_holes: str | None) -> Result:
    chance = plan.chance("CHAOS")
    with running_cluster(plan, window=_WINDOW) as cluster:
        crowd = Crowd(cluster=cluster, words_max=_WORDS_MAX)
        crowd.create(_CONVERSATIONS)
        threads = crowd.talk(chance, clients=10 if plan.quick else 20)
        faults = Chaos(crowd, chance)
        faults.drops_packets = why_no_black_holes is None
        longest = faults.run(_QUICK_SECONDS if plan.quick else _SECONDS)
        records = records_after(plan, cluster, crowd, threads)
        complaints = complaints_of(cluster, crowd, records)
    met = ", ".join(f"{count} × {name}" for name, count in sorted(faults.met.items()))
    holes = why_no_black_holes or f"{faults.dropped:,} packets dropped"
    found = f"{figures(crowd)}; {shown(crowd)}; recovered within {longest:.1f} s; {met}; {holes}"
    promised = Promised(number="CHAOS", what="anything fails for twenty minutes")
    return promised.judged(complaints, found)


def complaints_of(
    cluster: Cluster, crowd: Crowd, records: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[str]:
    """What is wrong: what is lost, was executed twice, told untruly, shown and not stored."""
    calls: Counter[str] = calls_in(cluster.place.calls_file)
    complaints = [*verdict(crowd, records, calls), *untrue(crowd, records)]
    if crowd.ends["failed"]:
        complaints.append(f"{crowd.ends['failed']} turns were told to have failed")
    return complaints


def shown(crowd: Crowd) -> str:
    return f"{sum(map(len, crowd.shown.values())):,} characters shown"
