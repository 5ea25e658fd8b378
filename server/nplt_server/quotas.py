"""Limits the disk space of each user: conversations, files, and uploads in progress.

The sizes of the files are summed at most every few seconds for each user; bytes written in
between are added to the sum. The trash counts too. A server without tokens has one user, who owns
the disk: then only uploads in progress are limited. No write may use the reserve that is kept
free for recovery.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

from anyio import to_thread

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_server.histories import Histories
from nplt_server.settings import Limits
from nplt_storage.files.directory import FREE_BYTES_MIN
from nplt_storage.files.format import companion_of, session_id_of
from nplt_storage.files.trash import deleted_id
from nplt_storage.rows import RowQuery

_SECONDS: Final = 30.0
"""How long a sum is valid for small writes."""
_COPY_SECONDS: Final = 1.0
"""How long a sum is valid for a copy of a whole conversation."""


@dataclass(slots=True, kw_only=True)
class DiskUse:
    """The bytes that one user occupies."""

    conversations: int = 0
    files: int = 0
    summed_at: float = 0.0


@dataclass(kw_only=True)
class Quotas:
    limits: Limits
    histories: Histories
    files: Path
    need_tokens: bool = False
    free_bytes_min: int = FREE_BYTES_MIN
    _used: dict[str, DiskUse] = field(default_factory=dict)
    _under_way: Counter[str] = field(default_factory=Counter)
    """Bytes of announced uploads, by user."""

    @contextmanager
    def upload(self, user: str, size: int) -> Iterator[None]:
        """Reserves the bytes of an upload while it is in progress."""
        most = self.limits.upload_bytes_per_user_max
        if self._under_way[user] + size > most:
            raise RequestError(
                ErrorCode.TOO_LARGE if size > most else ErrorCode.BUSY,
                f"uploads of at most {most:,} bytes in all can be under way; "
                "wait until others are stored",
                field="size",
            )
        self._under_way[user] += size
        try:
            yield
        finally:
            self._under_way[user] -= size

    async def check_file(self, user: str) -> None:
        """Checks, inside `upload`, that there is room for all uploads in progress."""
        await self._check_disk(self._under_way.total())
        most = self.limits.file_bytes_per_user_max
        used = await self._use_of(user)
        if used is not None and used.files + self._under_way[user] > most:
            raise _too_much("files", used.files, most)

    def file_stored(self, user: str, size: int) -> None:
        if (used := self._used.get(user)) is not None:
            used.files += size

    async def check_conversations(self, user: str, more: int = 0) -> None:
        """Checks the user's quota before a write. `more` bytes are about to be copied and count
        from now on."""
        if more:
            await self._check_disk(self._under_way.total() + more)
        most = self.limits.conversation_bytes_per_user_max
        used = await self._use_of(user, seconds=_COPY_SECONDS if more else _SECONDS)
        if used is None:
            return
        if used.conversations + more > most:
            raise _too_much("conversations", used.conversations, most)
        used.conversations += more

    async def size_of(self, session_id: str) -> int:
        """The bytes of a conversation, without its files."""
        return (await to_thread.run_sync(self._sum, (session_id,), ())).conversations

    async def _use_of(self, user: str, *, seconds: float = _SECONDS) -> DiskUse | None:
        """Returns `None` if this user has no quota."""
        if not self.need_tokens:
            return None
        used = self._used.get(user)
        if used is None or monotonic() - used.summed_at > seconds:
            ids = {row.session_id async for row in self.histories.rows(user, RowQuery())}
            trash = {each.row.session_id for each in await self.histories.trash(user)}
            used = self._used[user] = await to_thread.run_sync(self._sum, ids, trash)
        return used

    def _sum(self, ids: Collection[str], deleted: Collection[str]) -> DiskUse:
        used, seen = DiskUse(summed_at=monotonic()), set[int]()
        for folder in (self.files / session_id for session_id in ids):
            used.files += _bytes_below(folder, seen)
        stores = (profile.store.description.path for profile in self.histories)
        for data_dir in (Path(path) for path in stores if path is not None):
            for entry in _entries_of(data_dir / "history"):
                if (session_id_of(entry.name) or companion_of(entry.name)) in ids:
                    used.conversations += _bytes_of(entry, seen)
            for entry in _entries_of(data_dir / "trash"):
                if deleted_id(entry.name) in deleted:
                    used.files += _bytes_below(Path(entry.path, "files"), seen)
                    used.conversations += _bytes_of(entry, seen)
        return used

    async def _check_disk(self, size: int) -> None:
        """Checks that the reserve remains free after `size` more bytes are written."""

        def free_bytes() -> int:
            there = next(each for each in (self.files, *self.files.parents) if each.exists())
            disk = os.statvfs(there)
            return disk.f_bavail * disk.f_frsize

        try:
            free = await to_thread.run_sync(free_bytes)
        except OSError:
            return  # the write itself will fail if the disk is full
        if free - size < self.free_bytes_min:
            raise RequestError(
                ErrorCode.READ_ONLY,
                f"there is too little room on the server's disk: {self.free_bytes_min:,} bytes "
                "are kept free",
            )


def _too_much(what: str, used: int, most: int) -> RequestError:
    return RequestError(
        ErrorCode.TOO_LARGE,
        f"your {what} take {used:,} of {most:,} bytes, and there is no room for this. What is "
        "deleted counts until it leaves the trash",
    )


def _entries_of(directory: Path | str) -> Iterator[os.DirEntry[str]]:
    """Yields one entry at a time, because there may be a hundred thousand."""
    with suppress(OSError), os.scandir(directory) as entries:
        yield from entries


def _bytes_below(directory: Path | str, seen: set[int]) -> int:
    return sum(_bytes_of(entry, seen) for entry in _entries_of(directory))


def _bytes_of(entry: os.DirEntry[str], seen: set[int]) -> int:
    """Returns the bytes of a file, or of all files in a folder. A file that forks share counts
    once; one that can't be examined counts as empty."""
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return 0
    if stat.S_ISDIR(about.st_mode):
        return _bytes_below(entry.path, seen)
    is_new = about.st_ino not in seen
    seen.add(about.st_ino)
    return about.st_size if is_new else 0
