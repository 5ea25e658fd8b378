"""The servers that share a Redis, as they know each other.

Each server announces itself (`Member`) in one hash, three times in a lease; an announcement that is
not repeated expires with the lease. In the same thread a server examines how its Redis is set up,
and compares its own announcement with the others'. The result, `view`, is read without waiting for
Redis.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Final

import msgspec
from msgspec.structs import replace
from redis.exceptions import RedisError

from nplt_storage.errors import StorageError, StorageUnavailable
from nplt_storage.redis import scripts
from nplt_storage.redis.clock import RedisClock
from nplt_storage.redis.connection import RedisConnection
from nplt_storage.redis.examination import (
    SKEW_SECONDS_MAX,
    Examined,
    examine,
    try_commands,
)
from nplt_storage.redis.ownership import Leases
from nplt_storage.store import Member, MemberNote, SharedView

log = logging.getLogger(__name__)

_ANNOUNCEMENTS_PER_LEASE: Final = 3
_READS_PER_ANNOUNCEMENT: Final = 10


class Membership:
    def __init__(
        self, connection: RedisConnection, leases: Leases, examined: Examined, *, expires: bool
    ) -> None:
        """`expires`: whether conversations expire (`ttl`)."""
        self.examined = examined
        self.clock = RedisClock(examined.reading)
        self._connection = connection
        self._leases = leases
        self._expires = expires
        self._own = Member(
            id=leases.own.id,
            address=leases.own.address,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self.clock().timestamp(),
        )
        self._members: Sequence[Member] = ()
        self._logged: frozenset[str] = frozenset()
        self._pause_seconds = leases.milliseconds / 1000 / _ANNOUNCEMENTS_PER_LEASE
        self._stopped = Event()
        self._thread: Thread | None = None

    @property
    def view(self) -> SharedView:
        problems = [problem.says for problem in self.examined.problems]
        return SharedView(
            members=tuple(self._members) or (self._own,),
            own_address=self._own.address,
            problems=(*problems, *self._problems_among(self._members)),
        )

    # In a worker thread

    def compare(self, note: MemberNote) -> None:
        """Compares this server with the others, without announcing it."""
        self._own = replace(self._own, version=note.version, secret=note.secret)
        self.refresh()

    def join(self, note: MemberNote) -> None:
        """Announces this server until `close`."""
        self._own = replace(self._own, version=note.version, secret=note.secret)
        self.refresh(announces=True)
        self._log_problems()
        self._thread = Thread(target=self._work, name="redis members", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises `StorageUnavailable` if this server can't use this Redis."""
        if refused := [each.says for each in self.examined.problems if each.refuses]:
            raise StorageUnavailable("; ".join(refused))
        try_commands(self._connection)
        self._check_address()

    def _check_address(self) -> None:
        """Raises `StorageUnavailable` if another server that is alive has this one's address. A
        killed server stays announced for a while, so those with the same address are watched until
        one of them announces itself again."""
        first = {member.id: member.beat for member in self._namesakes()}
        for _ in range(_READS_PER_ANNOUNCEMENT + 2):
            if not first:
                return
            time.sleep(self._pause_seconds / _READS_PER_ANNOUNCEMENT)
            for member in self._namesakes():
                if first.get(member.id) != member.beat:
                    raise StorageUnavailable(
                        f"the server {_place_of(member)} has the address {member.address} too; "
                        "each server needs a cluster.advertise of its own"
                    )

    def _namesakes(self) -> list[Member]:
        if self._own.address is None:
            return []
        return [
            member
            for member in self._noted("")
            if member.address == self._own.address
            and member.id != self._own.id
            and not self._has_died(member)
        ]

    def _has_died(self, member: Member) -> bool:
        if member.host != self._own.host:
            return False
        try:
            os.kill(member.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass
        return False

    def refresh(self, *, announces: bool = False) -> Sequence[Member]:
        """Reads the announcements, the oldest server first."""
        self._own = replace(
            self._own,
            owned=self._leases.count,
            skew=self.examined.skew,
            beat=self._own.beat + announces,
        )
        members = {self._own.id: self._own}
        for member in self._noted(self._own.id if announces else ""):
            members.setdefault(member.id, member)
        self._members = sorted(members.values(), key=lambda member: member.started_at)
        return self._members

    def _noted(self, announced: str) -> Iterator[Member]:
        note = (announced, msgspec.json.encode(self._own), self._leases.milliseconds)
        for each in self._connection.run(scripts.MEMBERS, [self._key], *note):
            with suppress(msgspec.DecodeError):  # of a later version
                yield msgspec.json.decode(each, type=Member)

    @property
    def _key(self) -> str:
        return self._connection.keyspace.members

    def examine(self) -> None:
        self.examined = examine(self._connection, expires=self._expires)
        self.clock.learn(self.examined.reading)

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            with suppress(RedisError):  # else it expires
                self._connection.call("HDEL", self._key, self._own.id)

    def _work(self) -> None:
        while not self._stopped.wait(self._pause_seconds):
            try:
                self.refresh(announces=True)
                if self._own.beat % _ANNOUNCEMENTS_PER_LEASE == 0:
                    self.examine()
                self._log_problems()
            except (RedisError, StorageError) as error:
                log.debug("this server could not be announced: %s", error)
            except Exception:  # without this thread the others would not know this server
                log.exception("announcing this server failed; going on")

    def _log_problems(self) -> None:
        """Logs each problem when it is found, and again only after it was gone."""
        problems = frozenset(self.view.problems)
        for each in sorted(problems - self._logged):
            log.warning("%s", each)
        self._logged = problems

    def _problems_among(self, members: Sequence[Member]) -> Iterator[str]:
        own = self._own
        for member in members:
            if member.id == own.id:
                continue
            place = f"the server {_place_of(member)}"
            if own.address is not None and member.address == own.address:
                yield f"{place} has the address {own.address} too; each needs one of its own"
            if own.secret and member.secret and member.secret != own.secret:
                yield f"{place} has another cluster secret, so neither can relay to the other"
            if abs(member.skew - own.skew) > SKEW_SECONDS_MAX:
                ahead = member.skew - own.skew
                way = "ahead of" if ahead > 0 else "behind"
                yield f"the clock of {place} is {abs(ahead):.1f} s {way} this one's"


def _place_of(member: Member) -> str:
    address = f" at {member.address}" if member.address else ""
    return f"{member.host}{address} (process {member.pid})"
