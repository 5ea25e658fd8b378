"""A whole conversation on its way in: imported, copied, moved from elsewhere.

Lines are written to a file beside, in batches, in worker threads; blobs to a
folder beside. When all is there and on disk the folder gets its name, then the
file: with that the conversation is there, in one step. A crash before leaves
what the next start sweeps away.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nplt_storage.errors import BadEntry, ConversationExists
from nplt_storage.facts.entries import Entry
from nplt_storage.facts.lines import encode_line
from nplt_storage.facts.tool_calls import BlobReference
from nplt_storage.files.access import plain_errors
from nplt_storage.files.blobs import keep_blob
from nplt_storage.files.disk import Disk
from nplt_storage.files.layout import Header, encode_header
from nplt_storage.files.names import blobs_of, on_its_way
from nplt_storage.files.threads import DiskThreads
from nplt_storage.files.writing import NewFile


class NewConversation:
    """Blocks."""

    def __init__(self, disk: Disk, path: Path, header: Header) -> None:
        self._disk = disk
        self._path = path
        self._session_id = header.session_id
        self._blobs = on_its_way(blobs_of(path))
        with plain_errors(self._session_id):
            disk.remove_tree(self._blobs)  # left by a crash
            self._file = NewFile(disk, path, encode_header(header), created_at=header.created_at)

    def add(self, entries: Sequence[Entry]) -> None:
        """All of them or, if one can't be remembered, none."""
        lines: list[tuple[Entry, bytes]] = []
        for due, entry in enumerate(entries, self._file.head_seq + 1):
            if entry.seq != due:
                raise BadEntry(f"entry {entry.seq} can't follow entry {due - 1}")
            lines.append((entry, encode_line(entry)))
        with plain_errors(self._session_id):
            for entry, line in lines:
                self._file.add(line, kind=entry.kind, at=entry.timestamp)

    def keep_blob(self, data: bytes) -> BlobReference:
        with plain_errors(self._session_id):
            return keep_blob(self._disk, self._blobs, data)

    def finish(self) -> None:
        """It is there when this returns."""
        with plain_errors(self._session_id):
            if self._path.name in self._disk.names_in(self._path.parent):
                raise ConversationExists(self._session_id)
            self._file.seal()
            self._name_blobs()
            self._disk.rename(self._file.beside, self._path)
            try:
                self._disk.sync_directory(self._path.parent)
            except OSError:
                self._disk.remove(self._path)  # who is told that it failed must not meet it
                raise

    def abandon(self) -> None:
        self._file.abandon()
        self._disk.remove_tree(self._blobs)

    def _name_blobs(self) -> None:
        kept = self._disk.names_in(self._blobs)
        if not kept:
            return
        target = blobs_of(self._path)
        if self._disk.names_in(target):
            # Left by one that never got its file: equal names hold equal bytes.
            for name in kept:
                self._disk.rename(self._blobs / name, target / name)
            self._disk.sync_directory(target)
            self._disk.remove_tree(self._blobs)
        else:
            self._disk.rename(self._blobs, target)
        self._disk.sync_directory(target.parent)


class FileBuilder:
    """The same, for those who must not block."""

    def __init__(self, conversation: NewConversation, threads: DiskThreads) -> None:
        self._conversation = conversation
        self._threads = threads

    async def add(self, entries: Sequence[Entry]) -> None:
        await self._threads.write(lambda: self._conversation.add(entries))

    async def keep_blob(self, data: bytes) -> BlobReference:
        return await self._threads.write(lambda: self._conversation.keep_blob(data))
