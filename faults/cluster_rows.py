"""Several servers over one Redis, while they, Redis and the links between them fail.

    CLUSTER   owners killed, stopped past their lease, cut off from Redis or from their peers;
              Redis restarted
    ROLLING   one server after the other is restarted behind HAProxy, and behind nginx
    FAILOVER  Sentinel makes the replica the primary
    SLOTS     slots of a Redis Cluster are moved, owners killed
    ACQUIRE   many processes try to get the same conversations
    FROZEN    an owner that was stopped while another took over writes nothing any more

What was acknowledged, what was heard and how often models and tools were called is compared
with the streams in Redis, as redis-py reads them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import redis
from redis.crc import key_slot
from tests.support.contending import contending
from tests.support.redis_server import RedisServer, find_redis_server

from faults.cluster import BALANCERS, LEASE_SECONDS, Cluster, Member, running_cluster
from faults.cluster_crowd import Crowd, verdict
from faults.counted_model import calls_in
from faults.frozen_owner import TRIES
from faults.plan import Plan
from faults.progress import Progress
from faults.results import CannotBeDone, Promised, Result
from faults.serving import clean_environment
from faults.stored import ends_turn
from nplt_storage import ConversationHeld, RedisStore

_CONVERSATIONS = 20
_STALL_SECONDS_MAX = 2.0
_LOST_SECONDS = 1.0
"""What may be missing after a failover: the replica's delay."""

Fault = Callable[[], None]


class Faults:
    """What is done to a cluster, one after the other."""

    def __init__(self, crowd: Crowd, chance: random.Random) -> None:
        self.met: Counter[str] = Counter()
        self._crowd = crowd
        self._cluster = crowd.cluster
        self._chance = chance

    def owner(self) -> Member:
        """Of some conversation, if one has an owner."""
        streams, members = self._cluster.streams(), self._cluster.members
        client: Any = self._cluster.storage.connect()
        for session_id in self._chance.sample(
            self._crowd.conversations, len(self._crowd.conversations)
        ):
            found = client.hget(streams.key(session_id, "owner"), "server")
            address = json.loads(found).get("address") if found else None
            for member in members:
                if address == f"127.0.0.1:{member.to_peers.port}":
                    self.met["owners"] += 1
                    return member
        return self._chance.choice(members)

    def kill(self) -> None:
        member = self.owner()
        member.kill()
        self._pause(0, LEASE_SECONDS)
        member.start()

    def stop(self) -> None:
        member = self.owner()
        member.stop()
        self._pause(LEASE_SECONDS * 1.2, LEASE_SECONDS * 2)
        member.go_on()

    def cut_from_redis(self) -> None:
        link = self.owner().to_redis
        assert link is not None
        link.cut(silently=self._chance.random() < 0.5)
        self._pause(0.2, LEASE_SECONDS * 2)
        link.mend()

    def cut_from_peers(self) -> None:
        link = self.owner().to_peers
        link.cut(silently=self._chance.random() < 0.5)
        self._pause(0.2, LEASE_SECONDS * 2)
        link.mend()

    def restart_redis(self) -> None:
        self._cluster.storage.restart()

    def move_slots(self) -> None:
        """Those of all conversations on one node, to another."""
        servers = self._cluster.storage.servers
        source, target = self._chance.sample(servers.primaries, 2)
        slots = {key_slot(f"{{{each}}}".encode()) for each in self._crowd.conversations}
        here = [slot for slot in sorted(slots) if source.call("CLUSTER", "COUNTKEYSINSLOT", slot)]
        servers.move_slots(here, source, target)
        self.met["moved slots"] += len(here)

    def carry_out(self, faults: Sequence[Fault], progress: Progress) -> None:
        for fault in faults:
            before = len(self._crowd.acknowledged)
            fault()
            self.met[fault.__name__.replace("_", " ")] += 1
            # What follows a fault must be reached before the next one.
            if not self._crowd.wait_for(before + 10, seconds_max=60):
                self._crowd.complain(f"stuck for a minute after: {fault.__name__}")
            self._pause(0, 0.5)
            progress.step(f"{len(self._crowd.acknowledged):,} acknowledged")

    def _pause(self, least: float, most: float) -> None:
        time.sleep(self._chance.uniform(least, most))


