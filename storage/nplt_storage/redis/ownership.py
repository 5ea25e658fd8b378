"""Which server owns a conversation, and for how long.

Acquiring a conversation increments its generation and stores a token, `generation:nonce`, with
the record and under a key that expires with the lease. Every script that writes compares the
token (`scripts`), so a server that was overtaken is refused, even if it does not know that. The
owner counts the lease from before its request, so that its own deadline is never later than
Redis's. After the deadline it writes nothing until it has reclaimed the lease, which fails if
another server has owned the conversation meanwhile.

A thread renews the leases of open conversations; closing a conversation returns its lease. The
leases of a dead process expire, or are taken earlier by a server on the same machine that sees
that the process is dead.

A server that can't reach the owner asks for a conversation by a note stored with the token. The
owner reads it when it renews the lease; when it closes the conversation, the lease goes to the
server that asked. A new owner ignores such notes for the length of one lease, so that two servers
that can't reach each other don't keep taking a conversation from each other.

The same thread notes this server's running turns for the others. These notes, too, expire with the
lease.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final

import msgspec
from msgspec import Struct
from redis.exceptions import RedisError

from nplt_storage.durations import boot_time
from nplt_storage.errors import ConversationHeld, ConversationNotFound, WrittenElsewhere
from nplt_storage.ids import new_entry_id
from nplt_storage.redis import scripts
from nplt_storage.redis.connection import Argument, RedisConnection
from nplt_storage.redis.scripts import Keys

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 15.0
"""With a longer lease, a takeover from a dead machine takes longer; with a shorter one, a hiccup
loses the lease."""
_RENEWALS_PER_LEASE: Final = 3
_RENEWED_AT_ONCE: Final = 500
_RENEWALS_AT_ONCE: Final = 16
_HANDED_OVER_WITHIN: Final = 2 / 3
"""The part of the lease for which a running answer may continue after another server has asked for
the conversation."""
_SAFE_PART: Final = 0.9
"""The part of the lease that the owner relies on, because clocks differ in speed."""


class Process(Struct, frozen=True):
    """Identifies a process for others on the same machine. PIDs are valid only in their namespace,
    and are reused."""

    boot: str
    namespace: str
    pid: int
    started: str


class Server(Struct, frozen=True, kw_only=True):
    """The owner of a conversation, as the other servers read it."""

    id: str
    address: str | None = None
    process: Process | None = None

    @property
    def is_dead(self) -> bool:
        """Whether the server is certainly dead: it was a process on this machine, and no longer
        exists."""
        here, there = _process(os.getpid()), self.process
        if here is None or there is None:
            return False
        if (here.boot, here.namespace) != (there.boot, there.namespace):
            return False
        return _process(there.pid) != there


def _process(pid: int) -> Process | None:
    """`None` if the process does not exist or has ended, or if it can't be looked up."""
    with suppress(OSError, ValueError, IndexError):
        # The program's name is in parentheses, and may contain any character.
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if stat[0] not in "ZX":
            return Process(
                boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
                namespace=str(Path("/proc/self/ns/pid").readlink()),
                pid=pid,
                started=stat[19],
            )
    return None


class Ownership(Struct, eq=False):
    """One conversation that this server owns, or owned."""

    session_id: str
    keys: Keys
    token: str
    since: float
    until: float
    """The end of the lease by this machine's clock."""
    wanted_by: bytes | None = None
    """The server that has asked for it."""
    next_nonce: str | None = None
    """The nonce of an acquisition whose reply was lost."""
    reclaiming: Lock = msgspec.field(default_factory=Lock)


