"""Handles requests about attachments: FILE_METADATA, FILE_DATA, FILE_GET.

A user may read only files of conversations that this user may see.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from nplt_protocol import ErrorCode, RequestError, messages
from nplt_server.connections.session import Session
from nplt_server.dialects import PendingReply
from nplt_server.tools import ToolFailed
from nplt_server.tools.mcp.results import McpFile

_PIECE_BYTES_MAX = 1024 * 1024
"""The largest part of a file in one reply."""


async def file_metadata(
    session: Session, request: messages.FileMetadata, pending: PendingReply
) -> None:
    session_id = ""
    if request.purpose != "import":  # an import belongs to no conversation yet
        try:
            session.check_may_speak()
            session_id = session.here().session_id
        except RequestError:
            session.uploads.swallow(pending.seq)
            raise
    data = b""
    if request.source is not None:
        found = await _fetched(session, request.source)
        data = found.data
        request = structs.replace(
            request, filename=found.filename, size=len(data), content_type=found.content_type
        )
    await session.uploads.begin(request, pending, session_id=session_id, user=session.user)
    if data:
        await session.uploads.add(messages.FileData(data=data), pending)


async def file_data(session: Session, request: messages.FileData, pending: PendingReply) -> None:
    await session.uploads.add(request, pending)


async def file_get(session: Session, request: messages.FileGet, pending: PendingReply) -> None:
    session_id = await _session_with_file(session, request.file_id, request.session_id)
    most = min(_PIECE_BYTES_MAX, session.server.services.limits.message_bytes_max)
    length = most if request.length is None else min(request.length, most)
    data = await session.server.services.files.read(
        session_id, request.file_id, offset=request.offset, length=length
    )
    pending.send(messages.FilePiece(data=data))


async def path_of_upload(session: Session, file_id: str) -> Path:
    """Returns the path of a file that was uploaded over this connection for import, or of an
    attachment."""
    upload = await session.uploads.import_named(file_id)
    if upload is not None:
        return upload
    return session.server.services.files.path_of(
        await _session_with_file(session, file_id, None), file_id
    )


async def _session_with_file(session: Session, file_id: str, session_id: str | None) -> str:
    """The conversation of this user that has the file."""
    files, here = session.server.services.files, session.conversation
    holder: str | None
    if session_id is not None:
        holder = await session.id_of(session_id)
    elif here is not None and await files.has(here.session_id, file_id):
        return here.session_id
    else:
        holder = await session.server.session_manager.with_file(file_id, session.user)
    if holder is None or not await files.has(holder, file_id):
        raise RequestError(ErrorCode.NOT_FOUND, f"there is no file {file_id!r}", field="file_id")
    return holder


async def _fetched(session: Session, source: str) -> McpFile:
    services = session.server.services
    server, slash, _ = source.removeprefix("mcp:").partition("/")
    if not source.startswith("mcp:") or not slash:
        raise RequestError(
            ErrorCode.MALFORMED, "a source is mcp:SERVER/RESOURCE; TOOLS lists them", field="source"
        )
    if services.tools.denies_server(server):
        raise RequestError(ErrorCode.FORBIDDEN, f"{server} is denied by the server's settings")
    try:
        return await services.mcp_servers.read(source)
    except ToolFailed as error:
        raise RequestError(ErrorCode.NOT_FOUND, str(error), field="source") from error
