"""`search_history`: what was said before, in any conversation of this user."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nplt_server.tools.base import Tool, ToolHost
from nplt_server.tools.typed import typed_tool
from nplt_storage.conversation.searching import SearchHit


def search_history_tool() -> Tool:
    return typed_tool(search_history)


async def search_history(
    host: ToolHost,
    query: Annotated[
        str,
        Field(
            min_length=1,
            max_length=500,
            description="words that must all stand in a message; the last may be a beginning",
        ),
    ],
    limit: Annotated[int, Field(ge=1, le=50, description="how many messages at most")] = 10,
) -> str:
    """Messages of this user's conversations that hold all of some words, newest first."""
    hits = await host.search(query, limit)
    return "\n".join(map(_line, hits)) or "nothing was found"


def _line(hit: SearchHit) -> str:
    name = _on_one_line(hit.name) or hit.session_id
    said = _on_one_line(hit.snippet)
    return f"{name} #{hit.seq} ({hit.role}, {hit.timestamp:%Y-%m-%d}): {said}"


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
