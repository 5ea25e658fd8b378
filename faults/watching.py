"""Watchers and prompts for later, while servers are killed and stopped and Redis is cut off.

    P26  twenty watchers of a thousand conversations, at two servers: after each fault every
         watcher has the rows that a list gives
    P27  two hundred prompts for later, with a data directory and with two servers over Redis:
         each runs once, not before its time, and soon after it or after the server's return

What runs is compared with the records, read by another program than the one that wrote them.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.raw_client import PROMPT, SESSION_NEW, RawClient
from tests.support.redis_server import find_redis_server

import nplt_client
from faults.cluster import LEASE_SECONDS, Cluster, Member, running_cluster
from faults.plan import Plan
from faults.progress import Progress
from faults.results import CannotBeDone, Promised, Result
from faults.serving import ServerProgram
from nplt_client import Client, NpltError, Patience, SessionRow

SECONDS_MAX = 30.0
"""So long after a fault, or after its time, everything must be as it should."""
_PATIENCE = Patience(first_seconds=0.1, most_seconds=1.0)
_MOVES = frozenset(("last_accessed", "is_current"))
_LIMITS: dict[str, object] = {"prompts_per_minute_max": 1_000_000, "connections_max": 200}
Row = dict[str, object]


# P26


def watchers(plan: Plan) -> list[Result]:
    what = "watchers have the rows of a list after kills, stops and cuts"
    promised = Promised(number="P26", what=what)
    if find_redis_server() is None:
        raise CannotBeDone("there is no redis-server here")
    conversations, rounds = (100, 1) if plan.quick else (1_000, 3)
    with running_cluster(plan, servers=2) as cluster:
        check = _Watching(cluster, plan.chance("P26"), conversations)
        asyncio.run(check.run(rounds))
    return [promised.judged(check.complaints, check.figures)]


class _Watcher:
    """Keeps the rows that it is sent, as a page of conversations would."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    async def run(self, client: Client) -> None:
        async for change in client.watch():
            if change.row is None:
                self.rows.pop(change.session_id, None)
            else:
                self.rows[change.session_id] = _comparable(change.row)


def _comparable(row: SessionRow) -> Row:
    return {name: getattr(row, name) for name in row.__struct_fields__ if name not in _MOVES}


def _needs_no_watching(row: Row) -> bool:
    return row["state"] == "idle" and not row["unread"] and row["due_at"] is None


