"""What stands in a conversation, and all that follows from it.

Fed with the entries that stand, one by one and each in constant time. A
rollback takes nothing out of it: what stands then is put together anew, so that
whoever looked at the old one still sees what they saw.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias, overload

from nplt_storage.conversation.landmarks import Landmark, Told, landmark_of
from nplt_storage.conversation.turns import Turns
from nplt_storage.conversation.views import ResultsByCall
from nplt_storage.facts.entries import (
    ClearEntry,
    CompactionEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    NotebookEntry,
    QuarantineEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
    WidgetEntry,
)

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Numbers of entries, first and last, in order and apart."""


class EntriesSoFar(Sequence[Entry]):
    """The entries up to the moment it was asked for: no copy, and no way to change them."""

    __slots__ = ("_entries", "_length")

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._length = len(entries)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Entry]:
        return islice(self._entries, self._length)

    def __reversed__(self) -> Iterator[Entry]:
        return (self._entries[place] for place in range(self._length - 1, -1, -1))

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        places = range(self._length)[index]
        if isinstance(places, range):
            return [self._entries[place] for place in places]
        return self._entries[places]


class Standing:
    def __init__(self, entries: Iterable[Entry] = (), hidden: Ranges = ()) -> None:
        """Whatever was under way where `hidden` begins was left there."""
        self.entries: list[Entry] = []
        self.turns = Turns()
        self.spoken: list[ModelInputEntry | ModelOutputEntry] = []
        self.said_by_system: list[FaultEntry | SystemInstructionEntry] = []
        self.results: ResultsByCall = {}
        self.told: dict[Landmark, list[Told]] = {}
        self.quarantined: dict[int, QuarantineEntry] = {}
        self.epoch: EpochEntry | None = None
        gaps = iter(hidden)
        gap = next(gaps, None)
        for entry in entries:
            while gap is not None and gap[1] < entry.seq:
                self.turns.abandon_unfinished()
                gap = next(gaps, None)
            self.add(entry)
        if gap is not None:
            self.turns.abandon_unfinished()

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.turns.add(entry)
        match entry:
            case ModelInputEntry() | ModelOutputEntry():
                self.spoken.append(entry)
            case ToolResultsEntry():
                self.results[entry.turn_id, entry.call] = entry
            case FaultEntry():
                self.said_by_system.append(entry)
            case SystemInstructionEntry():
                self.said_by_system.append(entry)
                self._tell(entry)
            case NotebookEntry() | CompactionEntry() | ClearEntry() | WidgetEntry():
                self._tell(entry)
            case EpochEntry():
                self.epoch = entry
            case QuarantineEntry(lifted=True):
                self.quarantined.pop(entry.target_seq, None)
            case QuarantineEntry():
                self.quarantined[entry.target_seq] = entry
            case _:
                pass

    def _tell(self, entry: Told) -> None:
        self.told.setdefault(landmark_of(entry), []).append(entry)

    def through(self, seq: int) -> list[Entry]:
        return self.entries[: place_after(self.entries, seq)]


def place_after(entries: Sequence[Entry], seq: int) -> int:
    """How many of these, which are in order, have a number up to `seq`."""
    return bisect_right(entries, seq, key=_number)


def is_in(ranges: Ranges, seq: int) -> bool:
    place = bisect_right(ranges, seq, key=_first) - 1
    return place >= 0 and seq <= ranges[place][1]


def _number(entry: Entry) -> int:
    return entry.seq


def _first(range_: tuple[int, int]) -> int:
    return range_[0]
