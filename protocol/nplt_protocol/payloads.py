"""Decodes payloads to JSON objects or text, within limits.

A received object is refused if it is not valid JSON (bad UTF-8, lone surrogates
and NaN included), is nested too deeply, or has too many keys and list elements,
or numbers that do not fit 64 bits. `codec` checks its fields.
"""

from __future__ import annotations

import msgspec

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.frames import WireLimits
from nplt_protocol.json_text import JsonObject, JsonValue, kind

INT_MIN, INT_MAX, FLOAT_MAX = -(2**63), 2**64 - 1, 2.0**63

_decode = msgspec.json.Decoder().decode


def load_json(payload: bytes, limits: WireLimits, *, keys_max: int | None = None) -> JsonObject:
    """Decodes a message's JSON object; an empty payload means `{}`. `keys_max`: the limit of keys
    and list elements, if it is not that of most messages."""
    if not payload:
        return {}
    keys_max = limits.json_keys_max if keys_max is None else keys_max
    if _has_too_many_items(payload, keys_max):
        raise _too_many(keys_max)
    try:
        value: JsonValue = _decode(payload)
    except RecursionError:
        raise _too_deep(limits) from None
    except ValueError as error:  # a DecodeError of msgspec, or UnicodeDecodeError
        try:
            payload.decode()
        except UnicodeDecodeError as bad_text:
            at = bad_text.start
            raise _malformed(f"The payload is not UTF-8 (at byte {at}).") from None
        raise _malformed(f"The payload is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise _malformed(f"The payload must be a JSON object, not {kind(value)}.")
    _check_within(value, limits, keys_max)
    return value


def decode_text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            ErrorCode.MALFORMED, f"The text is not UTF-8 (at byte {error.start}).", field="text"
        ) from None


def _has_too_many_items(payload: bytes, items_max: int) -> bool:
    """Counts without decoding, which takes a quarter of a second for a megabyte of `[],[],…`.
    True is certain, False is not: `_check_within` counts exactly."""
    if payload.count(b",") + payload.count(b"[") + payload.count(b"{") <= items_max:
        return False
    # The commas may be inside strings. Without escapes, every second piece between two
    # quotation marks is a string. An item has at most two strings: a key and a value.
    plain = payload.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * items_max:
        return True
    return sum(piece.count(b",") for piece in plain.split(b'"')[::2]) > items_max


def _check_within(root: JsonObject, limits: WireLimits, keys_max: int) -> None:
    """Walks the object level by level, without recursion. List elements count like keys; too
    many are refused before they are checked."""
    items = depth = 0
    level: list[JsonObject | list[JsonValue]] = [root]
    while level:
        depth += 1
        if depth > limits.json_depth_max:
            raise _too_deep(limits)
        inner: list[JsonObject | list[JsonValue]] = []
        for container in level:
            items += len(container)
            if items > keys_max:
                raise _too_many(keys_max)
            for value in container.values() if isinstance(container, dict) else container:
                if isinstance(value, str):
                    continue
                if isinstance(value, (dict, list)):
                    inner.append(value)
                elif value is not None and not _fits(value):
                    raise _malformed("A number in the JSON is too large.")
        level = inner


def _fits(number: float) -> bool:
    """Whether it fits 64 bits. A float beyond 2^63 may be an integer that lost digits."""
    if isinstance(number, int):
        return INT_MIN <= number <= INT_MAX
    return abs(number) < FLOAT_MAX


def _too_many(keys_max: int) -> RequestError:
    return _malformed(f"The JSON holds more than {keys_max:,} keys and list elements.")


def _too_deep(limits: WireLimits) -> RequestError:
    return _malformed(f"The JSON is nested deeper than {limits.json_depth_max} levels.")


def _malformed(sentence: str) -> RequestError:
    return RequestError(ErrorCode.MALFORMED, sentence)
