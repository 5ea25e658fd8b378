"""A conversation as a small model sees it that knows nothing of tools. Pure.

Other models may have called some: what came of it is shown as if it had been said, and
the calls are not shown, because this model's template would show them as empty answers.
Where nobody told it who it is, a plain word does: with what its template says it talks of
other things, and in other languages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from nplt_server.context import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.providers.base import ModelRequest

_WHO_IT_IS: Final = SystemMessage(instruction="You are a helpful assistant.")


def in_plain_words(request: ModelRequest) -> ModelRequest:
    context = tuple(_plain(request.context))
    if not any(isinstance(message, SystemMessage) for message in context):
        context = (_WHO_IT_IS, *context)
    return replace(request, tools=(), context=context)


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
