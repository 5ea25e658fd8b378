"""FILE_METADATA and FILE_DATA: a file comes in, byte for byte."""

from __future__ import annotations

from nplt_protocol.requests import FileData, FileMetadata
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_server.presenters.base import Answer


async def file_metadata(
    premises: Premises, session: Session, request: FileMetadata, answer: Answer
) -> None:
    # What is to be imported belongs nowhere yet.
    session_id = "" if request.purpose == "import" else session.here().session_id
    await session.uploads.begin(request, answer, session_id=session_id, user=session.user)


async def file_data(
    premises: Premises, session: Session, request: FileData, answer: Answer
) -> None:
    await session.uploads.add(request, answer)
