"""Is there room to go on writing? Asked before every append, looked up once a second.

The last bytes of a disk are not for conversations: who writes until there are
none leaves no room to put things right. Below the reserve nothing is written,
everything can be read, and writing goes on by itself when there is room again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio

from nplt_storage.errors import ConversationReadOnly, StorageUnavailable
from nplt_storage.files.commit_threads import CommitThreads
from nplt_storage.files.disk import Disk

FREE_BYTES_MIN: Final = 64 * 1024 * 1024
_SECONDS: Final = 1.0
_MIB: Final = 1024 * 1024


class FreeSpace:
    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        bytes_min: int,
        threads: CommitThreads,
        seconds: Callable[[], float],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._bytes_min = bytes_min
        self._threads = threads
        self._seconds = seconds
        self._looked_at: float | None = None
        self._is_short = False

    async def check(self, session_id: str) -> None:
        """Raises `ConversationReadOnly` while there is too little."""
        if self._is_due():
            with anyio.move_on_after(_SECONDS):  # a disk that hangs is the write's business
                await self._threads.submit(self._look)
        if reason := self._reason():
            raise ConversationReadOnly(session_id, reason)

    @property
    def shortage(self) -> str | None:
        """As it was when it was last looked up; if that is long ago, it is looked up
        now for whoever asks next."""
        if self._is_due():
            with suppress(StorageUnavailable):  # no thread to look with: who writes will hear
                self._threads.start(self._look)
        return self._reason()

    def _is_due(self) -> bool:
        now = self._seconds()
        if self._looked_at is not None and now - self._looked_at < _SECONDS:
            return False
        self._looked_at = now  # who comes meanwhile need not look as well
        return True

    def _look(self) -> None:
        try:
            self._is_short = self._disk.free_bytes(self._directory) < self._bytes_min
        except OSError:
            self._is_short = False  # the write itself will tell

    def _reason(self) -> str | None:
        if not self._is_short:
            return None
        return f"less than {self._bytes_min / _MIB:g} MiB are free on the disk"
