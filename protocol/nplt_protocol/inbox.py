"""What was heard and not yet taken, and whether that is enough for now.

Counted in items, for a tiny request becomes a value a hundred times its size,
and in bytes, for a few large ones fill the memory as well. No I/O here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

INBOX_ITEMS_MAX = 256
INBOX_BYTES_MAX = 1024 * 1024

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    __slots__ = ("_bytes", "_items", "_unheard_bytes")

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._bytes = 0
        self._unheard_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def is_full(self) -> bool:
        return len(self._items) > INBOX_ITEMS_MAX or self._bytes > INBOX_BYTES_MAX

    def read(self, count: int) -> None:
        """So many bytes were read; what they mean may show only later."""
        self._unheard_bytes += count

    def answered(self) -> None:
        """They needed no owner."""
        self._unheard_bytes = 0

    def add(self, items: Sequence[Item]) -> None:
        self._items.extend(items)
        self._bytes += self._unheard_bytes
        self._unheard_bytes = 0

    def take(self) -> list[Item]:
        items, self._items, self._bytes = self._items, [], 0
        return items
