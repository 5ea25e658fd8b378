"""Searching what was said: what is asked, what is found, in which order.

The same everywhere, whatever finds the candidates (`words` says what a word is,
`snippets` what matches). All words of a query must stand in a message, those of
a script without blanks side by side; the last word may be a beginning. Messages
that were rolled back are not found. A cursor is the place of a page's last hit,
newest first, so that pages can be walked while more is being said.
"""

from __future__ import annotations

import base64
import binascii
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import orjson

from nplt_storage.conversation.row_lists import BadCursor
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.conversation.snippets import Wanted, matches, query_words, snippet
from nplt_storage.facts.entries import Entry, ModelInputEntry, ModelOutputEntry

SEARCHED_CHARACTERS_MAX: Final = 2**20
"""Of a message: what is said after them is not found."""

Place: TypeAlias = tuple[int, str, int]
"""When (see `moment`), in which conversation, which entry."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT_MAX = 2**55 - 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    text: str
    limit: int = 20
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    session_id: str
    name: str
    seq: int
    role: str
    snippet: str
    timestamp: datetime


def place_of_hit(hit: SearchHit) -> Place:
    return (moment(hit.timestamp), hit.session_id, hit.seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """Newest first."""

    hits: tuple[SearchHit, ...]
    next_cursor: str | None = None


def searched_text(entry: Entry) -> str:
    """What of an entry is searched; empty where nothing is."""
    if isinstance(entry, ModelInputEntry | ModelOutputEntry):
        return entry.content[:SEARCHED_CHARACTERS_MAX]
    return ""


def stands(row: ConversationRow, seq: int) -> bool:
    return not any(first <= seq <= last for first, last in row.hidden)


def moment(timestamp: datetime) -> int:
    """In microseconds, and small enough (the years 829 to 3111) that eight more bits
    can tell apart what was said in the same one."""
    return max(-_MOMENT_MAX, min(microseconds(timestamp), _MOMENT_MAX))


def microseconds(timestamp: datetime) -> int:
    return (timestamp - _EPOCH) // timedelta(microseconds=1)


def from_microseconds(count: int) -> datetime:
    return _EPOCH + timedelta(microseconds=count)


def write_search_cursor(place: Place) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(place)).decode()


def read_search_cursor(cursor: str) -> Place:
    try:
        at, session_id, seq = orjson.loads(base64.urlsafe_b64decode(cursor))
        place = int(at), str(session_id), int(seq)
    except (binascii.Error, ValueError, TypeError, OverflowError):
        raise BadCursor("a cursor is the next_cursor of this search") from None
    if abs(place[0]) > _MOMENT_MAX:
        raise BadCursor("a cursor is the next_cursor of this search")
    return place


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage:
    place: Place
    name: str
    role: str
    timestamp: datetime
    text: str


def cut_search_page(found: Sequence[FoundMessage], wanted: Wanted, limit: int) -> SearchPage:
    """From messages newest first, one more than fits if there is more."""
    page = found[:limit]
    more = len(found) > limit and page
    return SearchPage(
        hits=tuple(_hit(message, wanted) for message in page),
        next_cursor=write_search_cursor(page[-1].place) if more else None,
    )


def _hit(message: FoundMessage, wanted: Wanted) -> SearchHit:
    _, session_id, seq = message.place
    return SearchHit(
        session_id=session_id,
        name=message.name,
        seq=seq,
        role=message.role,
        snippet=snippet(message.text, wanted),
        timestamp=message.timestamp,
    )


class Search:
    """The slow way, for stores without an index: every message is looked at once, in
    any order, and no more than a page of them is kept."""

    def __init__(self, query: SearchQuery) -> None:
        self._wanted = query_words(query.text)
        self._before = None if query.cursor is None else read_search_cursor(query.cursor)
        self._limit = query.limit
        # The newest so far, the oldest of them first; one more than fits if there is more.
        self._newest: list[tuple[Place, FoundMessage]] = []

    def look_at(self, row: ConversationRow, entry: Entry) -> None:
        text = searched_text(entry)
        place = (moment(entry.timestamp), row.session_id, entry.seq)
        if not text or not self._may_be_shown(place) or not stands(row, entry.seq):
            return
        if not matches(self._wanted, text):
            return
        found = FoundMessage(
            place=place, name=row.name, role=entry.role, timestamp=entry.timestamp, text=text
        )
        heapq.heappush(self._newest, (place, found))
        if len(self._newest) > self._limit + 1:
            heapq.heappop(self._newest)

    def page(self) -> SearchPage:
        found = [message for _, message in sorted(self._newest, reverse=True)]
        return cut_search_page(found, self._wanted, self._limit)

    def _may_be_shown(self, place: Place) -> bool:
        if self._before is not None and place >= self._before:
            return False
        return len(self._newest) <= self._limit or place > self._newest[0][0]


def search_entries(said: Iterable[tuple[ConversationRow, Entry]], query: SearchQuery) -> SearchPage:
    """All entries of a user's conversations, in any order."""
    search = Search(query)
    for row, entry in said:
        search.look_at(row, entry)
    return search.page()
