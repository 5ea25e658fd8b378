"""A conversation's attachments, under another conversation's name as well.

An attachment never changes once it has its name, so two conversations can share
its bytes: each has a name for them, and either may go without the other. Where
a disk can't do that, the bytes are copied.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio.to_thread

from nplt_storage.data_directory import make_private_directory, sync_directory
from nplt_storage.errors import StorageUnavailable
from nplt_storage.facts.entries import AttachmentEntry
from nplt_storage.file_operations import PRIVATE_FILE
from nplt_storage.ids import is_file_id

_NO_SECOND_NAME: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


async def link_attachments(
    files: Path, session_id: str, new_id: str, entries: Sequence[AttachmentEntry]
) -> list[str]:
    """Durable when it returns; gives the ids of those that are not there."""

    def link() -> list[str]:
        return [entry.file_id for entry in entries if not _link(entry.file_id)]

    def _link(file_id: str) -> bool:
        if not is_file_id(file_id):
            return False
        return _give_second_name(files / session_id / file_id, files / new_id / file_id)

    def work() -> list[str]:
        try:
            make_private_directory(files / new_id)
            missing = link()
            sync_directory(files / new_id)
            if len(missing) == len(entries):
                (files / new_id).rmdir()
        except OSError as error:
            raise StorageUnavailable(f"attachments can't be kept: {error.strerror}") from error
        return missing

    return await anyio.to_thread.run_sync(work)


def _give_second_name(source: Path, target: Path) -> bool:
    with suppress(FileExistsError):  # named twice in the record
        try:
            target.hardlink_to(source)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in _NO_SECOND_NAME:
                raise
            _copy(source, target)
    return True


def _copy(source: Path, target: Path) -> None:
    part = target.with_suffix(".part")  # swept away by the next start, should this be the end
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with source.open("rb") as there, os.fdopen(os.open(part, flags, PRIVATE_FILE), "wb") as made:
        shutil.copyfileobj(there, made)
        made.flush()
        os.fsync(made.fileno())
    part.rename(target)