class _Watching:
    WATCHERS = 20
    WRITERS = 6

    def __init__(self, cluster: Cluster, chance: random.Random, conversations: int) -> None:
        self.complaints: list[str] = []
        self._cluster = cluster
        self._chance = chance
        self._conversations = conversations
        self._ids: list[str] = []
        self._watchers = [_Watcher() for _ in range(self.WATCHERS)]
        self._seconds: list[float] = []
        self._changes = 0

    @property
    def figures(self) -> str:
        slowest = max(self._seconds, default=0.0)
        return (
            f"{self.WATCHERS} watchers, {len(self._ids)} conversations, {len(self._seconds)} "
            f"faults, {self._changes} prompts; equal at most {slowest:.1f} s after a fault"
        )

    def _client(self, number: int, **more: Any) -> Any:
        port = self._cluster.ports[number % 2]
        return nplt_client.connect(f"nplt://127.0.0.1:{port}", reconnect=_PATIENCE, **more)

    async def run(self, rounds: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = [
                tasks.create_task(self._follow(number, watcher))
                for number, watcher in enumerate(self._watchers)
            ]
            await self._create()
            faults: Sequence[tuple[str, Callable[[Member], Any]]] = (
                ("nothing", self._nothing),
                ("kill", self._kill),
                ("stop", self._stop),
                ("cut from Redis", self._cut),
                ("Redis restarted", self._restart_redis),
            )
            progress = Progress("P26", rounds * len(faults))
            for _ in range(rounds):
                for name, fault in faults:
                    await self._meet(name, fault)
                    progress.step(name)
            progress.end()
            for each in following:
                each.cancel()

    async def _follow(self, number: int, watcher: _Watcher) -> None:
        async with self._client(number) as client:
            await client.detach()
            await watcher.run(client)

    async def _create(self) -> None:
        """Makes the conversations, each with a turn."""

        async def create(number: int) -> None:
            async with self._client(number) as client:
                while len(self._ids) < self._conversations:
                    made = await client.new(f"c{len(self._ids)}")
                    self._ids.append(made.session_id)
                    await client.ask_text("fast hello")

        await asyncio.gather(*(create(number) for number in range(self.WRITERS)))

    async def _write(self, number: int, stop: asyncio.Event) -> None:
        """Changes conversations in every way; refusals and losses are expected."""
        chance = random.Random(self._chance.random())
        while not stop.is_set():
            with suppress(NpltError, TimeoutError):
                async with self._client(number, timeout=5.0) as client:
                    while not stop.is_set():
                        await self._change(client, chance)
            await asyncio.sleep(0.1)

    async def _change(self, client: Client, chance: random.Random) -> None:
        session_id = chance.choice(self._ids)
        await client.switch(session_id)
        text = chance.choice(["fast hello", "one two three four five six", "tool it"])
        async with client.ask(text) as turn:
            if chance.random() < 0.7:
                async for _ in turn:
                    pass
        self._changes += 1
        match chance.randrange(6):
            case 0:
                await client.seen(10**6)
            case 1:
                await client.rename(f"c{chance.randrange(10**6)}")
            case 2:
                await client.delete(session_id)
                await client.undelete(session_id)
            case _:
                pass

    async def _meet(self, name: str, fault: Callable[[Member], Any]) -> None:
        stop = asyncio.Event()
        writers = [asyncio.create_task(self._write(each, stop)) for each in range(self.WRITERS)]
        await asyncio.sleep(2.0)
        await fault(self._chance.choice(self._cluster.members))
        over_at = time.monotonic()
        await asyncio.sleep(1.0)
        stop.set()
        await asyncio.wait(writers, timeout=SECONDS_MAX)
        wrong = ["not compared"]
        while wrong and time.monotonic() - over_at < SECONDS_MAX:
            await asyncio.sleep(0.3)
            wrong = await self._compare()
        self._seconds.append(time.monotonic() - over_at)
        self.complaints += [f"after {name}: {each}" for each in wrong]

    async def _compare(self) -> list[str]:
        lists = [await self._listed(number) for number in range(2)]
        if lists[0] != lists[1]:
            return ["the lists of the two servers differ"]
        wrong: list[str] = []
        for number, watcher in enumerate(self._watchers):
            for session_id, row in lists[0].items():
                # A watcher is not sent a row that is at rest and did not change since it watches.
                known = watcher.rows.get(session_id, row if _needs_no_watching(row) else None)
                if known != row:
                    wrong.append(f"watcher {number}, {row['name']}: {_differences(known, row)}")
            gone = watcher.rows.keys() - lists[0].keys()
            wrong += [f"watcher {number} has {session_id}, which is gone" for session_id in gone]
        return wrong

    async def _listed(self, number: int) -> dict[str, Row]:
        async with self._client(number) as client:
            return {row.session_id: _comparable(row) async for row in client.sessions()}

    async def _nothing(self, member: Member) -> None:
        pass

    async def _kill(self, member: Member) -> None:
        await asyncio.to_thread(member.kill)
        await asyncio.sleep(self._chance.uniform(0, LEASE_SECONDS))
        await asyncio.to_thread(member.start)

    async def _stop(self, member: Member) -> None:
        member.stop()
        await asyncio.sleep(LEASE_SECONDS * self._chance.uniform(1.2, 2))
        member.go_on()

    async def _cut(self, member: Member) -> None:
        assert member.to_redis is not None
        member.to_redis.cut(silently=self._chance.random() < 0.5)
        await asyncio.sleep(self._chance.uniform(0.2, LEASE_SECONDS * 2))
        member.to_redis.mend()

    async def _restart_redis(self, member: Member) -> None:
        await asyncio.to_thread(self._cluster.storage.restart)


def _differences(found: Row | None, listed: Row) -> str:
    if found is None:
        return f"it has no row, which is {listed['state']} with {listed['unread']} unread"
    differing = [name for name in listed if found[name] != listed[name]]
    return ", ".join(f"{name} {found[name]}, listed {listed[name]}" for name in differing)


# P27


def prompts_for_later(plan: Plan) -> list[Result]:
    promised = Promised(number="P27", what="prompts for later, with a data directory")
    results = [promised.judged(*_with_files(plan))]
    promised = Promised(number="P27", what="prompts for later, with two servers over Redis")
    if find_redis_server() is None:
        return [*results, promised.skipped("there is no redis-server")]
    return [*results, promised.judged(*_with_redis(plan))]


@dataclass(frozen=True, kw_only=True)
class _Begun:
    text: str
    at: datetime


class _Prompts:
    """The prompts that were sent, with their times, and the times at which servers were back."""

    def __init__(self, plan: Plan, chance: random.Random) -> None:
        self.conversations, self.each = (5, 8) if plan.quick else (20, 10)
        self.due: dict[str, datetime] = {}
        self.session_ids: list[str] = []
        self.back_at = datetime.now(UTC)
        self.kills = 0
        self._chance = chance
        self._span = (3.0, 10.0) if plan.quick else (5.0, 45.0)

    @property
    def last(self) -> datetime:
        return max(self.due.values())

    def send(self, ports: Sequence[int]) -> None:
        for conversation in range(self.conversations):
            with RawClient(ports[conversation % len(ports)]) as client:
                client.hello()
                self.session_ids.append(client.request(SESSION_NEW, {}).json["session_id"])
                for number in range(self.each):
                    text = f"fast {conversation}.{number}"
                    delay = self._chance.uniform(*self._span)
                    prompt = {"text": text, "not_before": delay}
                    receipt = client.request(PROMPT, prompt).json
                    self.due[text] = datetime.fromisoformat(receipt["due_at"])

    def complaints(self, begun: Sequence[_Begun]) -> Iterator[str]:
        counts = Counter(each.text for each in begun)
        for text in self.due.keys() | counts.keys():
            if counts[text] != 1:
                yield f"{text!r} began {counts[text]} ×"
        for each in begun:
            early = (self.due[each.text] - each.at).total_seconds()
            if early > 0:
                yield f"{each.text!r} began {early:.3f} s too early"
            if self.lateness(each) > SECONDS_MAX:
                yield f"{each.text!r} began {self.lateness(each):.1f} s late"

    def lateness(self, begun: _Begun) -> float:
        """Seconds after its time, or after the last return of a server if that was later."""
        wanted = self.due[begun.text]
        if wanted < self.back_at <= begun.at:
            wanted = self.back_at
        return (begun.at - wanted).total_seconds()

    def figures(self, begun: Sequence[_Begun]) -> str:
        slowest = max((self.lateness(each) for each in begun), default=0.0)
        return f"{len(self.due)} prompts, {self.kills} kills; at most {slowest:.1f} s late"


def _begun_in(entries: Sequence[Mapping[str, Any]]) -> list[_Begun]:
    return [
        _Begun(text=entry["content"], at=datetime.fromisoformat(entry["timestamp"]))
        for entry in entries
        if entry["kind"] == "model_input"
    ]


def _with_files(plan: Plan) -> tuple[list[str], str]:
    chance = plan.chance("P27", "files")
    prompts = _Prompts(plan, chance)
    with ServerProgram(plan.new_path("later")) as server:
        server.start()
        prompts.send([server.port])
        while datetime.now(UTC) < prompts.last:
            time.sleep(chance.uniform(0.5, 4.0))
            server.kill()
            prompts.kills += 1
            if chance.random() < 0.5:
                for path in server.data_dir.glob("catalog.sqlite*"):
                    path.unlink()
            server.start()
            prompts.back_at = datetime.now(UTC)

        def read() -> list[_Begun]:
            paths = (server.data_dir / "history").glob("session_*.json")
            return _begun_in(
                [e for path in paths for e in json.loads(path.read_text())["messages"]]
            )

        begun = _wait_for_all(prompts, read)
    return list(prompts.complaints(begun)), prompts.figures(begun)


def _with_redis(plan: Plan) -> tuple[list[str], str]:
    chance = plan.chance("P27", "redis")
    prompts = _Prompts(plan, chance)
    with running_cluster(plan, servers=2) as cluster:
        prompts.send(cluster.ports)
        while datetime.now(UTC) < prompts.last:
            time.sleep(chance.uniform(0.5, 4.0))
            member = chance.choice(cluster.members)
            member.kill()
            prompts.kills += 1
            time.sleep(chance.choice([0.0, LEASE_SECONDS * 2]))  # perhaps the other takes over
            member.start()
            prompts.back_at = datetime.now(UTC)
        streams = cluster.streams()

        def read() -> list[_Begun]:
            records = streams.records(prompts.session_ids)
            return _begun_in([entry for entries in records.values() for entry in entries])

        begun = _wait_for_all(prompts, read)
    return [*prompts.complaints(begun), *streams.complaints], prompts.figures(begun)


def _wait_for_all(prompts: _Prompts, read: Callable[[], list[_Begun]]) -> list[_Begun]:
    """What has begun, as soon as all have, or after the time that they may take; and a moment more,
    for those that would run twice."""
    give_up = max(prompts.last, prompts.back_at) + timedelta(seconds=SECONDS_MAX)
    while len(read()) < len(prompts.due) and datetime.now(UTC) < give_up:
        time.sleep(0.5)
    time.sleep(2.0)
    return read()
