"""FILE_GET, and whose a file is: only those of conversations this user may see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.replies import FilePiece
from nplt_protocol.requests import FileGet
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_server.presenters.base import Answer
from nplt_storage.ids import is_file_id

_PIECE_BYTES_MAX = 1024 * 1024


async def file_get(premises: Premises, session: Session, request: FileGet, answer: Answer) -> None:
    session_id = await _home_of(premises, session, request.file_id, request.session_id)
    most = min(_PIECE_BYTES_MAX, premises.household.limits.message_bytes_max)
    length = most if request.length is None else min(request.length, most)
    data = await premises.household.files.read(
        session_id, request.file_id, offset=request.offset, length=length
    )
    answer.give(FilePiece(data=data))


async def path_of_upload(premises: Premises, session: Session, file_id: str) -> Path:
    """Of one that came over this connection to be imported, or of any attachment."""
    upload = await session.uploads.import_named(file_id)
    if upload is not None:
        return upload
    return premises.household.files.path_of(
        await _home_of(premises, session, file_id, None), file_id
    )


async def _home_of(
    premises: Premises, session: Session, file_id: str, session_id: str | None
) -> str:
    """The conversation of this user that has the file."""
    files = premises.household.files
    async for candidate in _candidates(premises, session, file_id, session_id):
        if is_file_id(file_id) and await files.has(candidate, file_id):
            return candidate
    raise RequestError(ErrorCode.NOT_FOUND, f"there is no file {file_id!r}", field="file_id")


async def _candidates(
    premises: Premises, session: Session, file_id: str, session_id: str | None
) -> AsyncIterator[str]:
    if session_id is not None:
        if await premises.registry.find(session_id, session.user) is not None:
            yield session_id
        return
    if session.conversation is not None:
        yield session.conversation.session_id
    for holder in await premises.household.files.sessions_with(file_id):
        found = await premises.household.library.find(holder)
        if found is not None and found.row.user == session.user:
            yield holder
