"""Becoming the writer of a conversation in Redis. Blocking: used inside a worker thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from redis.exceptions import RedisError

from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.errors import ConversationDamaged
from nplt_storage.redis_streams.finding import Finder
from nplt_storage.redis_streams.record import RedisRecord, Surroundings, WriterState
from nplt_storage.redis_streams.sender import Sender, Talk
from nplt_storage.redis_streams.window import read_end
from nplt_storage.said import not_yet_an_entry
from nplt_storage.store import Opened, SaidSoFar


class Opener:
    def __init__(
        self,
        finder: Finder,
        around: Surroundings,
        sender: Sender,
        *,
        closed: Callable[[RedisRecord], None],
    ) -> None:
        self._finder = finder
        self._around = around
        self._sender = sender
        self._closed = closed

    def open(self, session_id: str) -> tuple[Opened, RedisRecord]:
        """Nothing is left of it if it fails, but a word in lists about what is damaged."""
        try:
            return self._open(session_id)
        except RedisError:
            raise  # the lease lapses, or serves the next attempt
        except BaseException as error:
            with suppress(RedisError):
                self._around.leases.give_back(self._around.keyspace.of(session_id).base)
                if isinstance(error, ConversationDamaged):
                    self._finder.mark_damaged(session_id, error.reason)
            raise

    def writer(self, state: WriterState, said: SaidSoFar | None = None) -> RedisRecord:
        around = self._around
        keys = [around.keyspace.of(state.row.session_id).base, around.keyspace.prefix]
        record = RedisRecord(
            state,
            around=around,
            talk=Talk(self._sender, around.connection, keys, said, leases=around.leases),
            closed=lambda: self._closed(record),
        )
        return record

    def _open(self, session_id: str) -> tuple[Opened, RedisRecord]:
        found = self._finder.find(session_id, owner=self._around.leases.arguments)
        self._finder.check_ends(found)
        row, source = found.row, self._finder.source(found.row)
        held = read_end(source, row)
        checkpoint = [found.checkpoint] if found.checkpoint else []
        said = not_yet_an_entry(found.said, row, held)
        record = self.writer(WriterState(row=row, rev=found.rev, checkpoint=found.checkpoint), said)
        max_turns = self._around.limits.max_turns
        if max_turns:
            record.learn_turns(source.after(0))
        history = ConversationHistory(
            session_id, [*checkpoint, *held], row=row, turns_max=max_turns or None
        )
        return Opened(record=record, history=history, row=row, said=said), record
