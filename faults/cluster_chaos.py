"""Twenty minutes of faults of servers, links and Redis, in any order.

Besides what CLUSTER checks, every end that a client received must be the one in the record, and
reach each connection once; all text that was shown must be stored; no end may be `failed`, because
the model never fails; and within `_RECOVERY_SECONDS_MAX` of the end of a fault every turn that was
accepted before has ended.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

from faults.cluster import LEASE_SECONDS, Cluster, running_cluster
from faults.cluster_crowd import Crowd, untrue, verdict
from faults.cluster_rows import Fault, Faults, figures, records_after
from faults.counted_model import calls_in
from faults.plan import Plan
from faults.progress import Progress
from faults.results import Promised, Result

_SECONDS, _QUICK_SECONDS = 20 * 60, 60
_CONVERSATIONS = 20
_WINDOW = 20
"""Entries in memory: what servers do about long conversations is tested from the first minute."""
_RECOVERY_SECONDS_MAX = 30.0
_FULL_BYTES = 1


class Chaos(Faults):
    """The faults of CLUSTER, and those of a Redis that is away for a while."""

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

    @property
    def all(self) -> list[Fault]:
        return [
            *(self.kill, self.stop, self.cut_from_redis, self.cut_from_peers, self.restart_redis),
            *(self.redis_away, self.redis_hangs, self.redis_full),
        ]

    def run(self, seconds: float) -> float:
        """Carries out faults for so long. Returns the longest time after a fault until every turn
        from before its end was over."""
        began, longest = time.monotonic(), 0.0
        progress = Progress("CHAOS faults")
        while time.monotonic() - began < seconds:
            fault = self._chance.choice(self.all)
            fault()
            self.met[fault.__name__.replace("_", " ")] += 1
            longest = max(longest, self._recover(fault.__name__))
            self._pause(0, 2)
            progress.step(f"{len(self._crowd.acknowledged):,} acknowledged")
        progress.end()
        return longest

    def _recover(self, fault: str) -> float:
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
    chance = plan.chance("CHAOS")
    with running_cluster(plan, window=_WINDOW) as cluster:
        crowd = Crowd(cluster=cluster)
        crowd.create(_CONVERSATIONS)
        threads = crowd.talk(chance, clients=10 if plan.quick else 20)
        faults = Chaos(crowd, chance)
        longest = faults.run(_QUICK_SECONDS if plan.quick else _SECONDS)
        records = records_after(plan, cluster, crowd, threads)
        calls: Counter[str] = calls_in(cluster.place.calls_file)
        complaints = [*verdict(crowd, records, calls), *untrue(crowd, records)]
    if crowd.ends["failed"]:
        complaints.append(f"{crowd.ends['failed']} turns were told to have failed")
    met = ", ".join(f"{count} × {name}" for name, count in sorted(faults.met.items()))
    shown = sum(map(len, crowd.shown.values()))
    found = f"{figures(crowd)}; {shown:,} characters shown; recovered within {longest:.1f} s; {met}"
    promised = Promised(number="CHAOS", what="anything fails for twenty minutes")
    return [promised.judged(complaints, found)]
