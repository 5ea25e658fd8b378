"""The server's end: numbers, fragments, pings, uploads, refusals; what it may send, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.fake_link import WELCOME
from tests.protocol.server_ends import BUSY, only, refused, structured
from tests.protocol.splits import cut, cut_points

from nplt_protocol import (
    HEADER,
    MORE,
    Dialect,
    ErrorCode,
    Frame,
    FrameDecoder,
    LocalProtocolError,
    MessageType,
    RequestReceived,
    RequestRefused,
    ServerConnection,
    State,
    WireLimits,
    encode_frame,
    encode_message,
    messages,
)

HELLO, PING, PONG, STATUS = (
    int(code)
    for code in (MessageType.HELLO, MessageType.PING, MessageType.PONG, MessageType.STATUS)
)


def test_requests_may_follow_hello_without_waiting() -> None:
    connection = ServerConnection()
    data = encode_frame(HELLO, 1) + encode_frame(STATUS, 2) + encode_frame(0x01, 3, b"hi")
    received = connection.receive_data(data)
    assert [item.seq for item in received if isinstance(item, RequestReceived)] == [1, 2, 3]
    assert connection.open_requests == 3


def test_a_ping_before_welcome_is_left_to_the_owner() -> None:
    connection = ServerConnection()
    _, ping = connection.receive_data(encode_frame(HELLO, 1) + encode_frame(PING, 2, b"x"))
    assert ping == RequestReceived(type=MessageType.PING, seq=2, request=messages.Ping(data=b"x"))
    assert connection.data_to_send() == b""
    connection.send_welcome(1, WELCOME)
    data = connection.send_reply(MessageType.PING, 2, messages.Pong(data=b"x"))
    assert data == encode_frame(PONG, 2, b"x")


@given(st.lists(st.tuples(st.integers(0, 0xFFFF), st.binary(max_size=9)), max_size=9), cut_points)
def test_pings_get_pongs_at_once_in_order_with_their_own_payload(
    pings: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    connection = structured()
    data = b"".join(encode_frame(PING, seq, payload) for seq, payload in pings)
    assert [item for piece in cut(data, cuts) for item in connection.receive_data(piece)] == []
    pongs = b"".join(encode_frame(PONG, seq, payload) for seq, payload in pings)
    assert connection.data_to_send() == pongs
    assert connection.data_to_send() == b""
    assert connection.open_requests == 0


def test_a_fragmented_ping_gets_a_fragmented_pong() -> None:
    connection = structured()
    assert connection.receive_data(encode_message(PING, 3, bytes(70_000))) == []
    assert connection.data_to_send() == encode_message(PONG, 3, bytes(70_000))


def test_a_pong_is_ignored() -> None:
    connection = structured()
    assert connection.receive_data(encode_frame(PONG, 0, b"x")) == []


def test_a_bad_payload_is_refused_under_its_seq_and_the_connection_stays_open() -> None:
    connection = structured()
    item = refused(connection.receive_data(encode_frame(MessageType.PROMPT, 4, b"{")))
    assert (item.seq, item.error.code) == (4, ErrorCode.MALFORMED)
    connection.send_error(4, item.error)
    assert isinstance(only(connection.receive_data(encode_frame(STATUS, 4))), RequestReceived)


def test_a_refusal_that_waits_keeps_no_frames_or_payloads_alive() -> None:
    for payload in (b"{", b'{"text":7}', b"\xff"):
        item = refused(structured().receive_data(encode_frame(MessageType.PROMPT, 4, payload)))
        assert item.error.__traceback__ is None
        assert item.error.__context__ is None


@pytest.mark.parametrize("code", [0x0B, 0x03, 0x21, 0x18, 0x7F])
def test_a_type_that_is_no_request_is_unsupported(code: int) -> None:
    item = refused(structured().receive_data(encode_frame(code, 4)))
    assert (item.type, item.seq, item.error.code) == (code, 4, ErrorCode.UNSUPPORTED)


def test_a_request_needs_a_seq() -> None:
    item = refused(structured().receive_data(encode_frame(STATUS, 0)))
    assert (item.seq, item.error.code, item.error.field) == (0, ErrorCode.MALFORMED, "seq")


def test_the_seq_of_a_request_without_a_reply_cannot_be_used_again() -> None:
    connection = structured()
    first, second = connection.receive_data(encode_frame(STATUS, 9) * 2)
    assert isinstance(first, RequestReceived)
    assert isinstance(second, RequestRefused)
    assert (second.seq, second.error.field) == (0, "seq")
    connection.send_error(9, BUSY)
    assert isinstance(only(connection.receive_data(encode_frame(STATUS, 9))), RequestReceived)


def test_an_upload_keeps_its_seq_until_its_reply() -> None:
    connection = structured()
    upload = encode_frame(0x0E, 5, b'{"filename":"a","size":4}')
    pieces = encode_frame(0x0D, 5, b"ab") + encode_frame(0x0D | MORE, 5, b"cd")
    _, one, two = connection.receive_data(upload + pieces)
    assert one == RequestReceived(
        type=MessageType.FILE_DATA, seq=5, request=messages.FileData(data=b"ab")
    )
    assert two == RequestReceived(
        type=MessageType.FILE_DATA, seq=5, request=messages.FileData(data=b"cd")
    )
    assert connection.open_requests == 1
    connection.send_reply(
        MessageType.FILE_METADATA, 5, messages.FileStored(file_id="f", size=4, sha256="0")
    )
    assert connection.open_requests == 0


def test_a_second_hello_is_a_conflict() -> None:
    connection = structured()
    item = refused(connection.receive_data(encode_frame(HELLO, 7)))
    assert (item.seq, item.error.code) == (7, ErrorCode.CONFLICT)


def test_a_hello_while_another_waits_is_a_conflict() -> None:
    connection = ServerConnection()
    _, second = connection.receive_data(encode_frame(HELLO, 1) + encode_frame(HELLO, 2))
    assert isinstance(second, RequestRefused)
    assert second.error.code is ErrorCode.CONFLICT


def test_hello_may_be_sent_again_after_a_refused_one() -> None:
    connection = ServerConnection()
    item = refused(connection.receive_data(encode_frame(HELLO, 1, b"{")))
    connection.send_error(1, item.error)
    again = only(connection.receive_data(encode_frame(HELLO, 1)))
    assert isinstance(again, RequestReceived)
    connection.send_welcome(1, WELCOME)


def test_hello_may_carry_any_seq_even_0() -> None:
    connection = ServerConnection()
    assert isinstance(only(connection.receive_data(encode_frame(HELLO, 0))), RequestReceived)
    (frame,) = FrameDecoder().receive_data(connection.send_welcome(0, WELCOME))
    assert (frame.type, frame.seq) == (HELLO, 0)


def test_a_long_prompt_in_fragments_is_one_request() -> None:
    connection = structured()
    text = "x" * 200_000
    data = encode_message(0x01, 3, text.encode())
    assert connection.receive_data(data[:-1]) == []
    assert connection.has_partial
    assert only(connection.receive_data(data[-1:])) == RequestReceived(
        type=MessageType.CHAT_TEXT, seq=3, request=messages.Prompt(text=text)
    )
    assert not connection.has_partial


def test_a_frame_between_fragments_refuses_them_and_is_received_itself() -> None:
    connection = structured()
    data = HEADER.pack(0x01 | MORE, 3, 65_535) + bytes(65_535) + encode_frame(STATUS, 4)
    broken, status = connection.receive_data(data)
    assert isinstance(broken, RequestRefused)
    assert (broken.seq, broken.error.code) == (3, ErrorCode.MALFORMED)
    assert isinstance(status, RequestReceived)


def test_fragments_with_a_seq_in_use_are_refused_under_seq_0() -> None:
    connection = structured()
    data = encode_frame(STATUS, 3) + encode_frame(0x01 | MORE, 3, b"not a full frame")
    status, broken = connection.receive_data(data)
    assert isinstance(status, RequestReceived)
    assert isinstance(broken, RequestRefused)
    assert (broken.seq, broken.error.code) == (0, ErrorCode.MALFORMED)
    assert connection.open_requests == 1


def test_a_ping_between_fragments_gets_a_pong() -> None:
    connection = structured()
    data = HEADER.pack(0x01 | MORE, 3, 65_535) + bytes(65_535) + encode_frame(PING, 4, b"x")
    refused(connection.receive_data(data))
    assert connection.data_to_send() == encode_frame(PONG, 4, b"x")


def test_too_large_a_message_is_refused_once_and_the_connection_stays_open() -> None:
    connection = structured(WireLimits(message_bytes_max=100_000))
    data = encode_message(0x01, 3, b"x" * 300_000) + encode_frame(STATUS, 4)
    broken, status = connection.receive_data(data)
    assert isinstance(broken, RequestRefused)
    assert (broken.seq, broken.error.code) == (3, ErrorCode.TOO_LARGE)
    assert isinstance(status, RequestReceived)


def test_plain_clients_may_use_any_seq() -> None:
    connection = ServerConnection()
    received = connection.receive_data(encode_frame(0x01, 0, b"a") + encode_frame(0x01, 0, b"b"))
    assert [item.seq for item in received if isinstance(item, RequestReceived)] == [0, 0]


def test_a_plain_heartbeat_is_ignored() -> None:
    connection = ServerConnection()
    assert connection.receive_data(encode_frame(0x01, 0, b"HEARTBEAT")) == []
    assert connection.dialect is Dialect.PLAIN


@pytest.mark.parametrize("code", [HELLO, PING, STATUS, 0x01 | MORE, 0x7F])
def test_structured_types_are_unsupported_in_plain(code: int) -> None:
    connection = ServerConnection()
    connection.receive_data(encode_frame(0x14, 0))
    item = refused(connection.receive_data(encode_frame(code, 8)))
    assert (item.type, item.error.code) == (code, ErrorCode.UNSUPPORTED)
    assert connection.state is State.PLAIN


def test_plain_frames_are_numbered_from_0_and_wrap() -> None:
    connection = ServerConnection()
    connection.send_text("greeting")
    connection.receive_data(encode_frame(0x14, 9))
    (thought,) = FrameDecoder().receive_data(connection.send_thought({"type": "stream_start"}))
    assert thought == Frame(0x0A, 1, b'{"type":"stream_start"}')
    numbers = [connection.send_text("x")[1:3] for _ in range(65_536)]
    assert numbers[0] == b"\x00\x02"
    assert numbers[65_533] == b"\xff\xff"
    assert numbers[65_534] == b"\x00\x00"


def test_a_greeting_may_come_late_but_not_after_welcome() -> None:
    connection = ServerConnection()
    connection.receive_data(encode_frame(HELLO, 1))
    assert connection.send_text("hello")
    connection.send_welcome(1, WELCOME)
    with pytest.raises(LocalProtocolError):
        connection.send_text("hello")


def test_a_plain_text_is_at_most_one_frame() -> None:
    connection = ServerConnection()
    assert connection.send_text("ü" * 32_767)
    with pytest.raises(LocalProtocolError):
        connection.send_text("ü" * 32_768)


def test_no_request_gets_two_replies() -> None:
    connection = structured()
    connection.receive_data(encode_frame(MessageType.DETACH, 2))
    connection.send_reply(MessageType.DETACH, 2, messages.Detached())
    with pytest.raises(LocalProtocolError, match="#2"):
        connection.send_reply(MessageType.DETACH, 2, messages.Detached())


def test_a_reply_that_cannot_be_encoded_leaves_its_request_open() -> None:
    connection = structured(WireLimits(message_bytes_max=1_000))
    connection.receive_data(encode_frame(MessageType.SEARCH, 2, b'{"query":"x"}'))
    with pytest.raises(LocalProtocolError):
        connection.send_reply(MessageType.SEARCH, 2, {"hits": "x" * 1_000})
    assert connection.open_requests == 1
    assert connection.send_error(2, BUSY)


def test_welcome_is_the_reply_to_a_hello_and_to_nothing_else() -> None:
    connection = ServerConnection()
    with pytest.raises(LocalProtocolError):
        connection.send_welcome(1, WELCOME)
    connection.receive_data(encode_frame(HELLO, 1))
    with pytest.raises(LocalProtocolError):
        connection.send_welcome(2, WELCOME)


def test_a_message_that_the_state_does_not_allow_cannot_be_sent() -> None:
    undecided, plain, closed = ServerConnection(), ServerConnection(), ServerConnection()
    plain.receive_data(encode_frame(0x14, 0))
    closed.close()
    for connection in (undecided, plain, closed):
        with pytest.raises(LocalProtocolError):
            connection.send_reply(MessageType.DETACH, 1, messages.Detached())
        with pytest.raises(LocalProtocolError):
            connection.send_error(0, BUSY)
    for connection in (undecided, structured(), closed):
        with pytest.raises(LocalProtocolError):
            connection.send_thought({})
    with pytest.raises(LocalProtocolError):
        closed.send_text("x")


def test_a_closed_connection_receives_nothing_and_keeps_nothing() -> None:
    connection = structured()
    connection.receive_data(encode_frame(PING, 1) + encode_frame(STATUS, 2) + b"\x07")
    connection.close()
    assert connection.receive_data(encode_frame(STATUS, 1)) == []
    assert connection.data_to_send() == b""
    assert (connection.has_partial, connection.open_requests) == (False, 0)
    connection.close()
