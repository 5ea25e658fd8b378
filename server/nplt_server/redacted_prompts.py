"""The ids of the prompts that were redacted, so that clients can drop them from their own files.

A chat keeps the prompts that were typed, each with its message id. It learns at its next connect
which of them were redacted meanwhile. Only ids are kept, never a text or a hash of it, and of
each user only the newest `IDS_KEPT`: as many as a chat keeps prompts. The ids outlive their
conversation, which may be deleted. Servers that share a store share the ids; another server
keeps them in a file of its data directory.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from nplt_storage.errors import StorageUnavailable
from nplt_storage.store import Shared

IDS_KEPT: Final = 1_000


class RedactedPrompts:
    def __init__(self, path: Path | None = None, *, shared: Shared | None = None) -> None:
        """Without either, the ids last as long as the process."""
        self._path = path
        self._shared = shared
        self._writing = anyio.Lock()
        self._ids: dict[str, list[str]] | None = {} if path is None else None

    async def of(self, user: str) -> Sequence[str]:
        """The oldest first."""
        if self._shared is not None:
            return await self._shared.redacted_prompts(user)
        async with self._writing:
            return (await self._known()).get(user, ())

    async def add(self, user: str, message_ids: Sequence[str]) -> None:
        """Has the ids on disk before it returns. Called before the texts are erased: after a crash
        in between, a client drops its line too early, and never too late."""
        if not message_ids:
            return
        if self._shared is not None:
            await self._shared.note_redacted_prompts(user, message_ids, IDS_KEPT)
            return
        async with self._writing:
            known = await self._known()
            kept = [one for one in known.get(user, ()) if one not in message_ids]
            ids = {**known, user: [*kept, *message_ids][-IDS_KEPT:]}
            if self._path is not None:
                await anyio.to_thread.run_sync(_write, self._path, msgspec.json.encode(ids))
            self._ids = ids

    async def _known(self) -> dict[str, list[str]]:
        if self._ids is None:
            assert self._path is not None
            self._ids = await anyio.to_thread.run_sync(_read, self._path)
        return self._ids


def _read(path: Path) -> dict[str, list[str]]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StorageUnavailable(f"{path.name} can't be read: {error}") from None


def _write(path: Path, data: bytes) -> None:
    draft = path.with_suffix(".new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StorageUnavailable(f"{path.name} can't be written: {error.strerror}") from None
