"""What is too large for a line: kept beside the conversation's file, whole.

    session_YYYYMMDD_<id>.blobs/<sha256 of the bytes>

A blob is named by what it holds, so the same bytes are kept once. It has its
name only when it is whole and on disk, and the line that names it comes after;
a crash between the two leaves a blob nobody names, which does no harm.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Set as AbstractSet
from pathlib import Path

from nplt_storage.errors import BadEntry
from nplt_storage.facts.tool_calls import BlobReference
from nplt_storage.file_operations import read_all, write_new_file
from nplt_storage.files.access import opened
from nplt_storage.files.disk import Disk

_BLOB_ID = re.compile(r"[0-9a-f]{64}")


def keep_blob(disk: Disk, directory: Path, data: bytes) -> BlobReference:
    """On disk, name and all, when it returns."""
    digest = hashlib.sha256(data).hexdigest()
    disk.make_directory(directory)
    if not _is_kept(disk, directory / digest, len(data)):
        write_new_file(disk, directory / digest, data)
    return BlobReference(blob_id=digest, size=len(data), sha256=digest)


def read_blob(disk: Disk, directory: Path, blob_id: str, offset: int, length: int) -> bytes:
    """Fewer bytes only at its end."""
    if offset < 0 or length < 0:
        raise BadEntry("a range begins at 0 or later, and is not shorter than nothing")
    try:
        if _BLOB_ID.fullmatch(blob_id) is None:
            raise FileNotFoundError
        with opened(disk, directory / blob_id, os.O_RDONLY) as descriptor:
            wanted = min(length, max(disk.size(descriptor) - offset, 0))
            return read_all(disk, descriptor, wanted, offset)
    except FileNotFoundError:
        raise BadEntry(f"there is no blob {blob_id!r} in this conversation") from None


def remove_blobs_except(disk: Disk, directory: Path, named: AbstractSet[str]) -> None:
    unnamed = [name for name in disk.names_in(directory) if name not in named]
    for name in unnamed:
        disk.remove(directory / name)
    if unnamed:
        disk.sync_directory(directory)


def _is_kept(disk: Disk, path: Path, size: int) -> bool:
    try:
        return disk.found(path).size == size
    except FileNotFoundError:
        return False
