"""Stores the files that are attached to a conversation, byte for byte.

    files/<session_id>/<file_id>

Bytes are written to a temporary file first and get their name only when all of
them are on disk, so no name ever refers to half a file. The name is generated
here; the sender's file name is kept in the conversation and never becomes part of
a path. An upload that ends without `finish` leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from time import time
from typing import Final, Protocol

import aiofiles
import anyio
import anyio.to_thread
from aiofiles.threadpool.binary import AsyncBufferedIOBase
from msgspec import Struct

from nplt_storage.entries import AttachmentEntry
from nplt_storage.errors import BadEntry, ConversationNotFound, StorageUnavailable
from nplt_storage.file_system import (
    Disk,
    FileOperations,
    NotOurs,
    give_second_name,
    opened_to_read,
)
from nplt_storage.ids import is_file_id, is_session_id, new_file_id

_FETCHED_BYTES_MAX: Final = 1 << 40
IMPORTS_NAME: Final = ".imports"
"""A folder that belongs to no conversation: no conversation's name begins with a dot."""


def _disk_of(files: Path) -> Disk:
    """The data directory whose folder of attachments this is."""
    return Disk(files.parent)


@contextmanager
def _plain_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(f"{what}: {error.strerror}") from error


class StoredFile(Struct, frozen=True, kw_only=True):
    file_id: str
    size: int
    sha256: str


class Upload:
    """A file that is being received."""

    def __init__(
        self,
        file: AsyncBufferedIOBase,
        part: Path,
        target: Path,
        size: int,
        *,
        disk: Disk,
        files: FileOperations,
    ) -> None:
        self._file = file
        self._target = target
        self._disk = disk
        self._files = files
        self._part = part
        self._size = size
        self._received = 0
        self._sha256 = hashlib.sha256()

    @property
    def missing(self) -> int:
        return self._size - self._received

    @property
    def as_it_is(self) -> StoredFile:
        """The size and checksum of the bytes received so far."""
        return StoredFile(
            file_id=self._target.name, size=self._received, sha256=self._sha256.hexdigest()
        )

    async def write(self, chunk: bytes) -> None:
        if len(chunk) > self.missing:
            raise BadEntry(f"more than the {self._size} bytes that were announced")
        with _plain_errors("the file can't be stored"):
            await self._file.write(chunk)
        self._sha256.update(chunk)
        self._received += len(chunk)

    async def finish(self) -> StoredFile:
        await self.in_place()
        await self.give_name()
        return self.as_it_is

    async def give_name(self) -> None:
        def rename() -> None:
            self._files.sync(self._file.fileno())
            self._disk.make_directory(self._target.parent)
            self._files.rename(self._part, self._target)
            self._files.sync_directory(self._target.parent)

        with _plain_errors("the file can't be stored"):
            await self._file.flush()
            await anyio.to_thread.run_sync(rename)

    async def in_place(self) -> Path:
        """The path of the complete, unnamed file, which is to be read and dropped."""
        if self.missing:
            raise BadEntry(f"{self._received} of {self._size} bytes came")
        with _plain_errors("the file can't be stored"):
            await self._file.flush()
        return self._part


class FileSource(Protocol):
    """Another place that may have the files of conversations."""

    def pieces(self, session_id: str, file_id: str) -> AsyncIterator[bytes]:
        """Raises `BadEntry` if it does not have the file."""
        ...


