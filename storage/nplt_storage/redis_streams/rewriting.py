"""The one rewrite there is: a stream without the words of one entry.

Redis can't change an entry of a stream, and a deleted one stays in its memory
for a while. So the stream is copied beside, and takes the old one's place in
one step. What Redis has on disk follows when it rewrites its file, which it is
asked to do at once; snapshots and backups made before are its operator's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import redis

from nplt_storage.conversation.checkpoints import Checkpoint, read_checkpoint
from nplt_storage.conversation.rows import ConversationRow, fold
from nplt_storage.erasing import blobs_named_by, without_words_of
from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import CheckpointEntry, Entry
from nplt_storage.facts.redaction import redacted
from nplt_storage.redis_streams.connection import RedisConnection, configured
from nplt_storage.redis_streams.making import UnseenStream
from nplt_storage.redis_streams.reading import StreamSource

log = logging.getLogger(__name__)

_ASKED_SECONDS_MAX: Final = 10.0
_ASKED_AGAIN_SECONDS: Final = 0.02


@dataclass(slots=True, kw_only=True)
class Rewrite:
    """A copy on its way, and what is known once it is made."""

    erased: Entry
    tombstone: Entry
    checkpoint: CheckpointEntry | None
    row: ConversationRow
    blobs: set[str]

    def entries(self, source: StreamSource) -> Iterator[Entry]:
        for entry in source.after(self.row.head_seq):
            entry = without_words_of(self.erased, self.tombstone, entry)
            self.row = fold(self.row, entry)
            self.blobs |= blobs_named_by([entry])
            yield entry

    @property
    def blobs_gone(self) -> list[str]:
        return sorted(blobs_named_by([self.erased]) - self.blobs)


def write_without(
    seq: int,
    made: UnseenStream,
    *,
    source: StreamSource,
    checkpoint: CheckpointEntry | None,
    floor: Checkpoint,
    at: datetime,
) -> Rewrite:
    """`made` holds the whole stream then, with a tombstone at `seq`."""
    is_checkpoint = checkpoint is not None and checkpoint.seq == seq
    erased = checkpoint if is_checkpoint else source.at(seq)
    if erased is None:
        raise BadEntry(f"there is no entry {seq}")
    tombstone = redacted(erased, at)
    if isinstance(tombstone, CheckpointEntry) and is_checkpoint:
        checkpoint, floor = tombstone, read_checkpoint(tombstone) or floor
    first_seq = checkpoint.seq + 1 if checkpoint is not None else 1
    row = replace(floor.row, head_seq=first_seq - 1, first_seq=first_seq)
    rewrite = Rewrite(
        erased=erased, tombstone=tombstone, checkpoint=checkpoint, row=row, blobs=set()
    )
    if checkpoint is not None:
        made.add_checkpoint(checkpoint)
    made.add(rewrite.entries(source))
    return rewrite


def ask_for_a_new_file(connection: RedisConnection) -> None:
    """Where Redis keeps a log of commands, the erased words are in it until it
    writes a new one. One that it is writing already began before, and won't do."""
    deadline = time.monotonic() + _ASKED_SECONDS_MAX
    try:
        if configured(connection).get("appendonly") != "yes":
            return
        while not _is_begun(connection):
            if time.monotonic() > deadline:
                raise redis.ResponseError("it is still writing the one before")
            time.sleep(_ASKED_AGAIN_SECONDS)
    except redis.RedisError as error:
        log.warning("Redis may hold erased words on disk until it rewrites its log: %s", error)


def _is_begun(connection: RedisConnection) -> bool:
    try:
        connection.call("BGREWRITEAOF")
    except redis.ResponseError as refusal:
        if "in progress" in str(refusal):
            return False
        raise
    return True
