"""Which dialect a connection speaks, told by its first frame; and bytes that can't be framed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.fake_link import WELCOME
from tests.protocol.server_ends import BUSY, only
from tests.protocol.splits import cut, cut_points

from nplt_protocol import (
    HEADER,
    MORE,
    PLAIN_REQUESTS,
    ConnectionRefused,
    Dialect,
    Frame,
    FrameDecoder,
    MessageType,
    Received,
    RequestReceived,
    RequestRefused,
    ServerConnection,
    State,
    WireLimits,
    encode_frame,
    messages,
)

HELLO, PING, PONG, STATUS = (
    int(code)
    for code in (MessageType.HELLO, MessageType.PING, MessageType.PONG, MessageType.STATUS)
)
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(194)


def test_the_dialect_is_undecided_before_the_first_byte() -> None:
    connection = ServerConnection()
    assert connection.receive_data(b"") == []
    assert (connection.state, connection.dialect) == (State.UNDECIDED, None)


def test_hello_selects_the_structured_dialect_before_welcome() -> None:
    connection = ServerConnection()
    item = only(connection.receive_data(encode_frame(HELLO, 5)))
    assert item == RequestReceived(type=MessageType.HELLO, seq=5, request=messages.Hello())
    assert (connection.state, connection.dialect) == (State.AWAITING_WELCOME, Dialect.STRUCTURED)
    connection.send_welcome(5, WELCOME)
    assert connection.state is State.STRUCTURED


@pytest.mark.parametrize("code", sorted(PLAIN_REQUESTS))
def test_any_plain_type_selects_the_plain_dialect(code: MessageType) -> None:
    connection = ServerConnection()
    connection.receive_data(encode_frame(code, 0, b"{}"))
    assert (connection.state, connection.dialect) == (State.PLAIN, Dialect.PLAIN)


def test_any_other_first_byte_is_refused_at_once() -> None:
    for first in set(range(256)) - {HELLO, *PLAIN_REQUESTS}:
        connection = ServerConnection()
        assert isinstance(only(connection.receive_data(bytes([first]))), ConnectionRefused)
        assert connection.dialect is None


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n", b"POST /", b"SSH-2.0-x\r\n", b"\x00\x01"])
def test_another_protocol_is_refused_once_and_its_input_is_ignored(line: bytes) -> None:
    connection = ServerConnection()
    assert isinstance(only(connection.receive_data(line)), ConnectionRefused)
    assert connection.receive_data(encode_frame(HELLO, 1)) == []
    assert not connection.has_partial
    (words,) = FrameDecoder().receive_data(connection.send_text("go away"))
    assert words == Frame(0x01, 0, b"go away")


def test_a_tls_client_hello_is_not_decoded_as_a_plain_session_new() -> None:
    connection = ServerConnection()
    item = only(connection.receive_data(TLS_HELLO))
    assert isinstance(item, ConnectionRefused)
    assert "TLS" in item.reason


def test_a_plain_session_new_with_a_seq_like_tls_is_accepted() -> None:
    connection = ServerConnection()
    item = only(connection.receive_data(encode_frame(0x16, 0x0301, b"{}")))
    assert isinstance(item, RequestReceived)


def test_a_fragmented_hello_is_refused() -> None:
    item = only(ServerConnection().receive_data(HEADER.pack(HELLO | MORE, 1, 65_535)))
    assert item == ConnectionRefused(reason="HELLO is never fragmented.")


@given(st.binary(max_size=120), cut_points)
def test_no_structured_request_is_received_before_hello(data: bytes, cuts: list[int]) -> None:
    connection = ServerConnection()
    received = [item for piece in cut(data, cuts) for item in connection.receive_data(piece)]
    if connection.dialect is Dialect.STRUCTURED:
        assert data[0] == HELLO
        assert isinstance(received[0], RequestReceived | RequestRefused)
        assert received[0].type == HELLO


def test_too_large_a_frame_before_authentication_ends_receiving() -> None:
    connection = ServerConnection(WireLimits(frame_bytes_max=4_096))
    data = encode_frame(HELLO, 1) + HEADER.pack(0x07, 2, 4_097)
    hello, refusal = connection.receive_data(data)
    assert isinstance(hello, RequestReceived)
    assert isinstance(refusal, ConnectionRefused)
    assert "4,097" in refusal.reason
    assert connection.receive_data(encode_frame(STATUS, 3)) == []
    assert connection.send_error(0, BUSY)


def test_frame_bytes_max_is_raised_after_authentication() -> None:
    connection = ServerConnection(WireLimits(frame_bytes_max=4_096))
    connection.receive_data(encode_frame(HELLO, 1))
    connection.frame_bytes_max = 65_535
    connection.send_welcome(1, WELCOME)
    item = only(connection.receive_data(encode_frame(0x01, 2, b"x" * 5_000)))
    assert isinstance(item, RequestReceived)


first_frames = st.sampled_from([b"", encode_frame(HELLO, 1), encode_frame(0x01, 0, b"hi")])
some_frames = st.lists(
    st.builds(encode_frame, st.integers(0, 255), st.integers(0, 4), st.binary(max_size=30)),
    max_size=6,
).map(b"".join)


@given(first_frames, st.binary(max_size=60) | some_frames, cut_points, st.booleans())
def test_any_bytes_split_anywhere_are_received_the_same_and_raise_nothing(
    first: bytes, rest: bytes, cuts: list[int], welcome: bool
) -> None:
    def receive(pieces: list[bytes]) -> tuple[list[str], bytes, State]:
        connection = ServerConnection(WireLimits(frame_bytes_max=1_000))
        received = connection.receive_data(first)
        if welcome and connection.state is State.AWAITING_WELCOME:
            connection.send_welcome(1, WELCOME)
        for piece in pieces:
            received += connection.receive_data(piece)
        return [_reported(item) for item in received], connection.data_to_send(), connection.state

    assert receive([rest]) == receive(cut(rest, cuts))


def _reported(item: Received) -> str:
    match item:
        case RequestRefused():
            return f"{item.type} {item.seq} {item.error.code} {item.error.message}"
        case _:
            return repr(item)
