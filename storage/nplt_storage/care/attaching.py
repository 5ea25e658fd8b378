"""Bringing attachments from a file that is copied to where the copy will look for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread

from nplt_storage.care.documents import ReadAttachment
from nplt_storage.copying import BringAttachments
from nplt_storage.data_directory import make_private_directory
from nplt_storage.errors import StorageUnavailable
from nplt_storage.facts.entries import AttachmentEntry
from nplt_storage.file_operations import SystemFiles, write_new_file
from nplt_storage.ids import is_file_id


def bring_into(files: Path, new_id: str, read: ReadAttachment) -> BringAttachments:
    """`files` is the target's directory of attachments."""

    def keep(file_id: str, data: bytes) -> None:
        try:
            make_private_directory(files / new_id)
            write_new_file(SystemFiles(), files / new_id / file_id, data)
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

    return bring
