"""Full text in the index; the newest message is found first, without sorting.

A message's number is its time in microseconds with eight more bits for messages of the
same microsecond, so the index, which is ordered by number, is ordered by time. Within
one moment the order is by conversation and entry (see `search.SearchPlace`). If a
moment is full, the next one is used.

The full-text index holds words and no text. The text is stored next to it: to show a
snippet, and because its words must be named to delete them. Each message is also
indexed under a word for its user, which no one can type. The words that are deleted must be
those that were inserted: text and user are stored in the same row, and an index made with
other rules for words, or by a Python with other Unicode tables, is built again.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from itertools import groupby
from time import monotonic
from typing import TypeAlias

from msgspec.structs import replace

from nplt_storage.entries import Entry
from nplt_storage.index.database import first_value
from nplt_storage.rows import ConversationRow
from nplt_storage.search import (
    FoundMessage,
    SearchHit,
    SearchPage,
    SearchPlace,
    SearchQuery,
    Wanted,
    cut_search_page,
    from_microseconds,
    hit_without_snippet,
    is_visible,
    microseconds,
    moment,
    query_words,
    ranked_page,
    read_search_cursor,
    searched_text,
    took_too_long,
    words,
)

_SLOT_BITS = 8
_SLOTS = 2**_SLOT_BITS - 1
_LAST_ID = 2**63 - 1
_FULL_MAX = 10_000
_STEPS_BETWEEN = 1_000
_PACKED_FROM = 2048
"""The number of characters from which packing a text saves more room than it costs time."""
_LEVELS_ARE_LIMITED_SINCE = (3, 41)
_LEVELS_MAX = 64
"""The limit that later versions of SQLite have."""
_STRUCTURE_ID = 10
"""The id of FTS5's record of its segments, in its own table."""

_SEARCH = (
    "SELECT id, conversation, seq, at, role FROM said CROSS JOIN messages ON id = said.rowid "
    "WHERE said MATCH ? AND said.rowid <= ? ORDER BY said.rowid DESC"
)
_BEST = (
    "SELECT id, conversation, seq, at, role, bm25(said) FROM said "
    "CROSS JOIN messages ON id = said.rowid WHERE said MATCH ? "
    "ORDER BY conversation = ? DESC, bm25(said), said.rowid DESC"
)

RowOf: TypeAlias = Callable[[int], ConversationRow | None]
"""Finds the row of a conversation by its key."""
_Numbered: TypeAlias = tuple[SearchPlace, int, SearchHit]


class TextIndex:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._full_until: dict[int, int] = {}

    def add(self, conversation: int, user: int, entries: Iterable[Entry]) -> None:
        for entry in entries:
            text = searched_text(entry)
            indexed = words(text)
            if not indexed:
                continue
            number = self._free_number(moment(entry.timestamp))
            packed = zlib.compress(text.encode(), 1) if len(text) >= _PACKED_FROM else text
            sent_at = microseconds(entry.timestamp)
            values = (number, conversation, entry.seq, sent_at, user, entry.role, packed)
            # It may be here already: added when it was stored, and found again by a survey.
            added = self._connection.execute(
                "INSERT OR IGNORE INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)", values
            ).rowcount
            if added:
                self._connection.execute(
                    "INSERT INTO said (rowid, words) VALUES (?, ?)",
                    (number, _indexed(user, indexed)),
                )

    def _free_number(self, at: int) -> int:
        """The first free number of a moment. Thousands of messages may have one time (an import
        without times), so the search continues where the last one found room."""
        begin, at = at, self._full_until.get(at, at)
        while True:
            first = at << _SLOT_BITS
            question = "SELECT max(id) FROM messages WHERE id BETWEEN ? AND ?"
            last: int | None = first_value(self._connection, question, first, first | _SLOTS)
            if last is None:
                return first
            if last < first | _SLOTS:
                return last + 1
            at += 1
            if len(self._full_until) >= _FULL_MAX:
                self._full_until.clear()
            self._full_until[begin] = at

    def remove(self, which: str, *values: int) -> int:
        """Removes messages, and returns their number."""
        question = f"SELECT id, user, text FROM messages WHERE {which}"
        found = self._connection.execute(question, values).fetchall()
        for number, user, packed in found:
            indexed = _indexed(user, words(_unpacked(packed)))
            self._connection.execute(
                "INSERT INTO said (said, rowid, words) VALUES ('delete', ?, ?)", (number, indexed)
            )
            self._connection.execute("DELETE FROM messages WHERE id = ?", (number,))
        return len(found)

    def page(
        self, user: int, query: SearchQuery, first_in: int | None, row_of: RowOf
    ) -> SearchPage:
        """`first_in` is the key of `query.first_in`, if that is known. Raises `BadCursor`, and
        `StorageUnavailable` if it takes too long."""
        before = None if query.cursor is None else read_search_cursor(query.cursor)
        wanted = query_words(query.text)
        if not wanted:
            return SearchPage(hits=())
        if query.ranked:
            return ranked_page(self._best(user, wanted, first_in, query, row_of), wanted)
        found = self._newest(user, wanted, before, query, row_of)
        return cut_search_page(found, wanted, query.limit)

    def _newest(
        self,
        user: int,
        wanted: Wanted,
        before: SearchPlace | None,
        query: SearchQuery,
        row_of: RowOf,
    ) -> list[FoundMessage]:
        """The newest messages before that place, one more than the limit if there are more."""
        last = _LAST_ID if before is None else before[0] << _SLOT_BITS | _SLOTS
        found: list[_Numbered] = []
        parameters = (_expression(user, wanted), last)
        with self._in_time(query), closing(self._connection.execute(_SEARCH, parameters)) as rows:
            for message in _in_order(rows, row_of):
                if before is None or message[0] < before:
                    found.append(message)
                    if len(found) > query.limit:
                        break
        return self._with_texts(found)

    def _best(
        self,
        user: int,
        wanted: Wanted,
        first: int | None,
        query: SearchQuery,
        row_of: RowOf,
    ) -> list[FoundMessage]:
        """The best matches by SQLite's bm25, those of the conversation `first` before all
        others."""
        found: list[_Numbered] = []
        row_of = cache(row_of)
        parameters = (_expression(user, wanted, any_word=query.any_word), first)
        with self._in_time(query), closing(self._connection.execute(_BEST, parameters)) as rows:
            for number, conversation, seq, at, role, rank in rows:
                row = row_of(conversation)
                if row is not None and is_visible(row, seq):
                    hit = hit_without_snippet(row, seq, role, from_microseconds(at))
                    place = (number >> _SLOT_BITS, row.session_id, seq)
                    found.append((place, number, replace(hit, score=-rank)))
                    if len(found) >= query.limit:
                        break
        return self._with_texts(found)

    @contextmanager
    def _in_time(self, query: SearchQuery) -> Iterator[None]:
        until = monotonic() + query.seconds_max
        self._connection.set_progress_handler(lambda: monotonic() > until, _STEPS_BETWEEN)
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise took_too_long(query) from None
            raise
        finally:
            self._connection.set_progress_handler(None, 0)

    def _with_texts(self, found: Iterable[_Numbered]) -> list[FoundMessage]:
        question = "SELECT text FROM messages WHERE id = ?"
        return [
            (place, hit, _unpacked(first_value(self._connection, question, number)))
            for place, number, hit in found
        ]

    def merge(self, pages: int, *, begin: bool) -> bool:
        """Merges parts of the index, so that removed text disappears; writes about that many pages.
        Returns whether there is more to do."""
        before = self._connection.total_changes
        amount = -pages if begin else pages
        self._connection.execute("INSERT INTO said (said, rank) VALUES ('merge', ?)", (amount,))
        # As SQLite's manual says, one change is the command itself.
        has_more = self._connection.total_changes - before >= 2
        if sqlite3.sqlite_version_info < _LEVELS_ARE_LIMITED_SINCE:
            self._limit_levels()
        return has_more

    def _limit_levels(self) -> None:
        """Each merge of the whole index adds up to two levels, most of them empty. SQLite before
        3.41 goes on until there are more than 2,000, and then takes the index for malformed. FTS5
        reads the record again after a merge, so it sees what is written here."""
        question = "SELECT block FROM said_data WHERE id = ?"
        record = first_value(self._connection, question, _STRUCTURE_ID)
        shorter = without_empty_levels(record)
        if shorter != record:
            self._connection.execute(
                "UPDATE said_data SET block = ? WHERE id = ?", (shorter, _STRUCTURE_ID)
            )


