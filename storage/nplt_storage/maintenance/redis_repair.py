"""Repairs a damaged conversation in a Redis.

What Redis has of it is written to a file in a directory for that time alone, and repaired as any
file is (`files.repair`): entries that are sound are kept as they are, the others are replaced by
notes. The repaired conversation takes the place of the damaged one, which goes to the trash, where
it is complete for thirty days. No server may have the conversation open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio.to_thread
from msgspec.structs import replace

from nplt_storage.codec import BadLine, decode_line, encode_line
from nplt_storage.copying import stand_ins
from nplt_storage.entries import CheckpointEntry
from nplt_storage.errors import (
    BadEntry,
    ConversationNotFound,
    StorageUnavailable,
)
from nplt_storage.files.format import (
    Header,
    blobs_of,
    empty_tail,
    encode_closing,
    encode_header,
    file_name,
)
from nplt_storage.files.repair import repair_file
from nplt_storage.ids import new_entry_id
from nplt_storage.maintenance.migrate import DirectoryPlace, migrate
from nplt_storage.redis.address import split_key_prefix
from nplt_storage.redis.store import RedisStore, StoredParts
from nplt_storage.rows import Checkpoint, ConversationRow, checkpoint_state
from nplt_storage.store import Origin, Repaired

_CLOCK: Final[Callable[[], datetime]] = partial(datetime.now, UTC)
_FILE_PREFIX: Final = "file:"


async def repair_in_redis(place: str, session_id: str, *, dry_run: bool = False) -> Repaired:
    """Raises `CannotRepair`, `OSError` or `StorageError`."""
    url, key_prefix = split_key_prefix(place)
    store = await RedisStore.open_url(url, clock=_CLOCK, key_prefix=key_prefix)
    try:
        row = await store.row(session_id)
        if row is None:
            raise ConversationNotFound(session_id)
        origin, parts = await store.origin(session_id), await store.stored_parts(session_id)
        with TemporaryDirectory() as directory:
            written = partial(_written, Path(directory), row, origin, parts)
            path = await anyio.to_thread.run_sync(written)
            work = partial(repair_file, path, session_id, clock=_CLOCK, new_id=new_entry_id)
            repaired = await anyio.to_thread.run_sync(work)
            if repaired.says and not dry_run:
                await _replace(store, session_id, Path(directory))
        return replace(repaired, original=None)
    finally:
        await store.close()


async def _replace(store: RedisStore, session_id: str, directory: Path) -> None:
    marks = await store.seen([session_id])
    await store.delete(session_id)
    async for moved in migrate(DirectoryPlace(directory), store):
        if moved.outcome != "copied":
            await store.undelete(session_id)
            raise StorageUnavailable(moved.says)
    for seq in marks.values():
        await store.mark_seen(session_id, seq, unread=True)


def _written(directory: Path, row: ConversationRow, origin: Origin, parts: StoredParts) -> Path:
    """Writes the conversation as a file in a data directory, with its blobs and attached files."""
    path = directory / "history" / file_name(row.session_id, origin.created_at)
    path.parent.mkdir()
    blobs_of(path).mkdir()
    header = Header(
        session_id=row.session_id,
        user=origin.user,
        created_at=origin.created_at,
        extra=origin.extra,
    )
    path.write_bytes(b"".join(_document(header, row, parts)))
    for blob_id, data in parts.blobs.items():
        if not blob_id.startswith(_FILE_PREFIX):
            (blobs_of(path) / Path(blob_id).name).write_bytes(data)
    files = directory / "files" / row.session_id
    files.mkdir(parents=True)
    for file_id, data in _files_in(parts.blobs).items():
        (files / Path(file_id).name).write_bytes(data)
    return path


def _document(header: Header, row: ConversationRow, parts: StoredParts) -> Iterator[bytes]:
    first = encode_header(header)
    yield first
    tail = empty_tail(header.created_at, len(first))
    for line in (*_before(row, parts.checkpoint), *parts.lines):
        try:
            added, tail = tail.extended(decode_line(line), line)
        except BadLine:
            added = b",%b\n" % line
        yield added
    head_seq = max(row.head_seq, tail.closing.head_seq)
    yield encode_closing(replace(tail.closing, head_seq=head_seq))


def _files_in(blobs: Mapping[str, bytes]) -> dict[str, bytes]:
    """The attached files of which every piece is there."""
    files: dict[str, bytes] = {}
    for name, count in blobs.items():
        file_id = name.removeprefix(_FILE_PREFIX)
        if name.startswith(_FILE_PREFIX) and ":" not in file_id:
            with suppress(KeyError):
                files[file_id] = b"".join(blobs[f"{name}:{n}"] for n in range(int(count)))
    return files


def _before(row: ConversationRow, checkpoint_line: bytes | None) -> Sequence[bytes]:
    """Lines in place of those that were trimmed. If the checkpoint is lost, the row tells what the
    conversation is called and how it is set up."""
    if row.first_seq == 1:
        return ()
    try:
        entries = stand_ins(decode_line(checkpoint_line or b""))
    except (BadEntry, BadLine):
        state = checkpoint_state(Checkpoint(row=replace(row, billed=(), billed_details=())))
        lost = CheckpointEntry(
            seq=row.first_seq - 1, id=new_entry_id(), timestamp=row.created_at, state=state
        )
        entries = stand_ins(lost)
    return [encode_line(entry) for entry in entries]
