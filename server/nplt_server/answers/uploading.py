"""FILE_METADATA and FILE_DATA: a file comes in, byte for byte."""

from __future__ import annotations

from nplt_protocol.errors import RequestError
from nplt_protocol.requests import FileData, FileMetadata
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_server.presenters.base import Answer


async def file_metadata(
    premises: Premises, session: Session, request: FileMetadata, answer: Answer
) -> None:
    try:
        session_id = _home_of(session, request)
    except RequestError:
        session.uploads.swallow(answer.seq)
        raise
    await session.uploads.begin(request, answer, session_id=session_id, user=session.user)


def _home_of(session: Session, request: FileMetadata) -> str:
    if request.purpose == "import":
        return ""  # it belongs nowhere yet
    session.check_may_speak()
    return session.here().session_id


async def file_data(
    premises: Premises, session: Session, request: FileData, answer: Answer
) -> None:
    await session.uploads.add(request, answer)