def _in_order(
    candidates: Iterable[tuple[int, int, int, int, str]], row_of: RowOf
) -> Iterator[tuple[SearchPlace, int, SearchHit]]:
    """The place, number and hit of the active messages; within a moment they are ordered by
    conversation and entry."""
    row_of = cache(row_of)
    for at, of_one_moment in groupby(candidates, key=lambda found: found[0] >> _SLOT_BITS):
        messages: list[tuple[SearchPlace, int, SearchHit]] = []
        for number, conversation, seq, sent_at, role in of_one_moment:
            row = row_of(conversation)
            if row is not None and is_visible(row, seq):
                hit = hit_without_snippet(row, seq, role, from_microseconds(sent_at))
                messages.append(((at, row.session_id, seq), number, hit))
        yield from sorted(messages, reverse=True)


def without_empty_levels(record: bytes) -> bytes:
    """FTS5's record of its segments, without empty levels if it has many. After a cookie of four
    bytes it consists of integers: the numbers of levels, segments and writes; for each level how
    many of its segments are being merged and how many it has; for each of these its id, first page
    and last page."""
    levels, segments, writes, *rest = _integers(record[4:])
    if levels <= _LEVELS_MAX:
        return record
    kept: list[int] = []
    while rest:
        end = 2 + 3 * rest[1]
        if rest[1]:
            kept += rest[:end]
        else:
            levels -= 1
        rest = rest[end:]
    return record[:4] + _as_bytes([levels, segments, writes, *kept])


def _integers(data: bytes) -> Iterator[int]:
    """SQLite's integers of variable length, as long as they have less than 57 bits: seven bits in
    each byte, the highest first, and a mark in all but the last."""
    number = 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            yield number
            number = 0


def _as_bytes(integers: Iterable[int]) -> bytes:
    data = bytearray()
    for number in integers:
        septets = [number & 0x7F]
        while number := number >> 7:
            septets.append(number & 0x7F | 0x80)
        data += bytes(reversed(septets))
    return bytes(data)


def _indexed(user: int, indexed: list[str]) -> str:
    """The words, and the user's word, which contains a character that no other word has: see
    `words`."""
    return f"\ue000{user} {' '.join(indexed)}"


def _expression(user: int, wanted: Wanted, *, any_word: bool = False) -> str:
    parts = [f'"{one.strip()}"' if one.endswith(" ") else f'"{one.strip()}" *' for one in wanted]
    matched = (" OR " if any_word else " AND ").join(parts)
    return f'"\ue000{user}" AND ({matched})'


def _unpacked(packed: str | bytes) -> str:
    if isinstance(packed, str):
        return packed
    try:
        return zlib.decompress(packed).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise sqlite3.DatabaseError(f"a message can't be read: {error}") from error
