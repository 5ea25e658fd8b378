"""SEARCH: names first, then what was said, page by page.

A cursor says in which of the two it stands, and where.
"""

from __future__ import annotations

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.replies import SearchHit, SearchHits
from nplt_protocol.requests import Search
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_server.conversations.library import Library
from nplt_server.presenters.base import Answer
from nplt_storage.conversation import searching
from nplt_storage.conversation.row_lists import BadCursor, RowQuery
from nplt_storage.conversation.rows import ConversationRow

_HITS_MAX = 100
_HIT_BYTES_MAX = 4_096
_NAMES, _SAID = "n", "s"


async def search(premises: Premises, session: Session, request: Search, answer: Answer) -> None:
    hits_max = min(_HITS_MAX, premises.household.limits.message_bytes_max // _HIT_BYTES_MAX)
    limit = min(request.limit, hits_max)
    cursor = request.cursor or _NAMES
    try:
        hits, next_cursor = await _page(
            premises.household.library, session.user, request.query, limit=limit, cursor=cursor
        )
    except BadCursor:
        raise RequestError(
            ErrorCode.MALFORMED, "cursor must be a next_cursor of this search", field="cursor"
        ) from None
    answer.give(SearchHits(hits=tuple(hits), next_cursor=next_cursor))


async def _page(
    library: Library, user: str, query: str, *, limit: int, cursor: str
) -> tuple[list[SearchHit], str | None]:
    part, place = cursor[:1], cursor[1:] or None
    hits: list[SearchHit] = []
    if part == _NAMES:
        named = await library.list(
            user, RowQuery(name_has=query.strip(), limit=limit, cursor=place)
        )
        hits = [_by_name(row) for row in named.rows]
        if named.next_cursor is not None:
            return hits, _NAMES + named.next_cursor
        if len(hits) == limit:
            return hits, _SAID
        place = None
    elif part != _SAID:
        raise BadCursor("a cursor begins with what it is a cursor of")
    said = await library.search(
        user, searching.SearchQuery(text=query, limit=limit - len(hits), cursor=place)
    )
    hits += [_by_words(hit) for hit in said.hits]
    return hits, None if said.next_cursor is None else _SAID + said.next_cursor


def _by_name(row: ConversationRow) -> SearchHit:
    return SearchHit(
        session_id=row.session_id,
        name=row.name,
        seq=0,
        role="name",
        snippet=row.preview,
        timestamp=row.updated_at.isoformat(),
    )


def _by_words(hit: searching.SearchHit) -> SearchHit:
    return SearchHit(
        session_id=hit.session_id,
        name=hit.name,
        seq=hit.seq,
        role=hit.role,
        snippet=hit.snippet,
        timestamp=hit.timestamp.isoformat(),
    )