class AttachmentFiles:
    """The attached files in a directory. One that is missing is fetched from the source, if there
    is one."""

    def __init__(
        self,
        directory: Path,
        *,
        new_id: Callable[[], str] = new_file_id,
        files: FileOperations | None = None,
        source: FileSource | None = None,
    ) -> None:
        self.directory = directory
        self._source = source
        self._new_id = new_id
        self._disk = _disk_of(directory)
        self._files = files or self._disk

    def path_of(self, session_id: str, file_id: str) -> Path:
        """The path of that file, if it exists; ids that can't be ours are refused."""
        if not is_session_id(session_id):
            raise ConversationNotFound(session_id)
        if not is_file_id(file_id):
            raise BadEntry(f"{file_id!r} is not the id of a file")
        return self.directory / session_id / file_id

    async def has(self, session_id: str, file_id: str) -> bool:
        if not is_file_id(file_id):
            return False
        path = self.path_of(session_id, file_id)
        if await anyio.to_thread.run_sync(self._disk.is_file, path):
            return True
        return await self._fetch(session_id, file_id)

    async def _fetch(self, session_id: str, file_id: str) -> bool:
        """Copies the file from the source, under the same id."""
        if self._source is None:
            return False
        try:
            part = f"{file_id}.{self._new_id()}.part"  # it may be fetched twice at the same time
            fetching = self._receiving(session_id, file_id, part, size=_FETCHED_BYTES_MAX)
            async with fetching as upload:
                async for piece in self._source.pieces(session_id, file_id):
                    await upload.write(piece)
                await upload.give_name()
        except BadEntry:
            return False
        return True

    async def read(self, session_id: str, file_id: str, *, offset: int, length: int) -> bytes:
        """Raises `BadEntry` if the file does not exist."""
        path = self.path_of(session_id, file_id)
        if self._source is not None:
            await self.has(session_id, file_id)

        def read_range() -> bytes:
            with opened_to_read(self._disk, path) as (read, size):
                # No system takes any number for a place; beyond the end there is nothing.
                return read(min(offset, size), length)

        with _plain_errors("the file can't be read"):
            try:
                return await anyio.to_thread.run_sync(read_range)
            except (FileNotFoundError, NotOurs):
                raise BadEntry(f"there is no file {file_id!r}") from None

    async def remove(self, session_id: str, file_id: str) -> None:
        path = self.path_of(session_id, file_id)
        with _plain_errors("the file can't be removed"):
            await anyio.to_thread.run_sync(self._disk.remove, path)

    async def remove_all(self, session_id: str) -> None:
        """Removes all files of a conversation."""
        if is_session_id(session_id):
            folder = self.directory / session_id
            await anyio.to_thread.run_sync(self._disk.remove_tree, folder)

    async def unchanged_for(self, seconds: float) -> list[str]:
        """The conversations that have files, but have been given none for that long."""

        def look() -> list[str]:
            names = filter(is_session_id, self._disk.names_in(self.directory))
            changed_at = time() - seconds
            return [
                name
                for name in names
                if self._disk.status(self.directory / name).st_mtime < changed_at
            ]

        with _plain_errors("the files can't be listed"):
            return await anyio.to_thread.run_sync(look)

    async def sessions_with(self, file_id: str) -> list[str]:
        """The conversations with a file of that id; forks share files."""
        if not is_file_id(file_id):
            return []

        def look() -> list[str]:
            names = self._disk.names_in(self.directory)
            return [name for name in names if self._disk.is_file(self.directory / name / file_id)]

        return await anyio.to_thread.run_sync(look)

    @asynccontextmanager
    async def receive(self, session_id: str | None, *, size: int) -> AsyncIterator[Upload]:
        """Receives a file. If `session_id` is `None`, it belongs to no conversation and can only be
        read in place."""
        file_id = self._new_id()
        async with self._receiving(session_id, file_id, f"{file_id}.part", size=size) as upload:
            yield upload

    @asynccontextmanager
    async def _receiving(
        self, session_id: str | None, file_id: str, part_name: str, *, size: int
    ) -> AsyncIterator[Upload]:
        part = self.directory / IMPORTS_NAME / part_name
        home = part.parent
        if session_id is not None:
            home = self.path_of(session_id, file_id).parent
        if size < 0:
            raise BadEntry("a file has no negative size")
        with _plain_errors("the file can't be stored"):
            await anyio.to_thread.run_sync(self._disk.make_directory, part.parent)
            file = await aiofiles.open(
                part, "xb", opener=lambda _, flags: self._disk.open(part, flags)
            )
        try:
            yield Upload(file, part, home / file_id, size, disk=self._disk, files=self._files)
        finally:
            with anyio.CancelScope(shield=True):
                # The descriptor is gone even if the last bytes could not be flushed, and
                # an unfinished file is not worth an error.
                with suppress(OSError):
                    await file.close()
                await anyio.to_thread.run_sync(self._disk.remove, part)


# ------------------------------------------------------------------------------
# Sharing attachments with a copied conversation
#
# An attachment never changes, so two conversations can share its bytes by a hard
# link; either can be deleted without the other. Where the disk does not support
# links, the bytes are copied. A copy that is on its way is marked until its conversation
# exists, so that the next start can remove what a killed one left behind.

_COPIES: Final = ".copies"


def mark_copy(files: Path, session_id: str) -> None:
    """Marks a copy as unfinished, unless the conversation already has attachments, which the copy
    must not remove."""
    disk = _disk_of(files)
    if session_id not in disk.names_in(files, with_part=session_id):
        disk.make_directory(files / _COPIES)
        disk.close(disk.open(files / _COPIES / session_id, os.O_WRONLY | os.O_CREAT))


def unfinished_copies(files: Path) -> list[str]:
    return _disk_of(files).names_in(files / _COPIES)


def end_copy(files: Path, session_id: str, *, is_there: bool) -> None:
    """Removes the mark and, unless the conversation exists (`is_there`), its attachments."""
    disk = _disk_of(files)
    if session_id in disk.names_in(files / _COPIES, with_part=session_id):
        if not is_there:
            disk.remove_tree(files / session_id)
        with suppress(OSError):  # the directory stays: another copy may be about to use it
            disk.remove(files / _COPIES / session_id)


async def link_attachments(
    files: Path, session_id: str, new_id: str, entries: Sequence[AttachmentEntry]
) -> list[str]:
    """Gives the copy these attachments, durably, and returns the ids of those that do not exist."""
    disk = _disk_of(files)

    def link(file_id: str) -> bool:
        if not is_file_id(file_id):
            return False
        target = files / new_id / file_id
        # What a crash leaves of the copy is removed at the next start.
        with suppress(FileExistsError):  # named twice in the record
            try:
                source, part = files / session_id / file_id, target.with_suffix(".part")
                give_second_name(disk, source, target, part)
            except (FileNotFoundError, NotOurs):
                return False
        return True

    def work() -> list[str]:
        with _plain_errors("attachments can't be kept"):
            mark_copy(files, new_id)
            disk.make_directory(files / new_id)
            missing = [entry.file_id for entry in entries if not link(entry.file_id)]
            disk.sync_directory(files / new_id)
            if len(missing) == len(entries):
                disk.remove_directory(files / new_id)
        return missing

    return await anyio.to_thread.run_sync(work)