class Leases:
    """The conversations that one store owns, from opening to close."""

    def __init__(
        self,
        connection: RedisConnection,
        *,
        seconds: float = LEASE_SECONDS,
        address: str | None = None,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self.keep_more: Callable[[], None] = lambda: None
        """Called whenever the leases have been renewed."""
        self.own = Server(id=new_entry_id(), address=address, process=_process(os.getpid()))
        self.server = msgspec.json.encode(self.own)
        self.milliseconds = max(1, int(seconds * 1000))
        self.clock = clock
        self._connection = connection
        self._keyspace = connection.keyspace
        self._seconds = seconds
        self.handed_over_within = seconds * _HANDED_OVER_WITHIN
        self._owned: dict[str, Ownership] = {}
        self._stopped = Event()
        self._thread: Thread | None = None

    def keep(self, owned: Ownership) -> None:
        self._owned[owned.keys.owner] = owned
        self.start()

    def start(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="redis leases", daemon=True)
            self._thread.start()

    @property
    def count(self) -> int:
        """The number of conversations that this server owns."""
        return len(self._owned)

    def forget(self, owned: Ownership) -> None:
        if self._owned.get(owned.keys.owner) is owned:
            del self._owned[owned.keys.owner]

    def is_over(self, owned: Ownership) -> bool:
        """Whether the lease has ended by this server's clock, so that it must not write."""
        return self.clock() >= owned.until

    def until(self, asked_at: float) -> float:
        return asked_at + self._seconds * _SAFE_PART

    def extend(self, owned: Ownership, token: str, asked_at: float) -> None:
        """Called when Redis has renewed the lease for this token."""
        if owned.token == token:
            owned.until = max(owned.until, self.until(asked_at))

    # In a worker thread

    def claim(self, script: str, session_id: str, keys: Sequence[str], *arguments: Argument) -> Any:
        """Runs a script for a conversation that no other server may own. Raises `ConversationHeld`
        if one does."""
        dead = ""
        while True:
            reply = self._connection.run(script, keys, self.server, dead, *arguments)
            if reply == b"gone":
                raise ConversationNotFound(session_id)
            if not isinstance(reply, list) or reply[0] != b"held":
                return reply
            token = reply[1].decode()
            try:
                server = msgspec.json.decode(reply[2], type=Server)
            except msgspec.DecodeError:  # of a later version, which counts as alive
                server = Server(id="")
            if not server.is_dead:
                raise ConversationHeld(session_id, server.address, token)
            dead = token

    def owned(self, session_id: str, token: bytes, asked_at: float) -> Ownership:
        keys = self._keyspace.of(session_id)
        return Ownership(session_id, keys, token.decode(), asked_at, self.until(asked_at))

    def reclaim(self, owned: Ownership, token: str | None = None) -> None:
        """Acquires the lease again after it has lapsed, or after Redis has refused this token.
        Raises `WrittenElsewhere` if another server has owned the conversation since."""
        with owned.reclaiming:
            if not self.is_over(owned) and owned.token != token:
                return  # another thread has reclaimed it meanwhile
            nonce = owned.next_nonce = owned.next_nonce or new_entry_id()
            asked_at = self.clock()
            reply = self._connection.run(
                scripts.RECLAIM, owned.keys, nonce, self.server, self.milliseconds, owned.token
            )
            if reply in (b"gone", b"fenced"):
                if reply == b"fenced" and owned.until != -math.inf:
                    self._connection.counts.leases_lost += 1
                owned.until = -math.inf
                self.forget(owned)
            if reply == b"gone":
                raise ConversationNotFound(owned.session_id)
            if reply == b"fenced":
                raise WrittenElsewhere("another server has taken it over meanwhile")
            owned.token, owned.next_nonce = reply.decode(), None
            owned.until = self.until(asked_at)

    def give_back(self, owned: Ownership) -> None:
        """Returns the lease, or passes it to the server that has asked for it, if there is one."""
        self.forget(owned)
        heir = (owned.wanted_by or b"", self.milliseconds)
        keys = [owned.keys.owner, owned.keys.meta]
        self._connection.run(scripts.RELEASE, keys, owned.token, *heir)

    def ask_for(self, session_id: str, token: str) -> None:
        """Asks the owner with this token for the conversation. The request expires after the length
        of a lease."""
        key = self._keyspace.of(session_id).owner
        self._connection.run(scripts.ASK_FOR, [key], token, self.server, self.milliseconds)

    def renew(self) -> None:
        """Renews the leases on all nodes in parallel, so that a node that hangs does not delay the
        others."""
        all_owned = self._owned.copy()
        groups = [
            [all_owned[key] for key in group[start : start + _RENEWED_AT_ONCE]]
            for group in self._connection.by_node(all_owned)
            for start in range(0, len(group), _RENEWED_AT_ONCE)
        ]
        if len(groups) == 1:
            self._renew(groups[0])
        elif groups:
            with ThreadPoolExecutor(min(len(groups), _RENEWALS_AT_ONCE)) as threads:
                renewing = [threads.submit(self._renew, group) for group in groups]
            for each in renewing:
                each.result()

    def _renew(self, group: list[Ownership]) -> None:
        asked = [(owned, owned.token) for owned in group]
        asked_at = self.clock()
        replies = self._connection.run_many(
            scripts.RENEW,
            [([owned.keys.owner], (token, self.milliseconds)) for owned, token in asked],
        )
        refusals = [reply for reply in replies if isinstance(reply, RedisError)]
        for (owned, token), reply in zip(asked, replies, strict=True):
            if isinstance(reply, RedisError):
                continue
            if reply:
                self.extend(owned, token, asked_at)
                may_ask = asked_at - owned.since >= self._seconds
                owned.wanted_by = reply if may_ask and isinstance(reply, bytes) else None
            elif owned.token == token:
                owned.until = asked_at  # another server owns it now
        if refusals:
            raise refusals[0]

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        is_well = True
        seconds = 0.0
        while not self._stopped.wait(seconds):
            seconds = self._seconds / _RENEWALS_PER_LEASE
            try:
                self.renew()
                self.keep_more()
                is_well = True
            except RedisError as error:
                if is_well:
                    log.warning("conversations may be opened by another server: %s", error)
                is_well = False
            except Exception:  # without this thread every lease would lapse
                log.exception("renewing leases failed; going on")
