"""Whose conversation it is now: a key that lapses unless its owner is alive.

Opening a conversation takes the lease, in the same step; another server that
would open it meanwhile is refused, and nothing it does on its own (such as
ending turns that nobody seems to run) can touch it. A thread renews the leases
of what is open; closing gives them back; those of a dead process lapse. Redis
measures the time, so no two clocks need to agree.

A lease is a courtesy between the living, not what keeps the record sound: if one
lapses though its owner lives (it slept, or Redis forgot the key), an entry of
whoever is behind is still refused by its number.
"""

from __future__ import annotations

import logging
from threading import Event, Lock, Thread
from typing import Final

from redis.exceptions import RedisError

from nplt_storage.ids import new_entry_id
from nplt_storage.redis_streams import scripts
from nplt_storage.redis_streams.connection import RedisConnection

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 15.0
"""Longer: who restarts after a kill waits longer. Shorter: a hiccup loses it."""
_RENEWALS_PER_LEASE: Final = 3
_RENEWED_AT_ONCE: Final = 500


class Leases:
    """Those of one store, from its opening to its end."""

    def __init__(self, connection: RedisConnection, *, seconds: float = LEASE_SECONDS) -> None:
        self.arguments = (new_entry_id(), max(1, int(seconds * 1000)))
        """What scripts are told: the owner, and for how many milliseconds."""
        self._connection = connection
        self._renewed_after_seconds = seconds / _RENEWALS_PER_LEASE
        self._kept: set[str] = set()
        self._changing = Lock()
        """A renewal on its way must not bring back what is given back meanwhile."""
        self._stopped = Event()
        self._thread: Thread | None = None

    def keep(self, base: str) -> None:
        self._kept.add(base)
        if self._thread is None:
            self._thread = Thread(target=self._work, name="redis leases", daemon=True)
            self._thread.start()

    def forget(self, base: str) -> None:
        """It is not there any more."""
        self._kept.discard(base)

    # In a worker thread

    def give_back(self, base: str) -> None:
        with self._changing:
            self._kept.discard(base)
            self._connection.run(scripts.RELEASE, [base], *self.arguments)

    def renew(self) -> None:
        with self._changing:
            bases = sorted(self._kept)
            for start in range(0, len(bases), _RENEWED_AT_ONCE):
                some = bases[start : start + _RENEWED_AT_ONCE]
                self._connection.run(scripts.RENEW, some, *self.arguments)

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        is_well = True
        while not self._stopped.wait(self._renewed_after_seconds):
            try:
                self.renew()
                is_well = True
            except RedisError as error:
                if is_well:
                    log.warning("conversations may be opened by another server: %s", error)
                is_well = False
            except Exception:  # without this thread every lease would lapse
                log.exception("renewing leases failed; going on")
