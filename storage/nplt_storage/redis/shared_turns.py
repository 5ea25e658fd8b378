"""The turns that a user's servers run together, of which there is a largest number.

Each running turn has a slot in a sorted set of the user in Redis, which expires with the lease. A
slot that becomes free stays with its server for `SPARE_SECONDS`, so that a user who goes on at once
needs no round trip, and slots are returned together. It does not stay if the user had no other slot
left: then turns of other servers may wait for it.

All methods are called in the event loop, except `keep`.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop
from functools import partial
from time import monotonic
from typing import Final

from nplt_storage.redis import scripts
from nplt_storage.redis.connection import RedisConnection, Sender

SPARE_SECONDS: Final = 0.1
_ROOM_SECONDS: Final = 0.5
"""How long it counts that a user had other slots left."""


class _UserTurns:
    """The slots of one user that this server has."""

    def __init__(self) -> None:
        self.slots: dict[str, str] = {}
        """The slot of each running turn. A slot has the id of the turn that it was taken for."""
        self.spare: list[str] = []
        self.had_room_until = 0.0
        self.will_return = False


class SharedTurns:
    def __init__(self, connection: RedisConnection, sender: Sender, milliseconds: int) -> None:
        """A slot that is not kept expires after so many milliseconds."""
        self._connection = connection
        self._sender = sender
        self._milliseconds = milliseconds
        self._of_user: dict[str, _UserTurns] = {}

    async def take(self, user: str, turn_id: str, turns_max: int) -> bool:
        key = self._connection.keyspace.of_user("turns", user)
        turns = self._of_user.get(key) or _UserTurns()
        if turns.spare and monotonic() < turns.had_room_until:
            turns.slots[turn_id] = turns.spare.pop()
            return True
        arguments = (turn_id, turns_max, self._milliseconds)
        work = partial(self._connection.run, scripts.TAKE_TURN, [key], *arguments)
        left = int(await self._connection.in_thread(work))
        if left < 0:
            return False
        turns = self._of_user.setdefault(key, turns)
        turns.slots[turn_id] = turn_id
        turns.had_room_until = monotonic() + _ROOM_SECONDS if left else 0.0
        return True

    def end(self, user: str, turn_id: str) -> None:
        """Frees the slot of a turn, even if it is unknown whether it was taken."""
        key = self._connection.keyspace.of_user("turns", user)
        turns = self._of_user.get(key)
        if turns is None or (slot := turns.slots.pop(turn_id, None)) is None:
            self._sender.post(partial(self._return, key, [turn_id]))
            return
        turns.spare.append(slot)
        if monotonic() >= turns.had_room_until:
            self._return_spare(key)
        elif not turns.will_return:
            turns.will_return = True
            loop: AbstractEventLoop = get_running_loop()
            loop.call_later(SPARE_SECONDS, self._return_spare, key)

    def close(self) -> None:
        """Returns what is spare. The sender must be closed afterwards."""
        for key in tuple(self._of_user):
            self._return_spare(key)

    def keep(self) -> None:
        """Called in a thread, before the slots expire."""
        for key, turns in list(self._of_user.items()):
            if held := [*turns.slots.copy().values(), *turns.spare]:
                self._connection.call("EVAL", scripts.KEEP_TURNS, 1, key, self._milliseconds, *held)

    def _return_spare(self, key: str) -> None:
        turns = self._of_user.get(key)
        if turns is None:
            return
        turns.will_return = False
        spare, turns.spare = turns.spare, []
        if not turns.slots:
            del self._of_user[key]
        if spare:
            self._sender.post(partial(self._return, key, spare))

    def _return(self, key: str, slots: list[str]) -> None:
        self._connection.call("ZREM", key, *slots)
