"""Packets between servers and Redis, or between servers, vanish while answers stream.

Nothing is reset or refused, as when a cable is cut or a firewall drops: a server learns of it only
by its own deadlines, and what the kernels send again arrives when the hole is over, also what a
server has given up meanwhile. Each scene drops the packets of some links for 2, 10 or 40 s. While a
server can't reach Redis, a client sends it prompts, which must be refused as `unavailable` within
the documented deadlines, and STATUS, which must not wait. Afterwards the same is compared as by
CHAOS, and every turn must be over within the same time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

from tests.support.raw_client import ERROR, PROMPT, SESSION_NEW, STATUS, Closed, RawClient

from faults.cluster import Cluster, Member, running_cluster
from faults.cluster_chaos import Chaos, complaints_of, shown
from faults.cluster_crowd import Crowd
from faults.cluster_rows import figures, records_after
from faults.plan import Plan
from faults.private_network import Way, black_hole, private_network
from faults.progress import Progress
from faults.results import Promised, Result

_CONVERSATIONS = 20
_WORDS_MAX = 150
_SECONDS, _QUICK_SECONDS = (2.0, 10.0, 40.0), (2.0,)
_REFUSED_SECONDS_MAX = 4.0
"""A connection is made within 1 s and a command answered within 2 s; and one for a busy machine."""
_STATUS_SECONDS_MAX = 2.0
"""It waits at most 1 s; and one for a busy machine."""
_PROBE_SECONDS = 0.2
_BETWEEN_SECONDS = 3.0
_probes = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    name: str
    way: Way
    to_redis: Sequence[Member] = ()
    """The servers whose packets to and from Redis vanish."""
    to_peers: Sequence[Member] = ()
    """Those that the other servers can't reach."""

    @property
    def ports(self) -> list[int]:
        ports = [each.to_redis.port for each in self.to_redis if each.to_redis is not None]
        return ports + [each.to_peers.port for each in self.to_peers]


def _scenes(members: Sequence[Member]) -> Iterator[Scene]:
    yield Scene(name="Redis", way="both ways", to_redis=members)
    yield Scene(name="replies of Redis", way="back", to_redis=members)
    yield Scene(name="Redis for one server", way="both ways", to_redis=members[:1])
    yield Scene(name="servers", way="both ways", to_peers=members)
    yield Scene(name="replies of one server", way="back", to_peers=members[1:2])


@dataclass(slots=True, kw_only=True)
class Probe:
    """A client of one server that asks for what needs Redis, and for STATUS."""

    member: Member
    prompted: list[tuple[float, str]] = field(default_factory=list)
    """After how many seconds each prompt got a reply, and the error code, or `accepted`."""
    status: list[float] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        with RawClient(self.member.port) as one, RawClient(self.member.port) as other:
            one.hello()
            other.hello()
            threads = [
                threading.Thread(target=self._prompt, args=(one,)),
                threading.Thread(target=self._ask_status, args=(other,)),
            ]
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self._is_over.set()
                for thread in threads:
                    thread.join()

    def _prompt(self, wire: RawClient) -> None:
        while not self._is_over.wait(_PROBE_SECONDS):
            began = time.monotonic()
            reply = wire.request(SESSION_NEW)
            if reply.type != ERROR:
                reply = wire.request(PROMPT, {"text": f"fast probe {next(_probes)}"})
            code = reply.json["code"] if reply.type == ERROR else "accepted"
            self.prompted.append((time.monotonic() - began, str(code)))

    def _ask_status(self, wire: RawClient) -> None:
        while not self._is_over.wait(_PROBE_SECONDS):
            began = time.monotonic()
            with suppress(Closed):
                wire.request(STATUS)
            self.status.append(time.monotonic() - began)


class BlackHoles(Chaos):
    def __init__(self, crowd: Crowd, cluster: Cluster, plan: Plan) -> None:
        super().__init__(crowd, plan.chance("BLACKHOLE"))
        self.refused: list[float] = []
        self.status: list[float] = []
        self.longest = 0.0
        self._members = cluster.members
        self._seconds = _QUICK_SECONDS if plan.quick else _SECONDS

    def carry_out_all(self) -> None:
        scenes = [(scene, each) for scene in _scenes(self._members) for each in self._seconds]
        progress = Progress("BLACKHOLE scenes", len(scenes))
        for scene, seconds in scenes:
            self._carry_out_scene(scene, seconds)
            progress.step(f"{len(self._crowd.acknowledged):,} acknowledged")
        progress.end()

    def _carry_out_scene(self, scene: Scene, seconds: float) -> None:
        what = f"{scene.name}, {scene.way}, {seconds:g} s"
        probe = Probe(member=(scene.to_redis or scene.to_peers)[0])
        with black_hole(scene.ports, scene.way) as hole, probe.running():
            time.sleep(seconds)
        self.dropped += hole.dropped
        if not hole.dropped:
            self._crowd.complain(f"{what}: no packet was dropped")
        self.status += probe.status
        for late in (each for each in probe.status if each > _STATUS_SECONDS_MAX):
            self._crowd.complain(f"{what}: STATUS took {late:.1f} s")
        if scene.to_redis:
            self._judge_prompts(what, probe.prompted)
        before = len(self._crowd.acknowledged)
        self.longest = max(self.longest, self.recover(what))
        if not self._crowd.wait_for(before + 10, seconds_max=60):
            self._crowd.complain(f"stuck for a minute after: {what}")
        time.sleep(_BETWEEN_SECONDS)

    def _judge_prompts(self, what: str, prompted: Sequence[tuple[float, str]]) -> None:
        """The last one may have had its reply after the hole."""
        for _, code in prompted[:-1]:
            if code != "unavailable":
                self._crowd.complain(f"{what}: a prompt was answered by {code}")
        for seconds, code in prompted:
            if code == "unavailable":
                self.refused.append(seconds)
                if seconds > _REFUSED_SECONDS_MAX:
                    self._crowd.complain(f"{what}: a prompt was refused after {seconds:.1f} s")


def black_holes(plan: Plan) -> list[Result]:
    with private_network():
        return [_black_holes(plan)]


def _black_holes(plan: Plan) -> Result:
    with running_cluster(plan, redis_options="") as cluster:
        crowd = Crowd(cluster=cluster, words_max=_WORDS_MAX)
        crowd.create(_CONVERSATIONS)
        threads = crowd.talk(plan.chance("BLACKHOLE clients"), clients=20)
        holes = BlackHoles(crowd, cluster, plan)
        holes.carry_out_all()
        records = records_after(plan, cluster, crowd, threads)
        complaints = complaints_of(cluster, crowd, records)
    refused = sorted(holes.refused) or [0.0]
    found = (
        f"{figures(crowd)}; {shown(crowd)}; {holes.dropped:,} packets dropped; "
        f"{len(holes.refused):,} prompts refused meanwhile, the slowest after {refused[-1]:.1f} s; "
        f"{len(holes.status):,} × STATUS, the slowest after {max(holes.status, default=0):.2f} s; "
        f"recovered within {holes.longest:.1f} s"
    )
    promised = Promised(number="BLACKHOLE", what="a network drops packets")
    return promised.judged(complaints, found)
