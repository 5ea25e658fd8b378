"""Files on their way in over one connection.

A file becomes an attachment of the conversation the connection stood in when
it was announced. If something goes wrong its remaining bytes are swallowed, so
that one mistake gives one error and not hundreds.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import PurePosixPath, PureWindowsPath

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.replies import FileStored
from nplt_protocol.requests import FileData, FileMetadata
from nplt_server.conversation import Conversation
from nplt_server.errors import as_request_error, internal_error
from nplt_server.presenters.base import Answer
from nplt_storage.attachments import AttachmentFiles, Upload
from nplt_storage.entries import AttachmentEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadLimits:
    file_bytes_max: int = 64 * 1024 * 1024
    at_once_max: int = 8


@dataclass(slots=True, kw_only=True)
class _Incoming:
    announced: FileMetadata
    answer: Answer
    conversation: Conversation
    missing: int
    filename: str = ""
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    upload: Upload | None = None
    """`None`: it failed; what still comes of it is swallowed."""

    def fail(self, error: Exception) -> None:
        self.upload = None
        self.answer.refuse(as_request_error(error) or internal_error())


class Uploads:
    __slots__ = ("_files", "_incoming", "_limits")

    def __init__(self, files: AttachmentFiles, limits: UploadLimits) -> None:
        self._files = files
        self._limits = limits
        self._incoming: dict[int, _Incoming] = {}

    async def begin(
        self, announced: FileMetadata, answer: Answer, conversation: Conversation
    ) -> None:
        await self._drop(answer.seq)
        incoming = self._incoming[answer.seq] = _Incoming(
            announced=announced, answer=answer, conversation=conversation, missing=announced.size
        )
        try:
            incoming.filename = checked_filename(announced.filename)
            self._check(announced)
            receiving = self._files.receive(conversation.session_id, size=announced.size)
            incoming.upload = await incoming.stack.enter_async_context(receiving)
        except Exception as error:
            incoming.fail(error)
        if not announced.size:
            await self._finish(answer.seq, incoming)

    async def add(self, data: FileData, answer: Answer) -> None:
        incoming = self._incoming.get(answer.seq)
        if incoming is None:
            raise RequestError(
                ErrorCode.MALFORMED, "FILE_DATA without a FILE_METADATA before it", field="seq"
            )
        if len(data.data) > incoming.missing:
            await self._drop(answer.seq)
            problem = "more bytes came than were announced"
            incoming.fail(RequestError(ErrorCode.MALFORMED, problem, field="size"))
            return
        incoming.missing -= len(data.data)
        if incoming.upload is not None:
            try:
                await incoming.upload.write(data.data)
            except Exception as error:
                incoming.fail(error)
        if not incoming.missing:
            await self._finish(answer.seq, incoming)

    async def abandon(self) -> None:
        for key in tuple(self._incoming):
            await self._drop(key)

    async def _finish(self, key: int, incoming: _Incoming) -> None:
        try:
            if incoming.upload is not None:
                stored = await incoming.upload.finish()
                await incoming.conversation.write_fact(
                    AttachmentEntry(
                        file_id=stored.file_id,
                        filename=incoming.filename,
                        size=stored.size,
                        sha256=stored.sha256,
                        content_type=incoming.announced.content_type,
                    )
                )
                incoming.answer.give(
                    FileStored(file_id=stored.file_id, size=stored.size, sha256=stored.sha256)
                )
        except Exception as error:
            incoming.fail(error)
        finally:
            await self._drop(key)

    async def _drop(self, key: int) -> None:
        incoming = self._incoming.pop(key, None)
        if incoming is not None:
            await incoming.stack.aclose()

    def _check(self, announced: FileMetadata) -> None:
        if announced.size > self._limits.file_bytes_max:
            raise RequestError(
                ErrorCode.TOO_LARGE,
                f"a file may have {self._limits.file_bytes_max} bytes",
                field="size",
            )
        under_way = sum(1 for other in self._incoming.values() if other.upload is not None)
        if under_way >= self._limits.at_once_max:
            raise RequestError(
                ErrorCode.BUSY, f"at most {self._limits.at_once_max} files at a time"
            )


def checked_filename(name: str) -> str:
    """Its last part: where a file lay on someone else's disk is not our business."""
    last = PurePosixPath(PureWindowsPath(name).name).name
    if not last or last in (".", "..") or len(last) > 255 or not last.isprintable():
        raise RequestError(
            ErrorCode.MALFORMED, "filename must be a printable name of a file", field="filename"
        )
    return last
