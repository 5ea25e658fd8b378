"""A conversation as a model sees it that knows nothing of tools. Pure.

Other models may have called some: what came of it is shown as if it had been said, and
the calls are not shown, because this model's template would show them as empty answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nplt_server.context import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    ToolResultsMessage,
)
from nplt_server.providers.base import ModelRequest


def without_tools(request: ModelRequest) -> ModelRequest:
    return replace(request, tools=(), context=tuple(_plain(request.context)))


def _plain(context: Sequence[ContextMessage]) -> Iterator[ContextMessage]:
    for message in context:
        match message:
            case ModelOutputMessage(tool_calls=(_, *_)):
                if message.content:
                    yield replace(message, tool_calls=(), parts=())
            case ToolResultsMessage():
                said = "\n".join(result.result for result in message.results)
                yield ModelInputMessage(
                    content=said, live_screen=message.live_screen, seq=message.seq
                )
            case _:
                yield message
