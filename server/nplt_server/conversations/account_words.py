"""What is said in the rows of a context's account, as it is or cut to a size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import orjson

from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)

_TEXT_BYTES_MIN: Final = 200
"""What is cut shorter says nothing."""
_AROUND_TEXT_BYTES: Final = 200
"""Names and numbers beside a text."""


def fair_share(sizes: Sequence[int], room: int) -> int:
    """How large each may be at most so that all have room; short ones leave theirs."""
    room -= _AROUND_TEXT_BYTES * len(sizes)
    for place, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - place)
        if size > share:
            return max(_TEXT_BYTES_MIN, share)
        room -= size
    return max(_TEXT_BYTES_MIN, *sizes) if sizes else _TEXT_BYTES_MIN


def text_sizes(message: ContextMessage | None) -> Iterator[int]:
    match message:
        case None:
            return
        case SystemMessage():
            yield _text_size(message.instruction)
        case ModelInputMessage():
            yield _text_size(message.text) + len(orjson.dumps(_attached(message)))
        case ModelOutputMessage():
            yield _text_size(message.content)
            for call in message.tool_calls:
                yield _text_size(call.raw_arguments)
        case ToolResultsMessage():
            yield from map(_text_size, message.texts)


def _text_size(text: str) -> int:
    return len(orjson.dumps(text)) + 5 * text.count("[")


def said_in(message: ContextMessage | None, bytes_max: int | None) -> JsonObject:
    match message:
        case None:
            return {}
        case SystemMessage():
            return _cut("content", message.instruction, bytes_max)
        case ModelInputMessage():
            told = _cut("content", message.text, bytes_max)
            if message.attachments:
                told["attachments"] = _attached(message)
            return told
        case ModelOutputMessage():
            calls: list[JsonValue] = [
                {
                    "tool_name": call.tool_name,
                    "tool_call_id": call.tool_call_id,
                    **_cut("arguments", call.raw_arguments, bytes_max),
                }
                for call in message.tool_calls
            ]
            said = _cut("content", message.content, bytes_max)
            if calls:
                said["tool_calls"] = calls
            return said
        case ToolResultsMessage():
            results: list[JsonValue] = [
                {
                    "tool_name": result.tool_name,
                    "tool_call_id": result.tool_call_id,
                    "status": result.status,
                    **_cut("result", text, bytes_max),
                }
                for result, text in zip(message.results, message.texts, strict=True)
            ]
            return {"results": results}


def _attached(message: ModelInputMessage) -> list[JsonValue]:
    return [
        {
            "filename": one.name,
            "content_type": one.content_type,
            **({"reason": one.reason} if one.reason else {}),
        }
        for one in message.attachments
    ]


def _cut(name: str, text: str, bytes_max: int | None) -> JsonObject:
    if bytes_max is None or len(text) * 6 <= bytes_max:
        return {name: text}
    size = _text_size(text)
    if size <= bytes_max:
        return {name: text}
    return {name: text[: len(text) * bytes_max // size], "truncated": True, "size": len(text)}
