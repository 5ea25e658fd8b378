"""The active entries of a conversation: those that no rollback has taken back.

`ActiveEntries` keeps the turns and the state that follow from them up to date with each entry.
The ranges of numbers that are taken back are called `hidden`, as in the files. A *state entry*
says what holds until another of its key does: the instruction, the notebook, a widget's state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, overload

from msgspec import Struct

from nplt_storage.entries import (
    ClearEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    QuarantineEntry,
    RollbackEntry,
    ToolResultsEntry,
)
from nplt_storage.messages import ResultsByCall
from nplt_storage.rows import Ranges, StateEntry, StateKey, state_key_of
from nplt_storage.turns import ContextEntry, Turn


class EntriesSoFar(Sequence[Entry]):
    """The entries up to the moment of the call: a view that neither copies nor changes them."""

    __slots__ = ("_entries", "_length")

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._length = len(entries)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Entry]:
        return islice(self._entries, self._length)

    def __reversed__(self) -> Iterator[Entry]:
        # The list only grows, and the iterator begins at its end of this moment.
        return islice(reversed(self._entries), len(self._entries) - self._length, None)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        places = range(self._length)[index]
        if isinstance(places, range):
            return [self._entries[place] for place in places]
        return self._entries[places]


class HiddenEntries(Struct, frozen=True):
    """Names the entries that models of one provider are not shown."""

    entries: frozenset[int] = frozenset()
    pictures: frozenset[int] = frozenset()
    """Entries of which only the pictures are hidden."""


def hidden_from(
    provider: str, quarantines: Mapping[int, tuple[QuarantineEntry, ...]]
) -> HiddenEntries:
    """Returns what models of the provider are not shown: the entries that it refuses, and those
    that two providers refuse, or one that is not named. Without a provider: all that is hidden from
    any model."""
    if not quarantines:
        return NOTHING_HIDDEN

    def is_hidden(among: Sequence[QuarantineEntry]) -> bool:
        refusers = {each.provider for each in among}
        return bool(refusers) and (
            not provider or "" in refusers or provider in refusers or len(refusers) > 1
        )

    whole = {
        seq
        for seq, known in quarantines.items()
        if is_hidden([each for each in known if not each.part])
    }
    pictures = {seq for seq, known in quarantines.items() if seq not in whole and is_hidden(known)}
    return HiddenEntries(frozenset(whole), frozenset(pictures))


NOTHING_HIDDEN: Final = HiddenEntries()


class ActiveEntries:
    """The active entries and the state that follows from them. An entry is added in constant time.
    After a rollback a new object is built, so that holders of the old one see no change."""

    def __init__(self, entries: Iterable[Entry] = (), hidden: Ranges = ()) -> None:
        """Adds the entries that are not hidden. A turn that was running where a hidden range begins
        ends there."""
        self.entries: list[Entry] = []
        self.turns: dict[str | None, Turn] = {}
        self.shown: list[Turn] = []
        """The ended turns that no clear has hidden, by number. The list object stays the same while
        it only grows at its end, and is replaced by another one on any other change, so a reader
        can tell whether to continue from where it stopped."""
        self.unfinished: dict[str | None, ModelInputEntry] = {}
        self.awaiting_client: dict[str | None, Turn] = {}
        """Turns that ended with calls whose results their clients have yet to bring. Models are
        shown them with the results."""
        self.spoken: list[ModelInputEntry | ModelOutputEntry] = []
        """The prompts and outputs, cleared or not."""
        self._cleared_count = 0
        """How many of them came before the last clear."""
        self._spared: list[ModelInputEntry | ModelOutputEntry] = []
        """Messages before the clear whose turns had not ended by then: models still see them."""
        self.results: ResultsByCall = {}
        self.state_entries: dict[StateKey, list[StateEntry]] = {}
        self.quarantined: dict[int, tuple[QuarantineEntry, ...]] = {}
        self.epoch: EpochEntry | None = None
        gaps = iter(hidden)
        gap = next(gaps, None)
        for entry in entries:
            while gap is not None and gap[1] < entry.seq:
                self.abandon_unfinished()
                gap = next(gaps, None)
            if gap is None or entry.seq < gap[0]:
                self.add(entry)
        if gap is not None:
            self.abandon_unfinished()

    def abandon_unfinished(self) -> None:
        """Turns without an end are over: models do not see them, and they are not resumed."""
        for turn_id in self.unfinished:
            self.turns[turn_id].abandoned = True
        self.unfinished.clear()

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        match entry:
            case ModelInputEntry() | ModelOutputEntry():
                self.spoken.append(entry)
                self._add_to_turn(entry)
            case ToolResultsEntry():
                self.results[entry.turn_id, entry.call] = entry
                self._add_to_turn(entry)
            case FaultEntry():
                self._add_to_turn(entry)
            case ForkedEntry():
                self.abandon_unfinished()
            case EpochEntry():
                self.epoch = entry
            case QuarantineEntry():
                self._quarantine(entry)
            case _ if isinstance(entry, StateEntry):
                self.state_entries.setdefault(state_key_of(entry), []).append(entry)
                if isinstance(entry, ClearEntry):
                    self.shown = []
                    self.awaiting_client.clear()
                    self._clear_spoken()
            case _:
                pass

    def _quarantine(self, entry: QuarantineEntry) -> None:
        known = self.quarantined.pop(entry.target_seq, ())
        if not entry.lifted:
            known = (*known, entry)
        elif entry.provider:
            known = tuple(each for each in known if each.provider != entry.provider)
        else:
            known = ()
        if known:
            self.quarantined[entry.target_seq] = known

    def _clear_spoken(self) -> None:
        self._cleared_count = len(self.spoken)
        turns = (self.turns[turn_id] for turn_id in self.unfinished)
        spared = (each for turn in turns for each in turn.entries)
        self._spared = [
            entry for entry in spared if isinstance(entry, ModelInputEntry | ModelOutputEntry)
        ]

    def spoken_since_clear(self, n: int) -> list[ModelInputEntry | ModelOutputEntry]:
        """The last `n` prompts and outputs that no clear has hidden, oldest first."""
        count = len(self.spoken)
        since = self.spoken[max(self._cleared_count, count - n, 0) :]
        missing = n - len(since)
        return [*self._spared[-missing:], *since] if missing > 0 else since

    def _add_to_turn(self, entry: ContextEntry | FaultEntry) -> None:
        if entry.turn_id is None:
            return
        turn = self.turns.get(entry.turn_id)
        if turn is None:
            turn = self.turns[entry.turn_id] = Turn(number=entry.seq)
        if isinstance(entry, ToolResultsEntry) and turn.awaits_client:
            self._complete(turn, entry)
            return
        if not isinstance(entry, FaultEntry):
            turn.entries.append(entry)
        match entry:
            case ModelInputEntry():
                if turn.prompt is None:
                    turn.prompt = entry
                    if turn.end is None:
                        turn.number = entry.seq
                        self.unfinished[entry.turn_id] = entry
            case ModelOutputEntry():
                turn.last_call = entry.call
                turn.awaiting_results = entry if entry.tool_calls else None
                if entry.ends_turn:
                    self._end(turn, entry)
            case ToolResultsEntry() if not entry.awaits_client:
                turn.awaiting_results = None
            case ToolResultsEntry() | FaultEntry():
                self._end(turn, entry)

    def _complete(self, turn: Turn, results: ToolResultsEntry) -> None:
        """Adds the results that the client of an ended turn has brought."""
        turn.awaiting_results = None
        if isinstance(turn.entries[-1], ToolResultsEntry):
            turn.entries.pop()  # the server's own results, which are repeated
        turn.entries.append(results)
        if self.awaiting_client.pop(results.turn_id, None) is not None:
            self._show(turn)

    def _end(self, turn: Turn, end: ModelOutputEntry | ToolResultsEntry | FaultEntry) -> None:
        if turn.end is not None:
            return
        turn.end = end
        self.unfinished.pop(end.turn_id, None)
        if isinstance(end, FaultEntry) and end.never_began:
            return
        if turn.awaiting_results is not None and turn.awaits_client:
            self.awaiting_client[end.turn_id] = turn
        else:
            self._show(turn)

    def _show(self, turn: Turn) -> None:
        if not self.shown or self.shown[-1].number < turn.number:
            self.shown.append(turn)
        else:
            place = bisect_left(self.shown, turn.number, key=lambda shown: shown.number)
            self.shown = [*self.shown[:place], turn, *self.shown[place:]]


def place_after(entries: Sequence[Entry], seq: int) -> int:
    """The number of entries up to `seq`; the entries are in order."""
    return bisect_right(entries, seq, key=lambda entry: entry.seq)


def is_in(ranges: Ranges, seq: int) -> bool:
    place = bisect_right(ranges, seq, key=lambda range_: range_[0]) - 1
    return place >= 0 and seq <= ranges[place][1]


def ranges_without(ranges: Ranges, others: Ranges) -> list[tuple[int, int]]:
    """The parts of the ranges that are in none of the others."""
    left: list[tuple[int, int]] = []
    for first, last in ranges:
        place = max(0, bisect_right(others, first, key=lambda range_: range_[0]) - 1)
        while first <= last and place < len(others) and others[place][0] <= last:
            if others[place][1] >= first:
                if others[place][0] > first:
                    left.append((first, others[place][0] - 1))
                first = others[place][1] + 1
            place += 1
        if first <= last:
            left.append((first, last))
    return left


def as_ranges(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """Joins sorted numbers into ranges."""
    ranges: list[tuple[int, int]] = []
    for seq in seqs:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return ranges


def hidden_in(entries: Iterable[Entry], hidden: Ranges = ()) -> Ranges:
    """The hidden ranges as of the last entry; `hidden` are those before the first."""
    ranges = list(hidden)
    for entry in entries:
        if isinstance(entry, RollbackEntry):
            if entry.hidden is not None:
                ranges = list(entry.hidden)
            while ranges and ranges[-1][1] > entry.to_seq:
                ranges.pop()
            ranges.append((entry.to_seq + 1, entry.seq))
    return tuple(ranges)


def reach(held: list[Entry], hidden: Ranges, head_seq: int) -> int:
    """The number from which on every active entry is loaded."""
    if held and held[-1].seq == head_seq:
        first = held[0].seq
        if first + len(held) == head_seq + 1 and not (hidden and first > 1):
            return first  # nothing is missing between them
    due = head_seq
    ranges = list(hidden)
    for entry in reversed(held):
        due = skip_hidden(due, ranges)
        if entry.seq < due:
            break
        due = min(due, entry.seq - 1)
    return skip_hidden(due, ranges) + 1


def skip_hidden(seq: int, ranges: list[tuple[int, int]]) -> int:
    """The next lower number that is not hidden; ranges above it are dropped."""
    while ranges and seq <= ranges[-1][1]:
        seq = min(seq, ranges.pop()[0] - 1)
    return seq
