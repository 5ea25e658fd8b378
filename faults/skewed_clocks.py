"""The servers of a cluster disagree about the time of day, by seconds up to weeks, and it jumps.

Leases, limits and times of prompts must not depend on it: all servers go by the clock of Redis, and
by clocks that nobody sets. The clients are those of CHAOS. While they prompt, the clocks of the
servers jump, and servers are killed, stopped past their lease and cut off from Redis. Meanwhile
other clients send prompts for later, whose beginnings are observed here, by a clock that is right.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any

from tests.support.raw_client import ERROR, PROMPT, SESSION_NEW, STATUS, Closed, RawClient

from faults.cluster import LEASE_SECONDS, Cluster, Member, running_cluster
from faults.cluster_chaos import Chaos, complaints_of, shown
from faults.cluster_crowd import Crowd
from faults.cluster_rows import Fault, figures, records_after
from faults.plan import Plan
from faults.progress import Progress
from faults.results import Promised, Result

_CONVERSATIONS = 20
_WORDS_MAX = 30
_AT_FIRST = (timedelta(), timedelta(hours=2), timedelta(hours=-3))
_JUMPS = tuple(
    timedelta(seconds=seconds)
    for seconds in (-40 * 86_400, -10_800, -300, -3, 0, 3, 300, 7_200, 40 * 86_400)
)
_SKEW_SECONDS_MAX = 2.0
"""More than that must be warned of, and no time that is stored may be off by more."""
_LATER_SECONDS = (2.0, 60.0)
_LATE_SECONDS_MAX = 30.0
_EARLY_SECONDS_MAX = 0.0
_REPLY_SECONDS_MAX = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Later:
    """A prompt for later that was acknowledged."""

    session_id: str
    text: str
    due: datetime
    """By the right clock, from when it was sent."""
    told: datetime
    """By the receipt."""


class _LaterPrompts:
    """Sends prompts for later to all servers, and observes in Redis when they begin."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        self.sent: list[_Later] = []
        self.begun: dict[str, list[datetime]] = {}
        self._cluster = cluster
        self._chance = plan.chance("SKEW", "later")
        self._sessions: list[str] = []
        self._stopped = Event()
        self._threads = [Thread(target=self._send), Thread(target=self._observe)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Waits until all have begun, or should have."""
        self._stopped.set()
        self._threads[0].join()
        give_up = max((each.due for each in self.sent), default=datetime.now(UTC))
        give_up += timedelta(seconds=_LATE_SECONDS_MAX)
        while len(self.begun) < len(self.sent) and datetime.now(UTC) < give_up:
            time.sleep(0.2)
        time.sleep(2.0)  # for those that would run twice
        self._sessions.clear()
        self._threads[1].join()

    def complaints(self) -> Iterator[str]:
        for each in self.sent:
            begun = self.begun.get(each.text, [])
            if len(begun) != 1:
                yield f"{each.text!r} began {len(begun)} ×"
                continue
            early = (each.due - begun[0]).total_seconds()
            if early > _EARLY_SECONDS_MAX:
                yield f"{each.text!r} began {early:.1f} s too early"
            if -early > _LATE_SECONDS_MAX:
                yield f"{each.text!r} began {-early:.1f} s late"
            if abs(off := (each.told - each.due).total_seconds()) > _SKEW_SECONDS_MAX:
                yield f"{each.text!r} was told to begin {off:.1f} s later than it was sent for"

    @property
    def slowest(self) -> float:
        late = [
            (self.begun[each.text][0] - each.due).total_seconds()
            for each in self.sent
            if each.text in self.begun
        ]
        return max(late, default=0.0)

    def _send(self) -> None:
        number = 0
        while not self._stopped.wait(0.3):
            number += 1
            with suppress(OSError, Closed):
                self._send_one(f"fast later {number}")

    def _send_one(self, text: str) -> None:
        port = self._chance.choice(self._cluster.ports)
        delay = self._chance.uniform(*_LATER_SECONDS)
        with RawClient(port, timeout=_REPLY_SECONDS_MAX) as wire:
            wire.hello()
            session_id = wire.request(SESSION_NEW).json.get("session_id")
            sent_at = datetime.now(UTC)
            receipt = wire.request(PROMPT, {"text": text, "not_before": delay})
            if receipt.type == ERROR or session_id is None:
                return
            told = datetime.fromisoformat(receipt.json["due_at"])
            due = sent_at + timedelta(seconds=delay)
            self._sessions.append(session_id)
            self.sent.append(_Later(session_id=session_id, text=text, due=due, told=told))

    def _observe(self) -> None:
        client, streams = self._cluster.storage.connect(), self._cluster.streams()
        seen: set[str] = set()
        while self._sessions or not self._stopped.is_set():
            for session_id in tuple(self._sessions):
                with suppress(OSError):
                    for number, fields in client.xrange(streams.key(session_id, "log")):
                        line = bytes(fields[b"line"])
                        if (key := f"{session_id}/{number}") in seen:
                            continue
                        seen.add(key)
                        self._note(line)
            time.sleep(0.05)

    def _note(self, line: bytes) -> None:
        entry = json.loads(line)
        if entry["kind"] == "model_input":
            self.begun.setdefault(entry["content"], []).append(datetime.now(UTC))


class Skews(Chaos):
    def jump(self) -> None:
        clock = self._chance.choice(self._cluster.members).clock
        assert clock is not None
        clock.set(self._chance.choice(_JUMPS))

    def carry_out_all(self, rounds: int) -> float:
        faults: list[Fault] = [
            *[self.jump] * 4,
            *(self.kill, self.stop, self.cut_from_redis, self.restart_redis),
        ] * rounds
        self._chance.shuffle(faults)
        progress, longest = Progress("SKEW faults", len(faults)), 0.0
        for fault in faults:
            fault()
            self.met[fault.__name__.replace("_", " ")] += 1
            longest = max(longest, self.recover(fault.__name__))
            self._pause(0, 2)
            progress.step(f"{len(self._crowd.acknowledged):,} acknowledged")
        progress.end()
        return longest


def skewed_clocks(plan: Plan) -> list[Result]:
    promised = Promised(number="SKEW", what="the clocks of servers differ and jump")
    with running_cluster(plan, with_clocks=True) as cluster:
        for member, ahead in zip(cluster.members, _AT_FIRST, strict=True):
            assert member.clock is not None
            member.clock.set(ahead)
        began = datetime.now(UTC)
        crowd = Crowd(cluster=cluster, words_max=_WORDS_MAX)
        crowd.create(_CONVERSATIONS)
        warned = [_is_warned_of(member) for member in cluster.members]
        threads = crowd.talk(plan.chance("SKEW clients"), clients=10)
        faults, later = Skews(crowd, plan.chance("SKEW")), _LaterPrompts(cluster, plan)
        later.start()
        longest = faults.carry_out_all(1 if plan.quick else 10)
        later.finish()
        records = records_after(plan, cluster, crowd, threads)
        complaints = [*complaints_of(cluster, crowd, records), *later.complaints()]
    complaints += [
        f"server {place} says nothing of skew" for place, is_so in enumerate(warned) if not is_so
    ]
    off = _furthest(records, began, datetime.now(UTC))
    if off > _SKEW_SECONDS_MAX:
        complaints.append(f"the time of an entry is off by {off:,.1f} s")
    met = ", ".join(f"{count} × {name}" for name, count in sorted(faults.met.items()))
    found = (
        f"{figures(crowd)}; {shown(crowd)}; {len(later.sent)} prompts for later, at most "
        f"{later.slowest:.1f} s late; times of entries off by at most {off:.1f} s; "
        f"recovered within {longest:.1f} s; {met}"
    )
    return [promised.judged(complaints, found)]


def _is_warned_of(member: Member) -> bool:
    """Whether STATUS says that clocks differ. All servers know it from each other."""
    deadline = time.monotonic() + LEASE_SECONDS * 5
    while time.monotonic() < deadline:
        with RawClient(member.port) as wire:
            wire.hello()
            problems = wire.request(STATUS).json["cluster"]["problems"]
            if any("the clock of" in each for each in problems):
                return True
        time.sleep(0.2)
    return False


def _furthest(
    records: Mapping[str, Sequence[Mapping[str, Any]]], began: datetime, ended: datetime
) -> float:
    """The seconds by which the times of entries are before or after the run, at most."""
    times = [
        datetime.fromisoformat(entry["timestamp"])
        for entries in records.values()
        for entry in entries
    ]
    before = max(((began - each).total_seconds() for each in times), default=0.0)
    after = max(((each - ended).total_seconds() for each in times), default=0.0)
    return max(0.0, before, after)
