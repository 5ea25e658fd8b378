"""Pages of a conversation: pure, over anything that can be walked both ways.

Oldest first in a page. Without a cursor it is the newest page; `before` and
`after` exclude the cursor, `around` includes it. A page holds at most `limit`
messages and `max_bytes` bytes and is never empty while there is something to
show: what does not fit is dropped on the side away from the cursor, and a
single message that is too large is cut. `before` and `after` of the page are
ready to be sent back: walking either way meets every message exactly once,
for lines are only ever added at the end. Messages are those that stand; the
entries view shows what a rollback took back as well.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from nplt_storage.conversation.attached import attachments_of
from nplt_storage.conversation.cutting import cut_to_fit, size_as_json
from nplt_storage.conversation.standing import Ranges
from nplt_storage.conversation.views import MessageEntry, ResultsByCall, chat_message
from nplt_storage.facts.entries import (
    Entry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolResultsEntry,
)
from nplt_storage.facts.entry_to_json import entry_as_json
from nplt_storage.facts.json_values import JsonObject
from nplt_storage.facts.sections import LevelOfDetail

__all__ = ["EntrySource", "MessagePage", "PageQuery", "cut_to_fit", "read_page", "size_as_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuery:
    before: int | None = None
    after: int | None = None
    around: int | None = None
    limit: int = 20
    max_bytes: int = 60_000
    roles: tuple[str, ...] = ("user", "assistant")
    view: Literal["messages", "entries"] = "messages"
    detail: LevelOfDetail = "live"
    size: Callable[[JsonObject], int] = size_as_json

    def __post_init__(self) -> None:
        if [self.before, self.after, self.around].count(None) < 2:
            raise ValueError("a page has one cursor: before, after or around")
        if self.limit < 1:
            raise ValueError("a page holds at least one message")

    @property
    def cursor(self) -> int | None:
        cursors = (self.before, self.after, self.around)
        return next((cursor for cursor in cursors if cursor is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage:
    messages: tuple[JsonObject, ...]
    has_more_before: bool
    has_more_after: bool
    before: int
    after: int


class EntrySource(Protocol):
    """A conversation as it stood at one moment."""

    @property
    def head_seq(self) -> int: ...
    def before(self, seq: int) -> Iterator[Entry]:
        """Entries below `seq`, newest first."""
        ...

    def after(self, seq: int) -> Iterator[Entry]:
        """Entries above `seq`, oldest first."""
        ...


def read_page(query: PageQuery, source: EntrySource, hidden: Ranges = ()) -> MessagePage:
    """`hidden`: what does not stand in this conversation, as its row says."""
    shown: EntrySource = source
    if query.view == "messages" and hidden:
        shown = WhatStands(source, hidden)
    else:
        hidden = ()
    return _PageBuilder(query, shown, hidden, whole=source).build()


class WhatStands:
    """A conversation without its hidden ranges, which are not even read."""

    def __init__(self, source: EntrySource, hidden: Ranges) -> None:
        self.head_seq = source.head_seq
        self._source = source
        self._hidden = hidden

    def before(self, seq: int) -> Iterator[Entry]:
        for first, last in reversed(self._hidden):
            if first < seq:
                if last < seq - 1:
                    yield from _until(self._source.before(seq), last + 1)
                seq = first
        yield from self._source.before(seq)

    def after(self, seq: int) -> Iterator[Entry]:
        seq = max(seq, 0)
        for first, last in self._hidden:
            if last > seq:
                if first > seq + 1:
                    yield from _until(self._source.after(seq), first - 1)
                seq = last
        yield from self._source.after(seq)


def _until(entries: Iterator[Entry], seq: int) -> Iterator[Entry]:
    for entry in entries:
        yield entry
        if entry.seq == seq:
            return


class _PageBuilder:
    def __init__(
        self, query: PageQuery, source: EntrySource, hidden: Ranges, *, whole: EntrySource
    ) -> None:
        self._query = query
        self._source = source
        self._whole = whole
        self._finder = _ResultFinder(source, hidden)
        self._room = query.max_bytes
        self._newer: list[tuple[int, JsonObject]] = []
        self._older: list[tuple[int, JsonObject]] = []

    def build(self) -> MessagePage:
        query, source = self._query, self._source
        nothing: Iterator[Entry] = iter(())
        if query.after is not None:
            newer, older = self._shown(source.after(query.after)), nothing
        elif query.around is not None:
            newer = self._shown(source.after(query.around - 1))
            older = self._shown(source.before(query.around))
        else:
            top = source.head_seq + 1 if query.before is None else query.before
            newer, older = nothing, self._shown(source.before(top))
        next_newer, next_older = self._fill(newer, older)
        found = [*reversed(self._older), *self._newer]
        cursor = query.cursor or 0
        first, last = (found[0][0], found[-1][0]) if found else (cursor, cursor)
        if query.after is not None:
            next_older = next(self._shown(source.before(first)), None)
        elif query.before is not None:
            next_newer = next(self._shown(source.after(last)), None)
        return MessagePage(
            messages=tuple(message for _, message in found),
            has_more_before=next_older is not None,
            has_more_after=next_newer is not None,
            before=first,
            after=last,
        )

    def _fill(
        self, newer: Iterator[Entry], older: Iterator[Entry]
    ) -> tuple[Entry | None, Entry | None]:
        """Takes from both sides in turn, nearest first; gives what comes next on each."""
        next_newer, next_older = next(newer, None), next(older, None)
        newer_is_due = True
        while next_newer is not None or next_older is not None:
            if len(self._newer) + len(self._older) == self._query.limit:
                break
            if next_newer is not None and (newer_is_due or next_older is None):
                if not self._take(next_newer, self._newer):
                    break
                next_newer = next(newer, None)
                newer_is_due = False
            elif next_older is not None:
                if not self._take(next_older, self._older):
                    break
                next_older = next(older, None)
                newer_is_due = True
        return next_newer, next_older

    def _take(self, entry: Entry, side: list[tuple[int, JsonObject]]) -> bool:
        query = self._query
        message = self._project(entry)
        size = query.size(message) + 1
        if size > self._room:
            if self._newer or self._older:
                return False
            message = cut_to_fit(message, query.max_bytes - 1, query.size)
            size = query.size(message) + 1
        self._room -= size
        side.append((entry.seq, message))
        return True

    def _shown(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        query = self._query
        for entry in entries:
            self._finder.note(entry)
            asked_for = isinstance(entry, MessageEntry) and entry.role in query.roles
            if asked_for or query.view == "entries":
                yield entry

    def _project(self, entry: Entry) -> JsonObject:
        if self._query.view == "entries" or not isinstance(entry, MessageEntry):
            return entry_as_json(entry)
        results = self._finder.results_for(entry)
        message = chat_message(entry, results, self._query.detail).as_json()
        if isinstance(entry, ModelInputEntry) and entry.attachments:
            message["attachments"] = attachments_of(entry, self._whole.before(entry.seq))
        return message


class _ResultFinder:
    """Results stand in a later line than their calls, perhaps beyond the page.

    It notes what the page's own walk meets anyway, and looks further ahead only
    for an output whose results were not among that, up to the end of its turn: or
    to where the conversation was forked or rolled back, which ended all turns.
    """

    def __init__(self, source: EntrySource, hidden: Ranges) -> None:
        self._source = source
        self._hidden = hidden
        self._forked_at = 0
        self._results: ResultsByCall = {}
        self._ended: set[str | None] = set()
        self._noted_through = 0
        self._ahead: Iterator[Entry] | None = None
        self._ahead_through = -1

    def note(self, entry: Entry) -> None:
        self._noted_through = max(self._noted_through, entry.seq)
        if isinstance(entry, ToolResultsEntry):
            self._results[entry.turn_id, entry.call] = entry
        elif isinstance(entry, FaultEntry) or (
            isinstance(entry, ModelOutputEntry) and entry.ends_turn
        ):
            self._ended.add(entry.turn_id)
        elif isinstance(entry, ForkedEntry):
            self._forked_at = max(self._forked_at, entry.seq)

    def results_for(self, entry: MessageEntry) -> ResultsByCall:
        if isinstance(entry, ModelOutputEntry) and entry.tool_calls and not entry.ends_turn:
            call = (entry.turn_id, entry.call)
            through = self._left_at(entry.seq)
            while call not in self._results and not self._is_over(entry):
                noted = max(self._noted_through, entry.seq)
                later = None if noted >= through else self._look_ahead(noted)
                if later is None:
                    break
                self.note(later)
        return self._results

    def _is_over(self, entry: Entry) -> bool:
        return entry.turn_id in self._ended or entry.seq < self._forked_at

    def _left_at(self, seq: int) -> float:
        """Where the next hidden range begins: no turn goes on beyond it."""
        place = bisect_right(self._hidden, seq, key=lambda range_: range_[0])
        return self._hidden[place][0] - 1 if place < len(self._hidden) else math.inf

    def _look_ahead(self, through: int) -> Entry | None:
        if self._ahead is None or self._ahead_through != through:
            self._ahead = self._source.after(through)
        later = next(self._ahead, None)
        if later is not None:
            self._ahead_through = later.seq
        return later
