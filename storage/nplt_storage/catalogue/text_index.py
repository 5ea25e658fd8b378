"""What was said, by words; the newest is found first, without sorting.

A message's number is the moment it was said, in microseconds, with eight more
bits for what was said in the same one; so the index, which goes by number,
goes by time. Of one moment, what comes first is decided by conversation and
entry (see `searching.Place`), whatever the order in which it was taken in. If a
moment is full, the next one is taken.

The index holds words and no text. The text is kept beside it: to show a piece
of it, and because its words must be named to take them out again. With every
message stands a word for its user, which nobody can type.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import groupby

from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.conversation.searching import (
    FoundMessage,
    Place,
    from_microseconds,
    microseconds,
    moment,
    searched_text,
    stands,
)
from nplt_storage.conversation.snippets import Wanted
from nplt_storage.conversation.words import words
from nplt_storage.facts.entries import Entry

_SLOT_BITS = 8
_SLOTS = 2**_SLOT_BITS - 1
_LAST_ID = 2**63 - 1
_FULL_MAX = 10_000
_PACKED_FROM = 2048
"""Characters: packing a shorter text costs more time than it saves room."""

_SEARCH = (
    "SELECT id, conversation, seq, at, role FROM said CROSS JOIN messages ON id = said.rowid "
    "WHERE said MATCH ? AND said.rowid <= ? ORDER BY said.rowid DESC"
)


class TextIndex:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._full_until: dict[int, int] = {}

    def add(self, conversation: int, user: int, entries: Iterable[Entry]) -> None:
        for entry in entries:
            text = searched_text(entry)
            said = words(text)
            if said:
                self._add(conversation, user, entry, text, said)

    def _add(self, conversation: int, user: int, entry: Entry, text: str, said: list[str]) -> None:
        number = self._free_number(moment(entry.timestamp))
        packed = zlib.compress(text.encode(), 1) if len(text) >= _PACKED_FROM else text
        values = (number, conversation, entry.seq, microseconds(entry.timestamp), entry.role)
        # It may be here already: noted when it was said, and met again by a survey.
        added = self._connection.execute(
            "INSERT OR IGNORE INTO messages VALUES (?, ?, ?, ?, ?, ?)", (*values, packed)
        ).rowcount
        if added:
            self._connection.execute(
                "INSERT INTO said (rowid, words) VALUES (?, ?)", (number, _indexed(user, said))
            )

    def _free_number(self, at: int) -> int:
        """Thousands of messages may have one time (an import without any): from where
        the last of them found room, not from the beginning again."""
        begin, at = at, self._full_until.get(at, at)
        while True:
            first = at << _SLOT_BITS
            last: int | None = self._connection.execute(
                "SELECT max(id) FROM messages WHERE id BETWEEN ? AND ?", (first, first | _SLOTS)
            ).fetchone()[0]
            if last is None:
                return first
            if last < first | _SLOTS:
                return last + 1
            at += 1
            if len(self._full_until) >= _FULL_MAX:
                self._full_until.clear()
            self._full_until[begin] = at

    def remove(self, conversation: int, user: int, seq: int) -> None:
        question = "SELECT id, text FROM messages WHERE conversation = ? AND seq = ?"
        self._remove(user, self._connection.execute(question, (conversation, seq)).fetchall())

    def remove_some(self, conversation: int, user: int, count: int) -> int:
        """How many there were to remove, at most `count`."""
        question = "SELECT id, text FROM messages WHERE conversation = ? LIMIT ?"
        found = self._connection.execute(question, (conversation, count)).fetchall()
        self._remove(user, found)
        return len(found)

    def _remove(self, user: int, found: list[tuple[int, str | bytes]]) -> None:
        for number, packed in found:
            said = _indexed(user, words(_unpacked(packed)))
            self._connection.execute(
                "INSERT INTO said (said, rowid, words) VALUES ('delete', ?, ?)", (number, said)
            )
            self._connection.execute("DELETE FROM messages WHERE id = ?", (number,))

    def search(
        self,
        user: int,
        wanted: Wanted,
        *,
        before: Place | None,
        limit: int,
        row_of: Callable[[int], ConversationRow | None],
    ) -> list[FoundMessage]:
        """Newest first, one more than `limit` if there is more."""
        last = _LAST_ID if before is None else before[0] << _SLOT_BITS | _SLOTS
        candidates = self._connection.execute(_SEARCH, (_expression(user, wanted), last))
        found: list[tuple[int, FoundMessage]] = []
        for number, message in _in_order(candidates, row_of):
            if before is None or message.place < before:
                found.append((number, message))
                if len(found) > limit:
                    break
        candidates.close()
        return [replace(message, text=self._text(number)) for number, message in found]

    def _text(self, number: int) -> str:
        question = "SELECT text FROM messages WHERE id = ?"
        return _unpacked(self._connection.execute(question, (number,)).fetchone()[0])

    def merge(self, pages: int, *, begin: bool) -> bool:
        """Brings the index closer to one piece, in which nothing removed is left; writes
        about so many pages. Whether there is more to do."""
        before = self._connection.total_changes
        amount = -pages if begin else pages
        self._connection.execute("INSERT INTO said (said, rank) VALUES ('merge', ?)", (amount,))
        # As SQLite's manual has it: one change is the command itself.
        return self._connection.total_changes - before >= 2


def _in_order(
    candidates: Iterable[tuple[int, int, int, int, str]],
    row_of: Callable[[int], ConversationRow | None],
) -> Iterator[tuple[int, FoundMessage]]:
    """Those that stand, without their texts; within a moment by conversation and entry."""
    row_of = cache(row_of)
    for at, of_one_moment in groupby(candidates, key=lambda found: found[0] >> _SLOT_BITS):
        messages: list[tuple[Place, int, FoundMessage]] = []
        for number, conversation, seq, said_at, role in of_one_moment:
            row = row_of(conversation)
            if row is not None and stands(row, seq):
                place = (at, row.session_id, seq)
                message = FoundMessage(
                    place=place,
                    name=row.name,
                    role=role,
                    timestamp=from_microseconds(said_at),
                    text="",
                )
                messages.append((place, number, message))
        for _, number, message in sorted(messages, reverse=True):
            yield number, message


def _user_word(user: int) -> str:
    """Of a character that is in no word: see `words`."""
    return f"\ue000{user}"


def _indexed(user: int, said: list[str]) -> str:
    return f"{_user_word(user)} {' '.join(said)}"


def _expression(user: int, wanted: Wanted) -> str:
    parts = [f'"{one.strip()}"' if one.endswith(" ") else f'"{one.strip()}" *' for one in wanted]
    return " ".join([f'"{_user_word(user)}"', *parts])


def _unpacked(packed: str | bytes) -> str:
    if isinstance(packed, str):
        return packed
    try:
        return zlib.decompress(packed).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise sqlite3.DatabaseError(f"a message can't be read: {error}") from error
