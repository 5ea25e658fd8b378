"""JSON bytes to values and back, within limits.

Everything from outside is parsed by orjson, which refuses bad UTF-8, lone
surrogates, NaN and nesting beyond its own bound; what it would let through
and we don't want (deep nesting, too many keys, whole numbers too large for 64
bits, which it quietly turns into floats) is looked for without recursion.
"""

from __future__ import annotations

import orjson

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import LocalProtocolError, RequestError
from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_protocol.limits import WireLimits

NUMBER_MAGNITUDE_MAX = 2.0**63
"""Beyond this a float may be a whole number that lost its last digits."""


def load_json(payload: bytes, limits: WireLimits) -> JsonObject:
    """A message's JSON object; an empty payload means `{}`."""
    if not payload:
        return {}
    try:
        value: JsonValue = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise _malformed(_complaint(payload, error)) from None
    if not isinstance(value, dict):
        raise _malformed(f"The payload must be a JSON object, not {kind(value)}.")
    _check_within(value, limits)
    return value


def dump_json(value: JsonObject) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        # orjson names the kind of fault (a lone surrogate, a huge number), not the value.
        raise LocalProtocolError(f"a value can't be written as JSON: {error}") from None


def decode_text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            ErrorCode.MALFORMED, f"The text is not UTF-8 (at byte {error.start}).", field="text"
        ) from None


def kind(value: JsonValue) -> str:
    """What a person would call it, for error sentences."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number with a fraction"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"


def _complaint(payload: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        payload.decode()
    except UnicodeDecodeError as bad_text:
        return f"The payload is not UTF-8 (at byte {bad_text.start})."
    return f"The payload is not valid JSON: {error}."


def _check_within(root: JsonObject, limits: WireLimits) -> None:
    keys = 0
    level: list[JsonObject | list[JsonValue]] = [root]
    depth = 0
    while level:
        depth += 1
        if depth > limits.json_depth_max:
            raise _malformed(f"The JSON is nested deeper than {limits.json_depth_max} levels.")
        inner: list[JsonObject | list[JsonValue]] = []
        for container in level:
            if isinstance(container, dict):
                keys += len(container)
            for value in container.values() if isinstance(container, dict) else container:
                if isinstance(value, (dict, list)):
                    inner.append(value)
                elif isinstance(value, float) and abs(value) >= NUMBER_MAGNITUDE_MAX:
                    raise _malformed("A number in the JSON is too large.")
        if keys > limits.json_keys_max:
            raise _malformed(f"The JSON holds more than {limits.json_keys_max:,} keys.")
        level = inner


def _malformed(sentence: str) -> RequestError:
    return RequestError(ErrorCode.MALFORMED, sentence)
