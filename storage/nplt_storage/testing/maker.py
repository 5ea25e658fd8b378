"""What the rules need to know about a store: how to get one, and what can be done to it.

A maker stands for one place where conversations are kept, empty at first. All
stores it opens are on that place. `can` names what it can do beyond opening
one store:

    last      what one store wrote is there for the next, once it was closed
    crash     likewise when its process died: `end` ends a store that way
    share     a second store may be opened beside the first, as by another process
    trim      `open_store(max_turns=…)` gives one that keeps that many turns
    expire    `open_store(ttl_seconds=…)` gives one that forgets; `pass_time` ages it
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import ClassVar, Literal, TypeAlias

from nplt_storage.store import ConversationStore

Ability: TypeAlias = Literal["last", "crash", "share", "trim", "expire"]

START = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def ticking_clock() -> Callable[[], datetime]:
    """A second later every time it is asked."""
    seconds = count()
    return lambda: START + timedelta(seconds=next(seconds))


class StoreMaker(ABC):
    can: ClassVar[frozenset[Ability]] = frozenset()

    def __init__(self) -> None:
        self.clock = ticking_clock()
        self._open: list[ConversationStore] = []

    @abstractmethod
    async def open_store(
        self, *, max_turns: int | None = None, ttl_seconds: int | None = None
    ) -> ConversationStore:
        """Options are only given to makers that can `trim` or `expire`."""

    async def end(self, store: ConversationStore) -> None:
        """As the death of its process would: nothing is finished, nothing is said."""
        raise NotImplementedError

    async def pass_time(self, seconds: int) -> None:
        raise NotImplementedError

    # For the rules

    async def store(
        self, *, max_turns: int | None = None, ttl_seconds: int | None = None
    ) -> ConversationStore:
        store = await self.open_store(max_turns=max_turns, ttl_seconds=ttl_seconds)
        self._open.append(store)
        return store

    async def reopened(self, store: ConversationStore) -> ConversationStore:
        await store.close()
        self._open.remove(store)
        return await self.store()

    async def after_crash(self, store: ConversationStore) -> ConversationStore:
        await self.end(store)
        self._open.remove(store)
        return await self.store()

    async def close(self) -> None:
        """Ends all it has opened; a subclass that holds more closes that too."""
        while self._open:
            await self._open.pop().close()
