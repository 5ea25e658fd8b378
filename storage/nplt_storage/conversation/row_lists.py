"""Lists of conversations: what can be asked for, in which order, page by page.

Pinned ones on top, then the newest first. A cursor is the place of a page's
last row, so that a list can be walked while conversations move in it: what was
touched meanwhile is at the top, and nothing else is met twice or left out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

import orjson

from nplt_storage.conversation.rows import ConversationRow

Place: TypeAlias = tuple[bool, datetime, str]


class BadCursor(ValueError):
    """Not a cursor of this list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuery:
    """Every condition that is given must hold; `archived=None` is both kinds."""

    limit: int = 50
    cursor: str | None = None
    archived: bool | None = None
    name_has: str | None = None
    name_is: str | None = None
    id_prefix: str | None = None
    unfinished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPage:
    rows: tuple[ConversationRow, ...]
    next_cursor: str | None = None


def place_of(row: ConversationRow) -> Place:
    return (row.pinned, row.updated_at, row.session_id)


def matches(row: ConversationRow, query: RowQuery) -> bool:
    return (
        (query.archived is None or row.archived == query.archived)
        and (query.name_has is None or query.name_has.casefold() in row.name.casefold())
        and (query.name_is is None or row.name == query.name_is)
        and (query.id_prefix is None or row.session_id.startswith(query.id_prefix))
        and (bool(row.unfinished) or not query.unfinished)
    )


def page_of(rows: Iterable[ConversationRow], query: RowQuery) -> RowPage:
    """The page, from rows in any order."""
    wanted = sorted((row for row in rows if matches(row, query)), key=place_of, reverse=True)
    if query.cursor is not None:
        last = read_cursor(query.cursor)
        wanted = [row for row in wanted if place_of(row) < last]
    return cut_page(wanted, query.limit)


def cut_page(rows: list[ConversationRow], limit: int) -> RowPage:
    """From rows in order, one more than fits if there is more."""
    page = tuple(rows[:limit])
    more = len(rows) > limit and page
    return RowPage(rows=page, next_cursor=write_cursor(page[-1]) if more else None)


def write_cursor(row: ConversationRow) -> str:
    pinned, updated_at, session_id = place_of(row)
    place = orjson.dumps([pinned, updated_at.isoformat(), session_id])
    return base64.urlsafe_b64encode(place).decode()


def read_cursor(cursor: str) -> Place:
    try:
        pinned, updated_at, session_id = orjson.loads(base64.urlsafe_b64decode(cursor))
        return bool(pinned), datetime.fromisoformat(updated_at).astimezone(UTC), str(session_id)
    except (binascii.Error, ValueError, TypeError):
        raise BadCursor("a cursor is the next_cursor of this list") from None
