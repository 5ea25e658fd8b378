"""Bringing attachments from a file that is copied to where the copy will look for them.

If there is no copy in the end, what was brought goes again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread

from nplt_storage.care.documents import ReadAttachment
from nplt_storage.copying import BringAttachments
from nplt_storage.data_directory import make_private_directory
from nplt_storage.errors import StorageUnavailable
from nplt_storage.facts.entries import AttachmentEntry
from nplt_storage.file_operations import SystemFiles, write_new_file
from nplt_storage.ids import is_file_id


@asynccontextmanager
async def bringing_into(
    files: Path, new_id: str, read: ReadAttachment
) -> AsyncIterator[BringAttachments]:
    """`files` is the target's directory of attachments. The block is the copying."""
    folder = files / new_id
    brought: list[Path] = []

    def keep(file_id: str, data: bytes) -> None:
        path = folder / file_id
        try:
            make_private_directory(folder)
            if not path.exists():  # else it is not ours to remove again
                brought.append(path)
            write_new_file(SystemFiles(), path, data)
        except OSError as error:
            raise StorageUnavailable(f"an attachment can't be kept: {error.strerror}") from error

    async def bring(entries: Sequence[AttachmentEntry]) -> Sequence[str]:
        missing: list[str] = []
        for entry in entries:
            data = await read(entry) if is_file_id(entry.file_id) else None
            if data is None:
                missing.append(entry.file_id)
            else:
                await anyio.to_thread.run_sync(keep, entry.file_id, data)
        return missing

    def remove() -> None:
        with suppress(OSError):  # whoever failed before has more to say
            for path in brought:
                path.unlink(missing_ok=True)
            folder.rmdir()  # if nothing else is in it

    try:
        yield bring
    except BaseException:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(remove)
        raise
