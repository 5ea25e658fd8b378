"""Making one message fit where it does not.

Texts are cut at a code point, all at the same length, so that a long answer
does not push its tool results out altogether. What was cut says so:
`"truncated": true` and the `"size"` of the whole text in code points, which is
what a reader needs to ask for the rest. If texts are not the reason it is too
large, the largest other parts go, one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from nplt_storage.facts.json_values import JsonObject

_TEXTS = ("content", "reasoning", "screen")
_TEXTS_OF_CALLS = ("result", "raw_arguments")
_DISPENSABLE = (
    *("sections", "parts", "error", "usage", "options", "attachments", "metadata", "tool_calls"),
    "state",  # a widget's, a checkpoint's; that of an answer is a word and stays
)


def size_as_json(message: JsonObject) -> int:
    return len(orjson.dumps(message))


def cut_to_fit(
    message: JsonObject, size_max: int, size: Callable[[JsonObject], int] = size_as_json
) -> JsonObject:
    """The message itself if it fits; else as much of it as does. If not even an
    empty one fits, that is given all the same: a reader must get past it."""
    if size(message) <= size_max:
        return message
    bare = message
    for bare in _ever_barer(message):
        if size(cut_texts(bare, 0)) <= size_max:
            return _longest_cut(bare, size_max, size)
    return cut_texts(bare, 0)


def cut_texts(message: JsonObject, length: int) -> JsonObject:
    """Every text in it at most that long, marked where something is missing."""
    cut: dict[str, Any] = dict(message)
    content = cut.get("content")
    whole = len(content) if isinstance(content, str) else 0
    for name in _TEXTS:
        if isinstance(cut.get(name), str):
            cut[name] = cut[name][:length]
    if isinstance(cut.get("tool_calls"), list):
        cut["tool_calls"] = [_cut_call(call, length) for call in cut["tool_calls"]]
    return cut | {"truncated": True, "size": whole}


def _cut_call(call: Any, length: int) -> Any:
    if not isinstance(call, dict):
        return call
    cut = dict(call)
    for name in _TEXTS_OF_CALLS:
        text = cut.get(name)
        if isinstance(text, str) and len(text) > length:
            cut[name] = text[:length]
            if name == "result":
                cut |= {"truncated": True, "size": len(text)}
    return cut


def _ever_barer(message: JsonObject) -> list[JsonObject]:
    without_arguments: dict[str, Any] = dict(message)
    if isinstance(message.get("tool_calls"), list):
        without_arguments["tool_calls"] = [
            _bare_call(call) if isinstance(call, dict) else call
            for call in without_arguments["tool_calls"]
        ]
    steps: list[JsonObject] = [message, without_arguments]
    for name in _DISPENSABLE:
        barer = dict(steps[-1])
        if name in barer and not isinstance(barer[name], str):
            barer[name] = _nothing_like(barer[name])
            steps.append(barer)
    return steps


def _bare_call(call: JsonObject) -> JsonObject:
    without = {name: value for name, value in call.items() if name != "sections"}
    return without | {"arguments": {}, "truncated": True}


def _nothing_like(value: Any) -> Any:
    if isinstance(value, list):
        return []
    return {} if isinstance(value, dict) else None


def _longest_cut(
    message: JsonObject, size_max: int, size: Callable[[JsonObject], int]
) -> JsonObject:
    fits, too_long = 0, max(size_max, 0) + 1  # a code point takes at least a byte
    while too_long - fits > 1:
        length = (fits + too_long) // 2
        if size(cut_texts(message, length)) <= size_max:
            fits = length
        else:
            too_long = length
    return cut_texts(message, fits)
