"""The sorted list of each user's conversations, and the sets of those that need attention or have
prompts for later.

The members of the list sort like the pages of a list: pinned conversations first, then by time. The
sets are unsorted. They may hold conversations that need no attention any more, or whose prompts
have run: their readers look at the rows. A conversation is added to them before its prompt is
stored, or in the same step, and once more afterwards, so that neither a crash nor a reader leaves
it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Event, Lock
from typing import Final, Literal, TypeAlias

from redis.exceptions import RedisError

from nplt_storage.codec import time_as_text
from nplt_storage.redis.connection import Argument, RedisConnection, Sender
from nplt_storage.rows import ConversationRow, RowPlace, is_busy, place_of

_Command: TypeAlias = tuple[Argument, ...]
_TOGETHER_SECONDS: Final = 0.02
"""Moves wait so long for others, and are written with them."""


def place_as_bytes(place: RowPlace) -> bytes:
    """Encodes a place so that the bytes sort as places do, and Redis can keep a user's list in
    order."""
    pinned, updated_at, session_id = place
    return f"{int(pinned)}{time_as_text(updated_at)}{session_id}".encode()


def read_place(place: bytes) -> tuple[str, str]:
    """The time, as text, and the session id."""
    return place[1:33].decode(), place[33:].decode()


class UserLists(Sender):
    """Keeps the sorted lists of users' conversations. They are in other slots of a cluster than the
    conversations, so they are written after a commit, and readers correct what is out of date. It
    is a sender of its own, because its node may be down while others answer."""

    def __init__(self, connection: RedisConnection) -> None:
        super().__init__()
        self._connection = connection
        self._waiting: dict[str, tuple[str, bytes, set[bytes]]] = {}
        """The user, the new place and the earlier places, by session id."""
        self._attention: set[tuple[str, str]] = set()
        """The users and ids of conversations to be added to the sets."""
        self._later: set[tuple[str, str]] = set()
        """The users and ids of conversations with prompts for later."""
        self._is_posted = False
        self._lock = Lock()
        self._is_wanted = Event()
        """Whether somebody waits for the moves to be written."""

    def flush(self) -> None:
        self._is_wanted.set()
        super().flush()

    def close(self) -> None:
        self._is_wanted.set()
        super().close()

    def add(self, row: ConversationRow) -> None:
        key = self._connection.keyspace.of_user("user", row.user)
        self._connection.call("ZADD", key, 0, place_as_bytes(place_of(row)))
        if row.due_at is not None:
            self.add_later([(row.user, row.session_id)])
        if is_busy(row) or row.answers or row.failed_seq:
            self.add_attention([(row.user, row.session_id)])

    def remove(self, row: ConversationRow) -> None:
        """Removes the conversation, after all moves before. Blocks."""
        self.flush()
        key = self._connection.keyspace.of_user("user", row.user)
        attention = self._connection.keyspace.of_user("attention", row.user)
        later = self._connection.keyspace.of_user("later", row.user)
        self._connection.call_many(
            (
                ("ZREM", key, place_as_bytes(place_of(row))),
                ("SREM", attention, row.session_id),
                ("SREM", later, row.session_id),
            )
        )

    def moved(self, before: ConversationRow, after: ConversationRow) -> None:
        """Queues the move. Readers of this store wait until it has been written."""
        place, gone = place_as_bytes(place_of(after)), {place_as_bytes(place_of(before))}
        with self._lock:
            _, _, earlier = self._waiting.get(after.session_id, ("", b"", set()))
            self._waiting[after.session_id] = (after.user, place, earlier | gone)
            if is_busy(after) or _ending(after) != _ending(before):
                self._attention.add((after.user, after.session_id))
            if after.later != before.later and after.due_at is not None:
                self._later.add((after.user, after.session_id))
            is_posted, self._is_posted = self._is_posted, True
        if not is_posted:
            self.post(self._send)

    def replace(self, user: str, gone: Iterable[bytes], place: bytes) -> None:
        """Blocks."""
        self._connection.call_many(self._move(user, gone, place))

    def add_attention(self, conversations: Iterable[tuple[str, str]]) -> None:
        """Blocks."""
        self._connection.call_many(self._adding("attention", conversations))

    def note_busy(self, row: ConversationRow) -> tuple[str, ...]:
        """Adds a conversation to the set of those that need attention, before its prompt is stored.
        Returns the key of the set if the script that stores the prompt is to do it, which a cluster
        does not allow. Blocks."""
        if self._connection.is_cluster:
            self.add_attention([(row.user, row.session_id)])
            return ()
        return (self._connection.keyspace.of_user("attention", row.user),)

    def add_later(self, conversations: Iterable[tuple[str, str]]) -> None:
        """Blocks."""
        self._connection.call_many(self._adding("later", conversations))

    def _move(self, user: str, gone: Iterable[bytes], place: bytes) -> list[_Command]:
        """Adds the new place before removing the old ones, so that the conversation is never
        missing."""
        key = self._connection.keyspace.of_user("user", user)
        return [("ZADD", key, 0, place), *(("ZREM", key, each) for each in gone if each != place)]

    def _adding(
        self, what: Literal["attention", "later"], conversations: Iterable[tuple[str, str]]
    ) -> list[_Command]:
        of_user = self._connection.keyspace.of_user
        return [("SADD", of_user(what, user), session_id) for user, session_id in conversations]

    def _send(self) -> None:
        """Writes everything that waits, in one pipeline for each node. If one fails, it is written
        with the next move, unless a reader corrects it first."""
        self._is_wanted.wait(_TOGETHER_SECONDS)
        self._is_wanted.clear()
        with self._lock:
            self._is_posted = False
            attention, self._attention = self._attention, set()
            later, self._later = self._later, set()
            moves, self._waiting = self._waiting, {}
        commands = self._adding("attention", attention) + self._adding("later", later)
        for user, place, gone in moves.values():
            commands += self._move(user, gone, place)
        try:
            keys = [str(key) for _, key, *_ in commands]
            for reply in self._connection.ask_each(keys, commands):
                if isinstance(reply, RedisError):  # of one node
                    raise reply
        except BaseException:
            with self._lock:
                self._attention |= attention
                self._later |= later
                for session_id, (user, place, gone) in moves.items():
                    newer = self._waiting.get(session_id, (user, place, set()))
                    self._waiting[session_id] = (*newer[:2], newer[2] | gone)
            raise


def _ending(row: ConversationRow) -> tuple[tuple[int, ...], int]:
    """Changes with every answer and every failure."""
    return row.answers, row.failed_seq
