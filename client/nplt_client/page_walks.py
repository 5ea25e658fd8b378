"""What comes in pages or pieces, asked for until there is no more of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

from nplt_client.walking import Walk
from nplt_protocol.replies import (
    FilePiece,
    Reply,
    SearchHit,
    SearchHits,
    SessionRow,
    SessionRows,
)
from nplt_protocol.requests import FileGet, Request, Search, SessionList

R = TypeVar("R", bound=Reply)

_ROWS_PER_PAGE = 100


class Call(Protocol):
    """One request, and its one reply."""

    async def __call__(self, request: Request, expected: type[R], /) -> R: ...


async def all_sessions(call: Call, query: str | None) -> AsyncIterator[SessionRow]:
    walk, cursor = Walk(), None
    while True:
        request = SessionList(query=query, cursor=cursor, limit=_ROWS_PER_PAGE)
        page = await call(request, SessionRows)
        for row in page.sessions:
            yield row
        cursor = walk.on(page.next_cursor)
        if cursor is None:
            return


async def all_hits(call: Call, query: str) -> AsyncIterator[SearchHit]:
    walk, cursor = Walk(), None
    while True:
        page = await call(Search(query=query, cursor=cursor), SearchHits)
        for hit in page.hits:
            yield hit
        cursor = walk.on(page.next_cursor)
        if cursor is None:
            return


async def whole_file(call: Call, file_id: str, session_id: str | None) -> bytes:
    pieces: list[bytes] = []
    offset = 0
    while True:
        request = FileGet(file_id=file_id, session_id=session_id, offset=offset)
        piece = (await call(request, FilePiece)).data
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        offset += len(piece)
