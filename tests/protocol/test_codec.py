"""Messages: payloads to values and values to bytes, in the structured dialect."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.outcomes import refusal_of

from nplt_protocol import (
    REPLY_TYPES,
    ErrorCode,
    Frame,
    FrameDecoder,
    LocalProtocolError,
    MessageType,
    RequestError,
    WireLimits,
    decode_event,
    decode_reply,
    decode_request,
    encode_error,
    encode_event,
    encode_reply,
    encode_request,
    messages,
)
from nplt_protocol.messages import EVENT_TYPES

LIMITS = WireLimits()
ONLY_FROM_SERVERS = {MessageType.ERROR, MessageType.PONG, MessageType.DOWNLOAD_OFFER} | {
    code for code in EVENT_TYPES if code is not MessageType.ERROR
}


def frame_of(data: bytes) -> Frame:
    (frame,) = FrameDecoder().receive_data(data)
    return frame


def refusal(type_: int, payload: bytes, limits: WireLimits = LIMITS) -> RequestError:
    error = refusal_of(lambda: decode_request(type_, payload, limits))
    assert error is not None
    return error


def test_default_fields_of_a_request_are_not_encoded() -> None:
    assert frame_of(encode_request(messages.Prompt(text="hi"), 1)).payload == b'{"text":"hi"}'
    assert frame_of(encode_request(messages.SessionList(), 1)).payload == b""


def test_chat_text_decodes_to_a_prompt() -> None:
    assert decode_request(0x01, "grüß dich".encode(), LIMITS) == messages.Prompt(text="grüß dich")
    assert refusal(0x01, b" \n").field == "text"
    error = refusal(0x01, b"ab\xc3")
    assert (error.code, error.field) == (ErrorCode.MALFORMED, "text")
    assert "at byte 2" in error.message


def test_file_data_and_ping_payloads_are_raw_bytes() -> None:
    assert decode_request(0x0D, b"\xff\x00", LIMITS) == messages.FileData(data=b"\xff\x00")
    assert decode_request(0x04, b"\xff\x00", LIMITS) == messages.Ping(data=b"\xff\x00")


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff"])
def test_raw_bytes_are_sent_unchanged_even_if_they_are_empty_json(data: bytes) -> None:
    assert frame_of(encode_request(messages.Ping(data=data), 1)).payload == data
    assert frame_of(encode_request(messages.FileData(data=data), 1)).payload == data


@pytest.mark.parametrize("code", [0x00, 0x0B, 0x12, 0x22, 0x3A, 0x7F])
def test_an_unknown_type_is_unsupported_and_named(code: int) -> None:
    error = refusal(code, b"")
    assert error.code is ErrorCode.UNSUPPORTED
    assert f"0x{code:02X}" in error.message


@pytest.mark.parametrize("code", sorted(ONLY_FROM_SERVERS | {MessageType.CLIENT_NOTE}))
def test_types_that_only_servers_or_plain_clients_send_are_unsupported(code: MessageType) -> None:
    error = refusal(code, b"")
    assert error.code is ErrorCode.UNSUPPORTED
    assert code.name in error.message


def test_a_message_above_the_limit_is_too_large() -> None:
    limits = WireLimits(message_bytes_max=20)
    assert decode_request(0x01, b"x" * 20, limits) == messages.Prompt(text="x" * 20)
    assert refusal(0x01, b"x" * 21, limits).code is ErrorCode.TOO_LARGE
    assert decode_request(0x0D, bytes(21), limits) == messages.FileData(data=bytes(21))


@given(st.integers(0, 255), st.binary(max_size=60))
def test_any_payload_under_any_type_gives_a_request_or_a_refusal(
    type_: int, payload: bytes
) -> None:
    refusal_of(lambda: decode_request(type_, payload, LIMITS))


def test_every_request_but_file_data_and_client_note_has_a_reply() -> None:
    requests = {*messages.REQUEST_TYPES, MessageType.CHAT_TEXT}
    assert set(REPLY_TYPES) == requests - {MessageType.FILE_DATA, MessageType.CLIENT_NOTE}


def test_a_reply_can_be_decoded_by_its_own_type_too() -> None:
    pong = messages.Pong(data=b"x")
    assert encode_reply(MessageType.PONG, 1, pong) == encode_reply(MessageType.PING, 1, pong)


def test_a_message_range_is_distinguished_from_a_history_page_by_its_content() -> None:
    part = messages.MessageRange(session_id="s", seq=4, offset=0, content="abc", size=3)
    frame = frame_of(encode_reply(MessageType.HISTORY_REQUEST, 1, part))
    assert decode_reply(MessageType.HISTORY_REQUEST, frame.type, frame.payload) == part


def test_a_reply_of_a_type_without_replies_is_refused() -> None:
    with pytest.raises(RequestError, match="is no reply to PROMPT"):
        decode_reply(MessageType.PROMPT, MessageType.ATTACH, b"{}")


def test_an_unknown_event_type_decodes_to_none() -> None:
    assert decode_event(0x2A, b"\xff") is None


def test_a_history_page_with_thousands_of_json_keys_is_decoded() -> None:
    page = messages.HistoryPage(
        session_id="s",
        name="n",
        message_count=200,
        head_seq=200,
        messages=tuple({f"k{key}": key for key in range(20)} for _ in range(200)),
        page=messages.PageEdges(has_more_before=False, has_more_after=False, before=1, after=200),
    )
    data = encode_reply(MessageType.HISTORY_REQUEST, 1, page)
    frame = frame_of(data)
    assert decode_reply(MessageType.HISTORY_REQUEST, frame.type, frame.payload) == page


def test_an_error_carries_its_code_its_field_and_its_details() -> None:
    error = RequestError(
        ErrorCode.AMBIGUOUS, "Which one?", field="session_id", details={"candidates": ["a", "b"]}
    )
    frame = frame_of(encode_error(9, error, "s1"))
    assert (frame.type, frame.seq) == (0x03, 9)
    assert orjson.loads(frame.payload) == {
        "code": "ambiguous",
        "message": "Which one?",
        "field": "session_id",
        "retryable": False,
        "session_id": "s1",
        "candidates": ["a", "b"],
    }


def test_an_error_says_whether_it_is_retryable() -> None:
    frame = frame_of(encode_error(0, RequestError(ErrorCode.BUSY, "Later.", retry_after=2.5)))
    report = decode_event(frame.type, frame.payload)
    assert report == messages.ErrorReport(
        code="busy", message="Later.", retryable=True, retry_after=2.5
    )


def test_a_message_above_message_bytes_max_is_never_encoded() -> None:
    delta = messages.TextDelta(session_id="s", turn_id="t", call=0, offset=0, text="x" * 1000)
    assert encode_event(delta, message_bytes_max=2000)
    with pytest.raises(LocalProtocolError, match="1,000"):
        encode_event(delta, message_bytes_max=1000)
    with pytest.raises(LocalProtocolError, match="1,000"):
        encode_reply(MessageType.SEARCH, 1, {"a": "x" * 1000}, message_bytes_max=1000)
    with pytest.raises(LocalProtocolError, match="1,000"):
        encode_request(messages.Prompt(text="x" * 1000), 1, message_bytes_max=1000)
