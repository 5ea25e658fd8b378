"""Examines the conversations in a Redis; changes nothing.

Every line of every conversation is read and verified, and what entries name (blobs, attached files)
is looked for. Servers may be running: a conversation that is deleted meanwhile is passed over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import anyio.to_thread

from nplt_storage.codec import encode_line
from nplt_storage.entries import AttachmentEntry, Entry
from nplt_storage.errors import BadEntry, ConversationDamaged, ConversationNotFound
from nplt_storage.files.examination import Finding, note
from nplt_storage.maintenance.doctor import Report
from nplt_storage.maintenance.migrate import ids_in_redis
from nplt_storage.redaction import blobs_named_by
from nplt_storage.redis.address import split_key_prefix
from nplt_storage.redis.store import RedisStore


async def examine_redis(place: str, *, progress: Callable[[int, int], None]) -> Report:
    """`progress` is called with the number of conversations read, and of all."""
    url, key_prefix = split_key_prefix(place)
    store = await RedisStore.open_url(url, clock=partial(datetime.now, UTC), key_prefix=key_prefix)
    try:
        findings = [
            Finding("redis_setup", problem.says, is_wrong=problem.refuses)
            for problem in store.examined.problems
        ]
        ids = await anyio.to_thread.run_sync(ids_in_redis, url, key_prefix)
        size = 0
        for number, session_id in enumerate(ids):
            progress(number, len(ids))
            conversation = _Examined(store, session_id)
            findings += [finding async for finding in conversation.findings()]
            size += conversation.size
        return Report(conversations=len(ids), size=size, findings=tuple(findings))
    finally:
        await store.close()


class _Examined:
    def __init__(self, store: RedisStore, session_id: str) -> None:
        self.size = 0
        self._store = store
        self._session_id = session_id

    async def findings(self) -> AsyncIterator[Finding]:
        blobs: set[str] = set()
        attached: list[AttachmentEntry] = []
        try:
            async for batch in self._store.entries(self._session_id):
                self._note(batch, blobs, attached)
        except ConversationDamaged as error:
            yield Finding("damaged", error.reason, file=self._session_id)
        except ConversationNotFound:
            return
        for blob_id in sorted(blobs):
            try:
                await self._store.blob(self._session_id, blob_id, 0, 1)
            except BadEntry:
                yield Finding("blob_missing", f"blob {blob_id} is missing", file=self._session_id)
            except ConversationNotFound:
                return
        for entry in attached:
            if not await self._store.has_file(self._session_id, entry.file_id):
                says = f"the file {entry.filename!r} is not in Redis, but on a server at most"
                yield note("file_elsewhere", says, file=self._session_id)

    def _note(
        self, batch: Sequence[Entry], blobs: set[str], attached: list[AttachmentEntry]
    ) -> None:
        self.size += sum(len(encode_line(entry)) for entry in batch)
        blobs |= blobs_named_by(batch)
        attached += [
            entry
            for entry in batch
            if isinstance(entry, AttachmentEntry) and entry.redacted_at is None
        ]
