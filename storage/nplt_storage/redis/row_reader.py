"""Reads rows and lists of conversations from Redis.

A sorted set per user holds the order of lists (`user_lists`). It is compared with the rows, and
corrected where they differ. One that moves in the list while it is read appears at its new place or
not at all.

Conversations in the earlier layout (keys without a hash tag) are converted when they are read.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace
from redis.exceptions import RedisError

from nplt_storage.codec import time_as_text
from nplt_storage.errors import ConversationHeld, ConversationNotFound
from nplt_storage.ids import is_session_id
from nplt_storage.redis import scripts
from nplt_storage.redis.record import StoreParts
from nplt_storage.redis.user_lists import place_as_bytes, read_place
from nplt_storage.rows import (
    ConversationRow,
    RowPage,
    RowQuery,
    cut_page,
    matches,
    needs_attention,
    page_of,
    place_of,
    read_cursor,
    row_from_lines,
)

_ROW_FIELDS: Final = ("row", "row_added", "accessed", "damaged")
_ROWS_AT_ONCE: Final = 200
_COUNTED_AT_ONCE: Final = 1000
_REPAIRS_MAX: Final = 3
"""The number of repairs of one part of a list while others write to it."""
FRESH: Final = timedelta(hours=1)
"""A list entry without a conversation is kept for this long, because the conversation may be about
to appear."""


class RowReader:
    """Blocking calls, for a worker thread; but for `touch`, which does not wait for Redis."""

    def __init__(self, parts: StoreParts, clock: Callable[[], datetime]) -> None:
        self._parts = parts
        self._clock = clock
        self._connection = parts.connection
        self._keyspace = parts.connection.keyspace
        self._lists = parts.lists
        self._accesses: dict[str, datetime] = {}
        """Last-access times that are being sent; readers in this process see them at once."""

    def row(self, session_id: str) -> ConversationRow | None:
        return self.read(session_id)[0] if is_session_id(session_id) else None

    def found(self, session_id: str) -> ConversationRow:
        """Raises `ConversationNotFound`."""
        row = self.row(session_id)
        if row is None:
            raise ConversationNotFound(session_id)
        return row

    def read(
        self, session_id: str, *more: str, place: str = ""
    ) -> tuple[ConversationRow | None, Sequence[bytes | None]]:
        """The row and further fields. A conversation in the older layout is converted first."""
        noted = self.noted_access(session_id)
        meta = self._keyspace.of(session_id, place).meta
        command = ("HMGET", meta, *_ROW_FIELDS, *more)
        found: Sequence[bytes | None] = self._connection.ask(*command)
        if found[0] is None and self.adopt(session_id, place):
            found = self._connection.ask(*command)
        return decode_row(found, noted), found[len(_ROW_FIELDS) :]

    def each(
        self, session_ids: Sequence[str]
    ) -> builtins.list[ConversationRow | RedisError | ConversationHeld | None]:
        """The rows of these conversations. There is a `RedisError` in place of one on a node that
        is away, and a `ConversationHeld` in place of one that an earlier version's server has."""
        noted = [self.noted_access(id_) for id_ in session_ids]
        keys = [self._keyspace.of(id_).meta for id_ in session_ids]
        found = self._connection.ask_each(keys, [("HMGET", key, *_ROW_FIELDS) for key in keys])
        rows: builtins.list[ConversationRow | RedisError | ConversationHeld | None] = []
        for session_id, fields, at in zip(session_ids, found, noted, strict=True):
            if isinstance(fields, RedisError):
                rows.append(fields)
                continue
            try:
                rows.append(decode_row(fields, at) or self.row(session_id))
            except ConversationHeld as held:
                rows.append(held)
        return rows

    def noted_access(self, session_id: str) -> datetime | None:
        """A last-access time that is being sent; it is forgotten once Redis has it."""
        return self._accesses.get(session_id)

    def touch(self, session_id: str, at: datetime) -> None:
        if is_session_id(session_id):
            self._accesses[session_id] = max(at, self._accesses.get(session_id, at))
            self._parts.sender.post(self.send_accesses)

    def send_accesses(self) -> None:
        for session_id, at in list(self._accesses.items()):
            try:
                keys = self._keyspace.of(session_id)
                self._connection.run(
                    scripts.TOUCH, keys, time_as_text(at), self._parts.ttl_milliseconds
                )
            finally:
                if self._accesses.get(session_id) == at:
                    del self._accesses[session_id]

    # What users have seen

    def seen(self, session_ids: Sequence[str]) -> Mapping[str, int]:
        asked = [("HGET", self._keyspace.of(id_).meta, "seen") for id_ in session_ids]
        marks = self._connection.ask_many(asked)
        found = zip(session_ids, marks, strict=True)
        return {id_: int(mark) for id_, mark in found if mark is not None}

    def mark_seen(self, session_id: str, seq: int, *, unread: bool = False) -> int:
        row = self.found(session_id)
        told = self._parts.announced(row, "seen")
        keys = self._keyspace.of(session_id)
        mark = self._connection.run(scripts.SEEN, keys, seq, int(unread), *told)
        if mark == b"gone":
            raise ConversationNotFound(session_id)
        if needs_attention(row, int(mark)):
            self._lists.add_attention([(row.user, session_id)])
        else:
            self._drop_attention(row.user, [session_id])
        return int(mark)

    def _in_need_of_attention(
        self, user: str, session_ids: Sequence[str]
    ) -> builtins.list[ConversationRow]:
        return [row for row, seen in self._marked(user, session_ids) if needs_attention(row, seen)]

    def _marked(
        self, user: str, session_ids: Sequence[str]
    ) -> Iterator[tuple[ConversationRow, int | None]]:
        """The user's rows among these, each with the mark of what the user has seen."""
        for start in range(0, len(session_ids), _ROWS_AT_ONCE):
            some = session_ids[start : start + _ROWS_AT_ONCE]
            noted = [self._accesses.get(id_) for id_ in some]
            asked = [("HMGET", self._keyspace.of(id_).meta, *_ROW_FIELDS, "seen") for id_ in some]
            found = self._connection.ask_many(asked)
            for fields, at in zip(found, noted, strict=True):
                row = decode_row(fields, at)
                seen = None if fields[-1] is None else int(fields[-1])
                if row is not None and row.user == user:
                    yield row, seen

    def _due(self, user: str) -> builtins.list[ConversationRow]:
        """The conversations with prompts for later. Others are removed from the user's set, and
        added again by the commit of a prompt that comes in the meantime."""
        self._lists.flush()
        key = self._keyspace.of_user("later", user)
        session_ids = [member.decode() for member in self._connection.ask("SMEMBERS", key)]
        rows = [row for row, _ in self._marked(user, session_ids) if row.due_at is not None]
        gone = set(session_ids) - {row.session_id for row in rows}
        if gone:
            self._connection.call("SREM", key, *gone)
        return rows

    def _attention(self, user: str) -> builtins.list[ConversationRow]:
        self._lists.flush()
        members = self._connection.ask("SMEMBERS", self._keyspace.of_user("attention", user))
        session_ids = [member.decode() for member in members]
        rows = self._in_need_of_attention(user, session_ids)
        in_need = {row.session_id for row in rows}
        self._drop_attention(user, [id_ for id_ in session_ids if id_ not in in_need])
        return rows

    def _drop_attention(self, user: str, session_ids: Sequence[str]) -> None:
        """Removes conversations at rest from the user's set. One that got a prompt in the meantime
        is added again."""
        if session_ids:
            self._connection.call("SREM", self._keyspace.of_user("attention", user), *session_ids)
            again = self._in_need_of_attention(user, session_ids)
            self._lists.add_attention((user, row.session_id) for row in again)

    def list(self, user: str, query: RowQuery) -> RowPage:
        if query.attention:
            return page_of(self._attention(user), query)
        if query.due:
            return page_of(self._due(user), query)
        wanted: builtins.list[ConversationRow] = []
        unreached: set[str] = set()
        for row in self.walk(user, query.cursor, at_first=query.limit + 1, unreached=unreached):
            if matches(row, query):
                wanted.append(row)
                if len(wanted) > query.limit:
                    break
        wanted.sort(key=place_of, reverse=True)  # one may have been met at an older place
        return replace(cut_page(wanted, query.limit), incomplete=bool(unreached))

    def count(self, user: str) -> int:
        self._lists.flush()
        places = self._connection.ask("ZRANGE", self._keyspace.of_user("user", user), 0, -1)
        ids = sorted({read_place(place)[1] for place in places})
        there = 0
        for start in range(0, len(ids), _COUNTED_AT_ONCE):
            some = ids[start : start + _COUNTED_AT_ONCE]
            keys = [self._keyspace.of(id_).meta for id_ in some]
            asked = [("HGET", key, "user") for key in keys]
            for id_, owner in zip(some, self._connection.ask_each(keys, asked), strict=True):
                if isinstance(owner, RedisError):
                    there += 1  # its node is away
                elif owner is None:
                    with suppress(ConversationHeld):
                        there += self.adopt(id_)
                else:
                    there += owner.decode() == user
        return there

    def walk(
        self,
        user: str,
        cursor: str | None = None,
        *,
        at_first: int = _ROWS_AT_ONCE,
        unreached: set[str],
    ) -> Iterator[ConversationRow]:
        """The conversations on nodes that are away are left out, and added to `unreached`."""
        self._lists.flush()
        count = min(at_first, _ROWS_AT_ONCE)
        below = None if cursor is None else place_as_bytes(read_cursor(cursor))
        met: set[str] = set()
        repairs_left = _REPAIRS_MAX
        while True:
            places = self._connection.ask(
                *("ZREVRANGEBYLEX", self._keyspace.of_user("user", user)),
                *("+" if below is None else b"(" + below, "-", "LIMIT", 0, count),
            )
            there, moved = self._put_right(user, places, unreached)
            is_read_again = bool(moved) and repairs_left > 0
            # One that belongs further up was missed, which only matters to who began at the top.
            wanted = [
                row
                for place, row in moved
                if cursor is None and below is not None and place > below
            ]
            for row in wanted if is_read_again else [*wanted, *there]:
                if row.session_id not in met:
                    met.add(row.session_id)
                    yield row
            if is_read_again:
                repairs_left -= 1
            elif len(places) < count:
                return
            else:
                below, count, repairs_left = places[-1], _ROWS_AT_ONCE, _REPAIRS_MAX

    def _put_right(
        self, user: str, places: Sequence[bytes], unreached: set[str]
    ) -> tuple[Sequence[ConversationRow], Sequence[tuple[bytes, ConversationRow]]]:
        """The rows whose place in the list is right, and those that had to be moved, with their new
        places."""
        there: builtins.list[ConversationRow] = []
        moved: builtins.list[tuple[bytes, ConversationRow]] = []
        rows = self.each([read_place(place)[1] for place in places])
        for listed, row in zip(places, rows, strict=True):
            updated_at, session_id = read_place(listed)
            if isinstance(row, RedisError):
                unreached.add(session_id)
                continue
            if isinstance(row, ConversationHeld):
                continue
            if row is None or row.user != user:
                if updated_at < time_as_text(self._clock() - FRESH):
                    self._connection.call("ZREM", self._keyspace.of_user("user", user), listed)
                continue
            place = place_as_bytes(place_of(row))
            if place == listed:
                there.append(row)
            else:
                self._lists.replace(user, [listed], place)
                moved.append((place, row))
        return there, moved

    # The earlier layout: the same keys without a hash tag, blobs and the checkpoint apart

    def adopt(self, session_id: str, place: str = "") -> bool:
        """Converts a conversation from the older layout; returns whether there was one."""
        if self._connection.is_cluster:
            return False  # which never accepted those keys
        prefix = f"{self._keyspace.prefix}{place}{session_id}"
        if not self._connection.ask("EXISTS", f"{prefix}:meta"):
            return False
        parts = ("meta", "log", "live", "prompts", "blobs", "checkpoint", "owner")
        blobs = [blob.decode() for blob in self._connection.ask("SMEMBERS", f"{prefix}:blobs")]
        before = [f"{prefix}:{part}" for part in parts] + [f"{prefix}:blob:{id_}" for id_ in blobs]
        keys = [*self._keyspace.of(session_id, place), *before]
        reply = self._connection.run(scripts.ADOPT, keys, *blobs)
        if reply == b"held":
            raise ConversationHeld(session_id)
        return True  # by us, or by another server just now


def decode_row(found: Sequence[bytes | None], noted: datetime | None) -> ConversationRow | None:
    """Decodes `_ROW_FIELDS`; `noted` is an access time that is being sent."""
    data, added, accessed, damaged = found[:4]
    if data is None:
        return None
    row = row_from_lines(data, added)
    times = [row.last_accessed]
    if accessed is not None:
        times.append(datetime.fromisoformat(accessed.decode()))
    if noted is not None:
        times.append(noted)
    return replace(row, last_accessed=max(times), damaged=damaged is not None)
