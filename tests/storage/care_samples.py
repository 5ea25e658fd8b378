"""Conversations to copy, examine and repair: whole data directories, and what is beside files."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace
from tests.storage.conversations import START, Pen, answer_to, asking, call, prompt, ticking_clock

from nplt_storage import ConversationStore, JsonFileStore, Origin
from nplt_storage.entries import AttachmentEntry, BlobReference, Entry, ToolResultsEntry
from nplt_storage.files.examination import Examination, examine_file
from nplt_storage.files.repair import Repair, plan_repair
from nplt_storage.files.salvage import KnownElsewhere

FILE_ID = "7f0c2f6be1f94d0f8d3f6f4c0a9b1e22"
LONG_RESULT = ("a result too long for a line, ünïcode included\n" * 3).encode()


@asynccontextmanager
async def file_store(data_dir: Path) -> AsyncIterator[JsonFileStore]:
    store = await JsonFileStore.open_directory(data_dir, clock=ticking_clock())
    try:
        yield store
    finally:
        await store.close()


async def put(
    store: ConversationStore,
    entries: Iterable[Entry],
    session_id: str = "s1",
    *,
    origin: Origin | None = None,
    blobs: Sequence[bytes] = (),
) -> None:
    origin = origin or Origin(user="local", created_at=START)
    async with store.build(session_id, origin) as builder:
        for blob in blobs:
            await builder.keep_blob(blob)
        await builder.add(list(entries))


async def all_entries(store: ConversationStore, session_id: str = "s1") -> list[Entry]:
    return [entry async for batch in store.entries(session_id) for entry in batch]


def reference_to(data: bytes) -> BlobReference:
    digest = hashlib.sha256(data).hexdigest()
    return BlobReference(blob_id=digest, size=len(data), sha256=digest)


def attachment(data: bytes, file_id: str = FILE_ID) -> AttachmentEntry:
    return AttachmentEntry(
        file_id=file_id,
        filename="top.txt",
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def with_long_result(*more: Entry, data: bytes = LONG_RESULT) -> list[Entry]:
    """A prompt, a call whose whole result is a blob, and `more`."""
    result = replace(answer_to(call()), result="a result…", blob=reference_to(data))
    drafts: list[Entry] = [
        prompt("t1"),
        asking("t1", call()),
        ToolResultsEntry(turn_id="t1", results=(result,)),
        *more,
    ]
    return Pen().write_all(drafts)


def put_attachment(data_dir: Path, session_id: str, data: bytes) -> Path:
    path = data_dir / "files" / session_id / FILE_ID
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def the_file(data_dir: Path, session_id: str = "s1") -> Path:
    (path,) = (data_dir / "history").glob(f"session_*_{session_id}.json")
    return path


def examined(data: bytes, session_id: str = "s1") -> Examination:
    return examine_file(
        lambda offset, length: data[offset : offset + length],
        len(data),
        session_id=session_id,
        new_id=lambda: "x",
    )


def planned(data: bytes, session_id: str = "s1") -> tuple[Repair, bytes]:
    """The repair, and the file as it is after it."""
    repair = plan_repair(
        lambda offset, length: data[offset : offset + length],
        len(data),
        session_id=session_id,
        clock=ticking_clock(),
        new_id=lambda: "x",
        known=KnownElsewhere(user="local"),
    )
    parts = (part if isinstance(part, bytes) else data[slice(*part)] for part in repair.parts)
    return repair, b"".join(parts)
