"""How much of a conversation's end its next turn needs, whatever it is kept in.

A conversation may be a gigabyte long; who goes on with it needs the last few
megabytes. Met from behind, it is read until there is enough of it; or, where it
is known what models still see (a clear hides all before it, an epoch leaves out
what is older than it says), all of that and some more, because a prompt may be
sent again, a rollback asked for. And on from there until each turn met has its
prompt, and each turn that has not ended is there from its prompt on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nplt_storage.facts.entries import ClearEntry, Entry, EpochEntry, ModelInputEntry

_SOME: Final = 1 / 16
"""What is read at least where models see less, as a part of what is enough."""
_FAR: Final = 4
"""How far one goes for the turns of an epoch: so many times what is enough. Without
the rest of them a new epoch begins, which costs the provider's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    bytes: int = 8 * 1024 * 1024
    entries: int = 5_000


@dataclass(slots=True)
class Walk:
    """What was met on the way back, newest first, and whether one may stop."""

    enough: Enough
    unmet: set[int]
    """Prompts of turns that have not ended, by number."""
    epoch: EpochEntry | None = None
    """The one in force, where that is known; else the first that is met."""
    entries: list[Entry] = field(default_factory=list)
    _bytes: int = 0
    _met_clear: bool = False
    _prompted: set[str] = field(default_factory=set)
    _headless: set[str] = field(default_factory=set)
    """Turns met from behind, whose prompt is still to come."""

    def take(self, entry: Entry, size: int) -> None:
        self.entries.append(entry)
        self._bytes += size
        self.unmet.discard(entry.seq)
        if isinstance(entry, ClearEntry):
            self._met_clear = True
        elif isinstance(entry, EpochEntry) and self.epoch is None:
            self.epoch = entry
        elif isinstance(entry, ModelInputEntry) and entry.turn_id is not None:
            self._prompted.add(entry.turn_id)
            self._headless.discard(entry.turn_id)
        elif entry.turn_id is not None and entry.turn_id not in self._prompted:
            self._headless.add(entry.turn_id)

    @property
    def is_over(self) -> bool:
        needed = self._needed()
        if self.unmet or not self._has(needed):
            return False
        # A turn without any prompt (another program wrote it) must not lead
        # back to the very beginning.
        return not self._headless or self._has(2 * max(1, needed))

    def _needed(self) -> float:
        if self._met_clear:
            return _SOME
        if self.epoch is None:
            return 1
        is_all = bool(self.entries) and self.entries[-1].seq <= self.epoch.omitted_through + 1
        return _SOME if is_all else _FAR

    def _has(self, times: float) -> bool:
        return (
            self._bytes >= times * self.enough.bytes
            or len(self.entries) >= times * self.enough.entries
        )
