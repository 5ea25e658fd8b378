"""Rows and lists: a sorted set per user holds the order, the rows are read beside it.

A conversation that expired, or that Redis evicted, is still in its user's list;
it is left out and taken from the list by whoever meets it. One that moves while
someone reads is met at its new place or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

from nplt_storage.conversation.row_json import row_from_bytes
from nplt_storage.conversation.row_lists import (
    RowPage,
    RowQuery,
    cut_page,
    matches,
    place_of,
    read_cursor,
)
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.redis_streams import scripts
from nplt_storage.redis_streams.connection import RedisConnection
from nplt_storage.redis_streams.keys import Keyspace, place_as_bytes, session_id_in
from nplt_storage.redis_streams.sender import Touches

_ROWS_AT_ONCE: Final = 200
_COUNTED_AT_ONCE: Final = 1000


class Lists:
    """Blocking: used inside a worker thread."""

    def __init__(self, connection: RedisConnection, keyspace: Keyspace, touches: Touches) -> None:
        self._connection = connection
        self._keyspace = keyspace
        self._touches = touches

    def row(self, session_id: str) -> ConversationRow | None:
        found = self._connection.ask(
            "HMGET", self._keyspace.of(session_id).meta, "row", "accessed", "damaged"
        )
        return self.decode(session_id, found)

    def page(self, user: str, query: RowQuery) -> RowPage:
        wanted: list[ConversationRow] = []
        for row in self._rows(user, query.cursor, at_first=query.limit + 1):
            if matches(row, query):
                wanted.append(row)
                if len(wanted) > query.limit:
                    break
        return cut_page(wanted, query.limit)

    def count(self, user: str) -> int:
        places = self._connection.ask("ZRANGE", self._keyspace.list_of(user), 0, -1)
        ids = [session_id_in(place) for place in places]
        there = 0
        for start in range(0, len(ids), _COUNTED_AT_ONCE):
            some = ids[start : start + _COUNTED_AT_ONCE]
            there += self._connection.ask("EXISTS", *(self._keyspace.of(id_).meta for id_ in some))
        return there

    def all_of(self, user: str) -> Iterator[ConversationRow]:
        return self._rows(user, None, at_first=_ROWS_AT_ONCE)

    def decode(self, session_id: str, found: list[bytes | None]) -> ConversationRow | None:
        """From the fields row, accessed, damaged."""
        data, accessed, damaged = found[:3]
        if data is None:
            return None
        row = row_from_bytes(data)
        times = [row.last_accessed]
        if accessed is not None:
            times.append(datetime.fromisoformat(accessed.decode()))
        if noted := self._touches.noted(session_id):
            times.append(noted)
        return replace(row, last_accessed=max(times), damaged=damaged is not None)

    def _rows(self, user: str, cursor: str | None, *, at_first: int) -> Iterator[ConversationRow]:
        count = min(at_first, _ROWS_AT_ONCE)
        below = "+" if cursor is None else b"(" + place_as_bytes(read_cursor(cursor))
        while True:
            places = self._connection.ask(
                *("ZREVRANGEBYLEX", self._keyspace.list_of(user), below, "-"),
                *("LIMIT", 0, count),
            )
            for place, row in zip(places, self._rows_at(places), strict=True):
                if row is not None and place_as_bytes(place_of(row)) == place:
                    yield row
                elif row is None:
                    self._forget(user, place)
            if len(places) < count:
                return
            below, count = b"(" + places[-1], _ROWS_AT_ONCE

    def _rows_at(self, places: list[bytes]) -> list[ConversationRow | None]:
        ids = [session_id_in(place) for place in places]
        found = self._connection.ask_many(
            [("HMGET", self._keyspace.of(id_).meta, "row", "accessed", "damaged") for id_ in ids]
        )
        return [self.decode(id_, fields) for id_, fields in zip(ids, found, strict=True)]

    def _forget(self, user: str, place: bytes) -> None:
        keys = self._keyspace.of(session_id_in(place))
        self._connection.run(
            scripts.FORGET_PLACE,
            [keys.base, self._keyspace.prefix, self._keyspace.list_of(user)],
            place,
        )