def clusters(plan: Plan) -> list[Result]:
    def choose(faults: Faults) -> list[Fault]:
        return [
            faults.kill,
            faults.stop,
            faults.cut_from_redis,
            faults.cut_from_peers,
            faults.restart_redis,
        ]

    return [_under_faults(plan, "CLUSTER", "servers, links and Redis fail", choose)]


def slots(plan: Plan) -> list[Result]:
    def choose(faults: Faults) -> list[Fault]:
        return [faults.move_slots, faults.kill, faults.move_slots]

    return [_under_faults(plan, "SLOTS", "slots of a Redis Cluster move", choose, kind="cluster")]


def _under_faults(
    plan: Plan,
    number: str,
    what: str,
    choose: Callable[[Faults], list[Fault]],
    *,
    kind: Any = "single",
) -> Result:
    rounds, clients, prompts = (1, 10, 150) if plan.quick else (10, 30, 2_000)
    chance = plan.chance(number)
    with running_cluster(plan, kind) as cluster:
        crowd = Crowd(cluster=cluster)
        crowd.create(_CONVERSATIONS)
        threads = crowd.talk(chance, clients=clients)
        faults = Faults(crowd, chance)
        chosen = choose(faults) * rounds
        chance.shuffle(chosen)
        progress = Progress(f"{number} faults", len(chosen))
        faults.carry_out(chosen, progress)
        progress.end()
        if not crowd.wait_for(prompts, seconds_max=600):
            crowd.complain(f"{len(crowd.acknowledged)} of {prompts} prompts were acknowledged")
        records = records_after(plan, cluster, crowd, threads)
        complaints = list(verdict(crowd, records, calls_in(cluster.place.calls_file)))
    if not faults.met["owners"]:
        complaints.append("no fault ever met an owner: nothing was tried")
    met = ", ".join(f"{count} × {name}" for name, count in sorted(faults.met.items()))
    promised = Promised(number=number, what=what)
    return promised.judged(complaints, f"{figures(crowd)}; {met}")


def records_after(
    plan: Plan, cluster: Cluster, crowd: Crowd, threads: Sequence[Thread]
) -> dict[str, list[dict[str, Any]]]:
    """What is stored when the crowd has gone; with `--sabotage` less than that."""
    crowd.is_over.set()
    for thread in threads:
        thread.join()
    records = crowd.settle()
    if plan.sabotage:
        _take_out(cluster, crowd)
        records = cluster.streams().records(crowd.conversations)
    return records


def _take_out(cluster: Cluster, crowd: Crowd) -> None:
    """An acknowledged prompt, as if it had never been stored."""
    receipt, client = crowd.acknowledged[-1], cluster.storage.connect()
    client.xdel(cluster.streams().key(receipt.session_id, "log"), f"{receipt.seq}-0")


def figures(crowd: Crowd) -> str:
    seconds = sorted(each.seconds for each in crowd.acknowledged) or [0.0]
    ends = ", ".join(f"{count:,} {state}" for state, count in crowd.ends.most_common())
    refused = ", ".join(f"{count:,} {code}" for code, count in crowd.refusals.most_common())
    return (
        f"{len(crowd.acknowledged):,} prompts acknowledged, {len(crowd.received):,} entries heard, "
        f"ends heard: {ends or 'none'}; refused for a while: {refused or 'none'}; receipts p50 "
        f"{_part(seconds, 0.5):.3f} s, p99 {_part(seconds, 0.99):.2f} s, last {seconds[-1]:.1f} s"
    )


