"""Uploads in progress over one connection.

A file becomes an attachment of the conversation that the session was in when it was announced. If
an upload fails, its remaining bytes are discarded, so that one mistake gives one error and not
hundreds.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from time import monotonic

from msgspec.structs import replace

from nplt_protocol import ErrorCode, RequestError
from nplt_protocol.messages import FileData, FileMetadata, FileStored
from nplt_server.conversations.services import Services
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.dialects import PendingReply
from nplt_server.errors import error_to_tell
from nplt_storage.attachments import StoredFile, Upload
from nplt_storage.entries import AttachmentEntry

log = logging.getLogger(__name__)

_FAILED_MAX = 64
"""The number of failed uploads whose remaining bytes are discarded silently."""
_AT_ONCE_MAX = 8


@dataclass(slots=True, kw_only=True)
class _Incoming:
    announced: FileMetadata
    pending: PendingReply
    session_id: str
    user: str
    upload: Upload
    missing: int
    due: float
    """The time by which the upload must be complete, and by which an import must begin."""
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)


@dataclass(slots=True, eq=False)
class Uploads:
    _services: Services
    _session_manager: SessionManager
    _incoming: dict[int, _Incoming] = field(default_factory=dict)
    _failed: dict[int, None] | None = None
    """The uploads that were refused, oldest first; their bytes may still arrive."""
    _imports: dict[str, _Incoming] | None = None
    """The complete uploads that belong to no conversation and wait for IMPORT."""

    async def begin(
        self, announced: FileMetadata, pending: PendingReply, *, session_id: str, user: str
    ) -> None:
        key = pending.seq
        await self._drop(key)
        if self._failed is not None:
            self._failed.pop(key, None)
        stack = AsyncExitStack()
        try:
            announced = self._checked(announced)
            self._services.histories.default.check_there()
            stack.enter_context(self._services.quotas.upload(user, announced.size))
            await self._services.quotas.check_file(user)
            belongs_to = None if announced.purpose == "import" else session_id
            receiving = self._services.files.receive(belongs_to, size=announced.size)
            upload = await stack.enter_async_context(receiving)
        except Exception as error:
            await stack.aclose()
            await self._fail(key, pending, error)
            return
        self._incoming[key] = incoming = _Incoming(
            announced=announced,
            pending=pending,
            session_id=session_id,
            user=user,
            upload=upload,
            missing=announced.size,
            due=monotonic() + self._services.limits.upload_seconds_max,
            stack=stack,
        )
        if not announced.size:
            await self._finish(key, incoming)

    async def add(self, data: FileData, pending: PendingReply) -> None:
        key = pending.seq
        incoming = self._incoming.get(key)
        if incoming is None:
            if key not in (self._failed or ()):  # else it is the rest of a refused upload
                self.swallow(key)
                before = "FILE_METADATA must come before FILE_DATA"
                pending.report(RequestError(ErrorCode.MALFORMED, before, field="seq"))
            return
        try:
            if len(data.data) > incoming.missing:
                longer = "the file is longer than the size that was announced; send it again"
                raise RequestError(ErrorCode.MALFORMED, longer, field="size")
            if (reason := self._services.histories.default.store.read_only_reason) is not None:
                raise RequestError(ErrorCode.READ_ONLY, f"the file can't be stored: {reason}")
            incoming.missing -= len(data.data)
            await incoming.upload.write(data.data)
        except Exception as error:
            await self._fail(key, incoming.pending, error)
            return
        if not incoming.missing:
            await self._finish(key, incoming)

    async def give_up(self) -> None:
        """Fails all uploads in progress, because the client has closed its side."""
        shorter = "the file is shorter than the size that was announced; send it again"
        for key, incoming in tuple(self._incoming.items()):
            cut = RequestError(ErrorCode.MALFORMED, shorter, field="size")
            await self._fail(key, incoming.pending, cut)

    def are_late(self, now: float) -> bool:
        every = (*self._incoming.values(), *(self._imports or {}).values())
        return any(now > incoming.due for incoming in every)

    async def drop_late(self) -> None:
        now, seconds = monotonic(), self._services.limits.upload_seconds_max
        for key, incoming in tuple(self._incoming.items()):
            if now > incoming.due:
                late = f"the file did not come within {seconds:g} s; send it again"
                await self._fail(key, incoming.pending, RequestError(ErrorCode.UNAVAILABLE, late))
        for file_id, incoming in tuple((self._imports or {}).items()):
            if now > incoming.due:
                await self.drop_import(file_id)

    def swallow(self, key: int) -> None:
        if key in self._incoming:
            return  # another request used the number of this upload
        self._failed = self._failed or {}
        self._failed[key] = None
        if len(self._failed) > _FAILED_MAX:
            del self._failed[next(iter(self._failed))]

    async def abandon(self) -> None:
        for incoming in (*self._incoming.values(), *(self._imports or {}).values()):
            await incoming.stack.aclose()

    async def import_named(self, file_id: str) -> Path | None:
        incoming = (self._imports or {}).get(file_id)
        return None if incoming is None else await incoming.upload.in_place()

    async def drop_import(self, file_id: str) -> None:
        incoming = (self._imports or {}).pop(file_id, None)
        if incoming is not None:
            await incoming.stack.aclose()

    async def _finish(self, key: int, incoming: _Incoming) -> None:
        if incoming.announced.purpose == "import":
            # The file has no name on disk, so that nothing remains of it if this process dies.
            stored = incoming.upload.as_it_is
            self._imports = self._imports or {}
            self._imports[stored.file_id] = self._incoming.pop(key)
        else:
            try:
                stored = await self._attach(incoming)
            except Exception as error:
                await self._fail(key, incoming.pending, error)
                return
            await self._drop(key)
        reply = FileStored(file_id=stored.file_id, size=stored.size, sha256=stored.sha256)
        incoming.pending.send(reply)

    async def _attach(self, incoming: _Incoming) -> StoredFile:
        # Looked up by id, because it may have been closed and reopened meanwhile, or deleted.
        conversation = await self._session_manager.get(incoming.session_id, incoming.user)
        conversation.activity.begin()  # a deletion waits for this
        try:
            stored = await incoming.upload.finish()
            fact = AttachmentEntry(
                file_id=stored.file_id,
                filename=incoming.announced.filename,
                size=stored.size,
                sha256=stored.sha256,
                content_type=incoming.announced.content_type,
            )
            try:
                await conversation.append_entry(fact)
            except RequestError:  # the entry was not written, so nothing refers to the file
                await self._services.files.remove(incoming.session_id, stored.file_id)
                raise
            path = self._services.files.path_of(incoming.session_id, stored.file_id)
            await self._services.kept_files.keep(
                incoming.session_id, stored.file_id, path, size=stored.size
            )
            self._services.quotas.file_stored(incoming.user, stored.size)
            return stored
        finally:
            conversation.activity.end()

    async def _fail(self, key: int, pending: PendingReply, error: Exception) -> None:
        await self._drop(key)
        self.swallow(key)
        pending.refuse(error_to_tell(error, log, "an upload failed"))

    async def _drop(self, key: int) -> None:
        incoming = self._incoming.pop(key, None)
        if incoming is not None:
            await incoming.stack.aclose()

    def _checked(self, announced: FileMetadata) -> FileMetadata:
        """Validates the announcement, and reduces the file name to its last part: the path on the
        client's disk is private."""
        last = PurePosixPath(PureWindowsPath(announced.filename).name).name
        if not last or last in (".", "..") or len(last) > 255 or not last.isprintable():
            raise RequestError(
                ErrorCode.MALFORMED,
                "a filename has no slashes and no control characters",
                field="filename",
            )
        bytes_max = self._services.limits.file_bytes_max
        if announced.size > bytes_max:
            raise RequestError(
                ErrorCode.TOO_LARGE,
                f"the file is too large: at most {bytes_max:,} bytes are taken",
                field="size",
            )
        if len(self._incoming) + len(self._imports or ()) >= _AT_ONCE_MAX:
            raise RequestError(
                ErrorCode.BUSY,
                f"at most {_AT_ONCE_MAX} files can be sent at a time; wait until one is stored",
            )
        return replace(announced, filename=last)
