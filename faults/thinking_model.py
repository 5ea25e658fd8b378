"""A model that thinks, answers, and calls two tools of the client, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio

from nplt_server.context.messages import ModelInputMessage
from nplt_server.providers import LlmRequest, ReasoningPiece, Stopped, TextPiece, ToolCallPiece
from nplt_server.providers.offline import Piece

TOOLS = ("look", "listen")
_PIECE_SECONDS = 0.004


async def answer(request: LlmRequest) -> AsyncIterator[Piece]:
    last = next(m for m in reversed(request.context) if isinstance(m, ModelInputMessage))
    for word in words(last.content):
        yield ReasoningPiece(text=word)
        await anyio.sleep(_PIECE_SECONDS)
    for word in words(last.content):
        yield TextPiece(text=word)
        await anyio.sleep(_PIECE_SECONDS)
    for index, name in enumerate(TOOLS):
        yield ToolCallPiece(index=index, tool_name=name, arguments=arguments(last.content))
    yield Stopped(reason="tool_calls")


def words(prompt: str) -> list[str]:
    """The pieces of its reasoning and of its text; some characters take several bytes."""
    return [f"{prompt} {number} “é😀” " for number in range(40)]


def arguments(prompt: str) -> str:
    return f'{{"what": "{prompt}"}}'
