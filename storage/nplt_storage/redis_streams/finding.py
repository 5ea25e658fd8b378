"""Finding one conversation in Redis, and its lines. Blocking: used inside a worker thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.errors import ConversationDamaged, ConversationNotFound, ConversationReadOnly
from nplt_storage.facts.entries import CheckpointEntry, Entry
from nplt_storage.ids import is_session_id
from nplt_storage.redis_streams import scripts
from nplt_storage.redis_streams.connection import Argument, RedisConnection
from nplt_storage.redis_streams.keys import Keyspace
from nplt_storage.redis_streams.lists import Lists
from nplt_storage.redis_streams.reading import StreamSource, decode_checkpoint
from nplt_storage.redis_streams.record import Limits
from nplt_storage.redis_streams.sender import decode_pieces
from nplt_storage.store import SaidSoFar


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A conversation as Redis holds it, without its lines."""

    row: ConversationRow
    rev: str
    checkpoint: CheckpointEntry | None
    said: SaidSoFar | None


class Finder:
    def __init__(
        self, connection: RedisConnection, keyspace: Keyspace, lists: Lists, limits: Limits
    ) -> None:
        self._connection = connection
        self._keyspace = keyspace
        self._lists = lists
        self._limits = limits

    def row(self, session_id: str) -> ConversationRow:
        row = self._lists.row(session_id) if is_session_id(session_id) else None
        if row is None:
            raise ConversationNotFound(session_id)
        return row

    def find(self, session_id: str, *, owner: Sequence[Argument] = ()) -> Found:
        """All of it as of one moment; it has been used then, and expires later.
        With `owner`, as `Leases` tells it, it is the owner's from then on."""
        if not is_session_id(session_id):
            raise ConversationNotFound(session_id)
        keys = [self._keyspace.of(session_id).base, self._keyspace.prefix]
        found: Any = self._connection.run(scripts.OPEN, keys, self._limits.ttl_milliseconds, *owner)
        if found == b"held":
            raise ConversationReadOnly(session_id, "another server has it open")
        row = None if isinstance(found, bytes) else self._lists.decode(session_id, found)
        if row is None:
            raise ConversationNotFound(session_id)
        rev, checkpoint, live = (bytes(part or b"") for part in found[3:])
        return Found(
            row=row,
            rev=rev.decode(),
            checkpoint=decode_checkpoint(session_id, checkpoint),
            said=decode_pieces(live),
        )

    def check_ends(self, found: Found) -> None:
        """Redis evicts keys one by one: what is left may look whole."""
        row, source = found.row, self.source(found.row)
        if row.first_seq > 1 and found.checkpoint is None:
            raise ConversationDamaged(row.session_id, "its checkpoint is not there")
        for seq in (row.first_seq, row.head_seq):
            if row.first_seq <= row.head_seq and source.at(seq) is None:
                raise ConversationDamaged(row.session_id, f"entry {seq} is not there")

    def source(self, row: ConversationRow, *, head_seq: int | None = None) -> StreamSource:
        log = self._keyspace.of(row.session_id).log
        head = row.head_seq if head_seq is None else head_seq
        return StreamSource(row.session_id, log, self._connection, head_seq=head)

    def entries(self, session_id: str, *, after: int, through: int | None) -> Iterator[Entry]:
        """Where lines were trimmed, the checkpoint that stands for them comes first."""
        found = self.find(session_id)
        last = found.row.head_seq if through is None else min(through, found.row.head_seq)

        def walk() -> Iterator[Entry]:
            if found.checkpoint is not None and after < found.checkpoint.seq <= last:
                yield found.checkpoint
            yield from self.source(found.row, head_seq=last).after(after)

        return walk()

    def mark_damaged(self, session_id: str, reason: str) -> None:
        """So that lists show it; what is there is left as it is."""
        self._connection.call("HSET", self._keyspace.of(session_id).meta, "damaged", reason)
