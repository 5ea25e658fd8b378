"""Texts and arguments as they can be sent: writable, of JSON, not too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from nplt_server.clean_text import clean_text
from nplt_server.detail.cut import cut
from nplt_server.providers.compiling.compiled import RepairCode
from nplt_storage.facts.json_values import JsonValue
from nplt_storage.facts.tool_calls import ToolCallRequest

UNPARSED: Final = "_unparsed"
"""The name under which a model is shown again what it wrote instead of an object."""
_DEPTH_MAX: Final = 64


def is_blank(text: str) -> bool:
    return not text or text.isspace()


def sendable(text: str, characters_max: int) -> tuple[str, tuple[RepairCode, ...]]:
    """The text, and what had to be done to it."""
    clean = text if text.isascii() else clean_text(text)
    if "\0" in clean:  # valid JSON, and yet more than one server chokes on it
        clean = clean.replace("\0", "\ufffd")
    if len(clean) > characters_max:
        short = cut(clean, characters_max)
        return short, ("cut",) if clean is text else ("surrogates", "cut")
    return clean, () if clean is text else ("surrogates",)


def sendable_arguments(
    call: ToolCallRequest, characters_max: int
) -> tuple[str, tuple[RepairCode, ...]]:
    """Always a JSON object."""
    written, codes = (None, ()) if call.arguments is None else _as_json(call.arguments)
    if written is None:
        raw, codes = sendable(call.raw_arguments, characters_max)
        return _unparsed(raw, characters_max), ("arguments_repaired", *codes)
    if len(written) > characters_max:
        return _unparsed(written, characters_max), (*codes, "cut")
    return written, codes


def _as_json(arguments: Mapping[str, JsonValue]) -> tuple[str | None, tuple[RepairCode, ...]]:
    """`None`: that is no JSON."""
    written = _written(arguments)
    if written is not None and "\\u0000" not in written:
        return written, ()
    try:
        clean = _written(_clean(arguments, _DEPTH_MAX))
    except ValueError:
        return None, ()
    return clean, () if clean == written else ("surrogates",)


def _written(arguments: JsonValue | Mapping[str, JsonValue]) -> str | None:
    try:
        return orjson.dumps(arguments, default=_plain).decode()
    except TypeError:
        return None


def _clean(value: object, depth: int) -> JsonValue:
    if depth == 0:
        raise ValueError("nested too deeply")
    match value:
        case str():
            return sendable(value, len(value))[0]
        case Mapping():
            return {
                sendable(str(name), len(str(name)))[0]: _clean(inner, depth - 1)
                for name, inner in value.items()
            }
        case list() | tuple():
            return [_clean(inner, depth - 1) for inner in value]
        case bool() | int() | float() | None:
            return value
        case _:
            raise ValueError("no JSON")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def _unparsed(raw: str, characters_max: int) -> str:
    whole = orjson.dumps({UNPARSED: raw}).decode()
    if len(whole) <= characters_max:
        return whole
    # Escaped, a character takes up to six.
    room = (characters_max - len(UNPARSED) - len('{"":""}')) // 6
    return orjson.dumps({UNPARSED: cut(raw, room)}).decode()