def _part(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


# ------------------------------------------------------------------------------
# Rolling restart


def rolling(plan: Plan) -> list[Result]:
    return [_rolling(plan, balancer) for balancer in BALANCERS]


def _rolling(plan: Plan, balancer: str) -> Result:
    promised = Promised(number="ROLLING", what=f"rolling restart behind {balancer}")
    try:
        return promised.judged(*_restarted(plan, balancer))
    except CannotBeDone as reason:
        return promised.skipped(str(reason))


def _restarted(plan: Plan, balancer: str) -> tuple[list[str], str]:
    rounds, clients = (1, 10) if plan.quick else (4, 30)
    chance = plan.chance("rolling", balancer)
    with running_cluster(plan, balancer=balancer) as cluster:
        crowd = Crowd(cluster=cluster)
        crowd.create(_CONVERSATIONS)
        threads = crowd.talk(chance, clients=clients)
        progress = Progress(f"ROLLING restarts, {balancer}", rounds * len(cluster.members))
        for member in cluster.members * rounds:
            crowd.wait_for(len(crowd.acknowledged) + 30, seconds_max=60)
            member.terminate()
            member.start()
            progress.step(f"{len(crowd.acknowledged):,} acknowledged")
        progress.end()
        records = records_after(plan, cluster, crowd, threads)
        complaints = list(verdict(crowd, records, calls_in(cluster.place.calls_file)))
    mine = {receipt.turn_id for receipt in crowd.acknowledged}
    complaints += [
        f"turn {entry['turn_id']} was acknowledged and ended as {entry.get('state')}"
        for entries in records.values()
        for entry in entries
        if ends_turn(entry) and entry["turn_id"] in mine and entry.get("state") != "completed"
    ]
    stall = _part(sorted(each.seconds for each in crowd.acknowledged), 0.99)
    if stall > _STALL_SECONDS_MAX:
        complaints.append(f"stalls: p99 is {stall:.2f} s, not {_STALL_SECONDS_MAX:g}")
    return complaints, f"{rounds * len(cluster.members)} restarts, {figures(crowd)}"


# ------------------------------------------------------------------------------
# Failover


def failover(plan: Plan) -> list[Result]:
    clients, prompts = (10, 100) if plan.quick else (30, 1_000)
    chance = plan.chance("failover")
    with running_cluster(plan, "sentinel") as cluster:
        crowd = Crowd(cluster=cluster, in_order=False)
        crowd.create(_CONVERSATIONS)
        threads = crowd.talk(chance, clients=clients)
        faults = Faults(crowd, chance)
        crowd.wait_for(prompts // 2, seconds_max=120)
        began = time.monotonic()
        cluster.storage.servers.fail_over()
        over = time.monotonic()
        if not crowd.wait_for(len(crowd.acknowledged) + prompts // 4, seconds_max=120):
            crowd.complain("stuck after the failover")
        faults.kill()
        if not crowd.wait_for(prompts, seconds_max=300):
            crowd.complain(f"{len(crowd.acknowledged)} of {prompts} prompts were acknowledged")
        records = records_after(plan, cluster, crowd, threads)
        calls = calls_in(cluster.place.calls_file)
    may_miss = (began - _LOST_SECONDS, over)
    complaints = list(verdict(crowd, records, calls, lost_between=may_miss))
    there = {entry.get("message_id") for entries in records.values() for entry in entries}
    gone = [receipt for receipt in crowd.acknowledged if receipt.message_id not in there]
    today = f"failover in {over - began:.1f} s, {len(gone)} acknowledged prompts lost with it"
    if crowd.ends["failed"]:
        complaints.append(f"{crowd.ends['failed']} turns were told to have failed")
    promised = Promised(number="FAILOVER", what="Sentinel fails over")
    return [promised.judged(complaints, f"{today}; {figures(crowd)}")]


# ------------------------------------------------------------------------------
# One winner


def acquire(plan: Plan) -> list[Result]:
    """50 processes × 1,000 conversations."""
    processes, conversations = (10, 100) if plan.quick else (50, 1_000)
    if find_redis_server() is None:
        raise CannotBeDone("there is no redis-server here")
    server = RedisServer(plan.new_path("acquire")).start()
    try:
        won, tokens = _contend(plan, server, processes, conversations)
    finally:
        server.kill()
    counted = Counter(won)
    complaints = [f"{name} has {count} winners" for name, count in counted.items() if count > 1]
    complaints += [f"nobody got s{n}" for n in range(conversations) if not counted[f"s{n}"]]
    complaints += [
        f"s{number}: {token!r} after one acquisition"
        for number, token in enumerate(tokens)
        if not token.startswith(b"2:")
    ]
    today = f"{processes} processes, {conversations:,} conversations, {len(won):,} winners"
    return [Promised(number="ACQUIRE", what="one owner each").judged(complaints, today)]


def _contend(
    plan: Plan, server: RedisServer, processes: int, conversations: int
) -> tuple[list[str], list[bytes]]:
    keys = [f"nplt:{{s{number}}}" for number in range(conversations)]
    asyncio.run(_make(server.url, [f"s{number}" for number in range(conversations)]))
    won: list[str] = []
    contenders = contending(server.url, "nplt:", processes=processes, conversations=conversations)
    with server.client() as client, contenders as wins:
        for session_id in wins:
            won.append(session_id)
            if plan.sabotage:  # as if there were no lock
                client.delete(f"nplt:{{{session_id}}}:owner")
        tokens: list[Any] = [client.hget(f"{key}:meta", "token") or b"" for key in keys]
    return won, tokens


async def _make(url: str, session_ids: Sequence[str]) -> None:
    store = await RedisStore.open_url(url, clock=partial(datetime.now, UTC))
    for session_id in session_ids:
        await (await store.create(session_id, user="local")).close()
    await store.close()


# ------------------------------------------------------------------------------
# A frozen owner


def frozen(plan: Plan) -> list[Result]:
    count = 3 if plan.quick else 20
    if find_redis_server() is None:
        raise CannotBeDone("there is no redis-server here")
    progress = Progress("FROZEN owners", count)
    server = RedisServer(plan.new_path("frozen")).start()
    complaints: list[str] = []
    try:
        for number in range(count):
            complaints += _freeze(server, f"s{number}", sabotage=plan.sabotage)
            progress.step()
    finally:
        server.kill()
    progress.end()
    today = f"{count} owners stopped past their lease; each tried: {', '.join(TRIES)}"
    return [Promised(number="FROZEN", what="a frozen owner is refused").judged(complaints, today)]


def _freeze(server: RedisServer, session_id: str, *, sabotage: bool) -> list[str]:
    lease_seconds = 0.3
    base = f"nplt:{{{session_id}}}"
    command = [sys.executable, "-m", "faults.frozen_owner", server.url, session_id]
    with (
        server.client() as client,
        subprocess.Popen(
            [*command, str(lease_seconds)],
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
            cwd=Path(__file__).parents[1],
        ) as owner,
    ):
        assert owner.stdout is not None
        if owner.stdout.readline() != "ready\n":
            return [f"{session_id}: its owner did not start"]
        token: Any = client.hget(f"{base}:meta", "token")
        os.waitid(os.P_PID, owner.pid, os.WSTOPPED)
        asyncio.run(_take_over(server.url, session_id))
        if sabotage:  # as if nothing were fenced
            client.hset(f"{base}:owner", "token", token)
        before = _dump(client, base)
        owner.send_signal(signal.SIGCONT)
        lines = owner.stdout.read().splitlines()
        owner.wait(timeout=60)
        complaints = [f"{session_id}: {line}" for line in lines if not line.endswith(": refused")]
        if len(lines) != len(TRIES):
            complaints.append(f"{session_id}: only {len(lines)} of {len(TRIES)} were tried")
        if _dump(client, base) != before:
            complaints.append(f"{session_id}: the frozen owner changed it")
    return complaints


async def _take_over(url: str, session_id: str) -> None:
    """By another process, which keeps it."""
    store = await RedisStore.open_url(url, clock=partial(datetime.now, UTC), lease_seconds=3600)
    deadline = time.monotonic() + 60
    while True:
        try:
            await store.open(session_id)
            return
        except ConversationHeld:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)


def _dump(client: redis.Redis, base: str) -> dict[str, object]:
    parts = ("meta", "log", "live", "prompts", "blobs", "owner")
    return {part: client.dump(f"{base}:{part}") for part in parts}
