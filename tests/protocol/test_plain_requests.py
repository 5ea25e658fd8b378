"""The plain dialect's requests, as version 2 clients send them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.outcomes import refusal_of

from nplt_protocol import (
    ErrorCode,
    LocalProtocolError,
    RequestError,
    WireLimits,
    decode_plain_request,
    encode_plain_request,
    messages,
)

LIMITS = WireLimits()


def decode(type_: int, payload: bytes = b"") -> messages.Request:
    return decode_plain_request(type_, payload, LIMITS)


def refusal(type_: int, payload: bytes = b"") -> RequestError:
    error = refusal_of(lambda: decode(type_, payload))
    assert error is not None
    return error


@pytest.mark.parametrize(
    ("type_", "payload", "request_"),
    [
        (0x01, "查看CPU".encode(), messages.Prompt(text="查看CPU")),
        (0x01, b"  spaces stay  ", messages.Prompt(text="  spaces stay  ")),
        (0x01, b"/model openai/gpt-5.2", messages.ModelSwitch(model="openai/gpt-5.2")),
        (0x01, b" /model  x \n", messages.ModelSwitch(model="x")),
        (0x01, b"/model", messages.Prompt(text="/model")),
        (0x01, b"/models x", messages.Prompt(text="/models x")),
        (0x01, b"/model a b", messages.Prompt(text="/model a b")),
        (0x0D, b"\x00\xff", messages.FileData(data=b"\x00\xff")),
        (0x0E, b'{"filename":"a.txt","size":3}', messages.FileMetadata(filename="a.txt", size=3)),
        (0x0F, b'{"model":"m"}', messages.ModelSwitch(model="m")),
        (0x0F, b"", messages.ModelSwitch()),
        (0x10, b"", messages.HistoryRequest()),
        (0x10, b"5", messages.HistoryRequest(limit=5)),
        (0x10, b" 5\n", messages.HistoryRequest(limit=5)),
        (0x10, b'{"limit":5,"before":9}', messages.HistoryRequest(limit=5, before=9)),
        (0x11, b"", messages.ClearRequest()),
        (0x14, b"", messages.SessionList()),
        (0x15, b'{"session_id":"abc"}', messages.SessionSwitch(session_id="abc")),
        (0x16, b"", messages.SessionNew()),
        (0x16, b'{"name":"notes"}', messages.SessionNew(name="notes")),
        (0x17, b'{"session_id":"abc"}', messages.SessionDelete(session_id="abc")),
        (0x18, b'{"udp_port":9998}', messages.ClientNote(udp_port=9998)),
        (0x18, b'{"model":"m"}', messages.ModelSwitch(model="m")),
        (0x18, b"", messages.ClientNote()),
    ],
)
def test_requests_of_version_2_clients_are_decoded(
    type_: int, payload: bytes, request_: messages.Request
) -> None:
    assert decode(type_, payload) == request_


@pytest.mark.parametrize("type_", [0x00, 0x02, 0x04, 0x07, 0x19, 0x1E, 0x81, 0x96, 0xFF])
def test_types_that_version_2_does_not_have_are_unsupported(type_: int) -> None:
    assert refusal(type_).code is ErrorCode.UNSUPPORTED


@pytest.mark.parametrize(
    ("type_", "payload", "field"),
    [
        (0x01, b"", "text"),
        (0x01, b" \n ", "text"),
        (0x01, b"\xff", "text"),
        (0x0E, b'{"filename":"a"}', "size"),
        (0x15, b"", "session_id"),
        (0x15, b"abc", None),
        (0x17, b'{"session_id":" "}', "session_id"),
        (0x18, b'{"model":7}', "model"),
    ],
)
def test_a_bad_payload_is_malformed_and_the_field_is_named(
    type_: int, payload: bytes, field: str | None
) -> None:
    error = refusal(type_, payload)
    assert (error.code, error.field) == (ErrorCode.MALFORMED, field)


@given(st.integers(0, 255), st.binary(max_size=60))
def test_any_payload_under_any_type_gives_a_request_or_a_refusal(
    type_: int, payload: bytes
) -> None:
    refusal_of(lambda: decode(type_, payload))


@pytest.mark.parametrize("text", ["", " ", "HEARTBEAT"])
def test_a_blank_or_heartbeat_prompt_is_not_sent_in_plain(text: str) -> None:
    with pytest.raises(LocalProtocolError):
        encode_plain_request(messages.Prompt(text=text), 0)


def test_a_request_without_a_plain_type_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="no StatusRequest"):
        encode_plain_request(messages.StatusRequest(), 0)
