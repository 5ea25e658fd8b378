"""JSON from outside: what is taken, what is refused, and in which words."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.outcomes import refusal_of

from nplt_protocol import (
    ErrorCode,
    JsonValue,
    LocalProtocolError,
    RequestError,
    WireLimits,
    dump_json,
    load_json,
)
from nplt_protocol.json_text import answer_value

LIMITS = WireLimits()


def refusal(payload: bytes, limits: WireLimits = LIMITS) -> str:
    with pytest.raises(RequestError) as caught:
        load_json(payload, limits)
    assert caught.value.code is ErrorCode.MALFORMED
    return caught.value.message


def nested(depth: int) -> bytes:
    return b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)


def test_an_empty_payload_is_an_empty_object() -> None:
    assert load_json(b"", LIMITS) == {}


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"{", "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":"\\ud800"}', "not valid JSON"),
        (b'{"a":"\xff"}', "not UTF-8 (at byte 6)"),
        (b"\xff\xfe", "not UTF-8 (at byte 0)"),
        (b"[]", "must be a JSON object, not a list"),
        (b'"text"', "must be a JSON object, not text"),
        (b"null", "must be a JSON object, not null"),
        (b"true", "must be a JSON object, not true or false"),
        (b"3", "must be a JSON object, not a whole number"),
        (b"3.5", "must be a JSON object, not a number with a fraction"),
        (b'{"a":1e999}', "not valid JSON"),
    ],
)
def test_a_payload_that_is_not_a_json_object_is_refused_with_a_reason(
    payload: bytes, words: str
) -> None:
    assert words in refusal(payload)


def test_json_is_accepted_up_to_the_depth_limit() -> None:
    assert load_json(nested(32), LIMITS)
    assert "32 levels" in refusal(nested(33))


def test_lists_count_towards_the_json_depth() -> None:
    assert "levels" in refusal(b'{"a":' + b"[" * 32 + b"]" * 32 + b"}")


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_hostile_nesting_is_refused_without_a_recursion_error(opening: bytes) -> None:
    assert refusal(opening * 100_000)
    assert refusal(
        b'{"a":' + opening * 900 + b"1" + (b"]" if opening == b"[" else b"}") * 900 + b"}"
    )


def test_json_keys_are_counted_over_the_whole_message() -> None:
    inner: dict[str, JsonValue] = {f"k{n}": n for n in range(998)}
    assert load_json(orjson.dumps({"a": inner, "b": 1}), LIMITS)
    assert "1,000 keys" in refusal(orjson.dumps({"a": inner, "b": 1, "c": 2}))


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
def test_an_integer_that_would_lose_digits_is_refused(number: int) -> None:
    assert "too large" in refusal(b'{"a":[%d]}' % number)


def test_64_bit_integers_are_exact() -> None:
    assert load_json(b'{"a":18446744073709551615}', LIMITS) == {"a": 2**64 - 1}


@given(st.binary(max_size=200))
def test_any_bytes_give_an_object_or_a_request_error(payload: bytes) -> None:
    error = refusal_of(lambda: load_json(payload, LIMITS))
    assert error is None or error.code is ErrorCode.MALFORMED


def test_encoding_a_value_without_json_is_a_local_protocol_error() -> None:
    with pytest.raises(LocalProtocolError):
        dump_json({"a": "\ud800"})


def items_in(value: object) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(items_in, value.values()))
    return len(value) + sum(map(items_in, value)) if isinstance(value, list) else 0


TEXTS = st.text(alphabet='",:[]{}\\ab é', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6),
    max_leaves=20,
)


@settings(max_examples=100)
@given(root=st.dictionaries(TEXTS, VALUES, max_size=6), items_max=st.integers(1, 20))
def test_json_is_refused_exactly_above_the_limit_of_items(
    root: dict[str, object], items_max: int
) -> None:
    limits = WireLimits(json_keys_max=items_max, json_depth_max=64)
    payload = json.dumps(root, ensure_ascii=False).encode()
    error = refusal_of(lambda: load_json(payload, limits))
    assert (error is not None) == (items_in(root) > items_max)


def test_an_answer_that_is_nested_too_deeply_is_not_json() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        answer_value("[" * 100_000)
