"""What goes on beside everything else, counted, so that others can wait until nothing does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

Spawn = Callable[[Callable[[], Awaitable[None]]], None]
"""Runs something beside everything else, until the server stops."""


class Activity:
    __slots__ = ("_count", "_part_of", "_rest")

    def __init__(self, part_of: Activity | None = None) -> None:
        self._part_of = part_of
        self._count = 0
        self._rest: anyio.Event | None = None

    @property
    def is_quiet(self) -> bool:
        return self._count == 0

    def begin(self) -> None:
        self._count += 1
        if self._part_of is not None:
            self._part_of.begin()

    def end(self) -> None:
        self._count -= 1
        if not self._count and self._rest is not None:
            self._rest.set()
            self._rest = None
        if self._part_of is not None:
            self._part_of.end()

    async def quiet(self) -> None:
        while self._count:
            if self._rest is None:
                self._rest = anyio.Event()
            await self._rest.wait()
