"""The client's end: greeting, welcome, numbers, and servers that are odd or newer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.fake_link import WELCOME
from tests.protocol.splits import cut, cut_points

from nplt_protocol import (
    HEADER,
    MORE,
    ClientConnection,
    ConnectionRefused,
    Dialect,
    ErrorCode,
    ErrorReceived,
    EventReceived,
    FrameDecoder,
    LocalProtocolError,
    MessageType,
    ReceivedByClient,
    ReplyReceived,
    RequestError,
    State,
    TextReceived,
    ThoughtReceived,
    WireLimits,
    encode_error,
    encode_event,
    encode_frame,
    encode_message,
    encode_reply,
    messages,
)

DELTA = messages.TextDelta(session_id="s", turn_id="t", call=0, offset=0, text="hi")


def awaiting() -> ClientConnection:
    connection = ClientConnection()
    connection.send_hello()
    return connection


def structured(welcome: messages.Welcome = WELCOME) -> ClientConnection:
    connection = awaiting()
    connection.receive_data(encode_reply(MessageType.HELLO, 1, welcome))
    return connection


def only(received: list[ReceivedByClient]) -> ReceivedByClient:
    (item,) = received
    return item


def test_no_request_can_be_sent_before_hello() -> None:
    connection = ClientConnection()
    with pytest.raises(LocalProtocolError):
        connection.send(messages.Detach())
    assert connection.send_hello() == encode_frame(0x02, 1, b'{"versions":[3]}')
    assert connection.state is State.AWAITING_WELCOME


def test_hello_cannot_be_sent_again_while_it_waits_or_after_welcome() -> None:
    for connection in (awaiting(), structured()):
        with pytest.raises(LocalProtocolError):
            connection.send_hello()


def test_another_token_may_be_tried_after_a_refused_hello() -> None:
    connection = awaiting()
    no = encode_error(1, RequestError(ErrorCode.UNAUTHORIZED, "Who are you?"))
    assert isinstance(only(connection.receive_data(no)), ErrorReceived)
    (frame,) = FrameDecoder().receive_data(connection.send_hello(messages.Hello(token="other")))
    assert frame.type == MessageType.HELLO
    received = only(connection.receive_data(encode_reply(MessageType.HELLO, frame.seq, WELCOME)))
    assert isinstance(received, ReplyReceived)


def test_the_greeting_is_kept_and_all_else_before_welcome_is_dropped() -> None:
    connection = awaiting()
    early = encode_event(DELTA) + encode_frame(MessageType.PING, 0) + encode_frame(0x0A, 3, b"{}")
    received = connection.receive_data(encode_frame(0x01, 0, b"hello there") + early)
    assert received == [TextReceived(text="hello there")]
    assert connection.greeting == "hello there"
    assert connection.data_to_send() == b""


def test_welcome_is_the_reply_to_hello_and_its_limits_hold() -> None:
    connection = awaiting()
    welcome = messages.Welcome(
        version=3,
        server="nplt/9",
        user="u",
        session_id="s",
        model="m",
        models=(),
        limits={"message_bytes_max": 100},
    )
    assert only(connection.receive_data(encode_reply(MessageType.HELLO, 1, welcome))) == (
        ReplyReceived(seq=1, request_type=MessageType.HELLO, reply=welcome)
    )
    assert connection.state is State.STRUCTURED
    assert connection.welcome == welcome
    with pytest.raises(LocalProtocolError, match="100"):
        connection.send(messages.Prompt(text="x" * 100))


def test_every_request_gets_its_own_seq_and_seqs_wrap() -> None:
    connection = structured()
    seen = set()
    for _ in range(65_534):
        seq, _ = connection.send(messages.Detach())
        seen.add(seq)
    assert len(seen) == 65_534
    connection.receive_data(encode_reply(MessageType.DETACH, 77, messages.Detached()))
    numbers = {connection.send(messages.Detach())[0] for _ in range(2)}
    assert numbers == {1, 77}
    with pytest.raises(LocalProtocolError, match="no reply yet"):
        connection.send(messages.Detach())


def test_a_reply_is_matched_to_its_request_and_frees_its_seq() -> None:
    connection = structured()
    seq, _ = connection.send(messages.Cancel())
    data = encode_reply(MessageType.CANCEL, seq, messages.Cancelled(cancelled=True))
    assert only(connection.receive_data(data)) == ReplyReceived(
        seq=seq, request_type=MessageType.CANCEL, reply=messages.Cancelled(cancelled=True)
    )
    assert connection.open_requests == 0
    assert connection.receive_data(data) == []


def test_an_error_with_a_seq_is_the_reply_to_that_request_and_one_without_is_an_event() -> None:
    connection = structured()
    seq, _ = connection.send(messages.Cancel())
    no = RequestError(ErrorCode.NOT_FOUND, "No such turn.")
    error, event = connection.receive_data(encode_error(seq, no) + encode_error(0, no))
    assert isinstance(error, ErrorReceived)
    assert error.report.code == "not_found"
    assert event == EventReceived(event=error.report)


def test_a_servers_ping_gets_a_pong_with_its_own_seq_and_payload() -> None:
    connection = structured()
    assert connection.receive_data(encode_frame(0x04, 0, b"x") + encode_frame(0x04, 9)) == []
    assert connection.data_to_send() == encode_frame(0x05, 0, b"x") + encode_frame(0x05, 9)


def test_an_unknown_event_is_dropped() -> None:
    assert structured().receive_data(encode_frame(0x2F, 0, b'{"new":true}')) == []


def test_a_malformed_reply_becomes_an_error_for_its_request() -> None:
    connection = structured()
    seq, _ = connection.send(messages.Cancel())
    received = only(connection.receive_data(encode_frame(0x06, seq, b'{"cancelled":"maybe"}')))
    assert isinstance(received, ErrorReceived)
    assert (received.report.code, received.report.field) == ("malformed", "cancelled")
    assert connection.open_requests == 0


def test_a_malformed_event_is_reported_as_an_error_event() -> None:
    received = only(structured().receive_data(encode_frame(0x21, 0, b"{")))
    assert isinstance(received, EventReceived)
    assert isinstance(received.event, messages.ErrorReport)


def test_a_long_reply_in_fragments_is_one_reply() -> None:
    connection = structured()
    seq, _ = connection.send(messages.FileGet(file_id="f"))
    data = encode_reply(MessageType.FILE_GET, seq, messages.FilePiece(data=bytes(200_000)))
    assert connection.receive_data(data[:70_000]) == []
    assert connection.has_partial
    assert only(connection.receive_data(data[70_000:])) == ReplyReceived(
        seq=seq, request_type=MessageType.FILE_GET, reply=messages.FilePiece(data=bytes(200_000))
    )


def test_a_reply_with_broken_fragments_is_an_error_for_its_request() -> None:
    connection = structured()
    seq, _ = connection.send(messages.FileGet(file_id="f"))
    part = HEADER.pack(0x33 | MORE, seq, 65_535) + bytes(65_535)
    error, event = connection.receive_data(part + encode_event(DELTA))
    assert isinstance(error, ErrorReceived)
    assert event == EventReceived(event=DELTA)


def test_a_client_refuses_messages_above_its_ceiling_whatever_welcome_announces() -> None:
    welcome = messages.Welcome(
        version=3,
        server="",
        user="",
        session_id="s",
        model="",
        models=(),
        limits={"message_bytes_max": 2**50},
    )
    assert structured(welcome).message_bytes_max == 64 * 1024 * 1024


def test_file_data_carries_the_seq_of_its_upload() -> None:
    connection = structured()
    seq, _ = connection.send(messages.FileMetadata(filename="a", size=70_000))
    frames = FrameDecoder().receive_data(connection.send_file_data(seq, bytes(70_000)))
    assert [(frame.type, frame.seq, len(frame.payload)) for frame in frames] == [
        (0x0D, seq, 65_535),
        (0x0D, seq, 4_465),
    ]
    with pytest.raises(LocalProtocolError, match="no upload"):
        connection.send_file_data(seq + 1, b"x")
    with pytest.raises(LocalProtocolError):
        connection.send(messages.FileData(data=b"x"))


def test_too_large_a_frame_ends_receiving() -> None:
    connection = ClientConnection(limits=WireLimits(frame_bytes_max=10))
    assert isinstance(only(connection.receive_data(HEADER.pack(1, 0, 11))), ConnectionRefused)
    assert connection.receive_data(encode_frame(1, 0, b"x")) == []


def test_a_plain_client_receives_texts_and_thoughts_and_no_heartbeats() -> None:
    connection = ClientConnection(Dialect.PLAIN)
    data = (
        encode_frame(0x01, 0, b"welcome")
        + encode_frame(0x01, 1, b"HEARTBEAT")
        + encode_frame(0x0A, 2, b'{"type":"stream_start"}')
        + encode_frame(0x0A, 3, b"[Tool] reading")
        + encode_frame(0x0C, 4, b"{}")
        + encode_frame(0x01, 5, b"")
    )
    assert connection.receive_data(data) == [
        TextReceived(text="welcome"),
        ThoughtReceived(payload={"type": "stream_start"}),
        ThoughtReceived(payload={"type": "thinking", "content": "[Tool] reading"}),
        TextReceived(text=""),
    ]


def test_a_plain_client_numbers_its_frames_from_0() -> None:
    connection = ClientConnection(Dialect.PLAIN)
    assert connection.send(messages.Prompt(text="a")) == (0, encode_frame(0x01, 0, b"a"))
    assert connection.send_heartbeat() == encode_frame(0x01, 1, b"HEARTBEAT")
    assert connection.send(messages.ClearRequest()) == (2, encode_frame(0x11, 2))


def test_only_the_plain_dialect_has_heartbeats() -> None:
    with pytest.raises(LocalProtocolError):
        structured().send_heartbeat()


def test_a_closed_connection_sends_and_receives_nothing() -> None:
    connection = structured()
    connection.close()
    assert connection.receive_data(encode_event(DELTA)) == []
    with pytest.raises(LocalProtocolError):
        connection.send(messages.Detach())


some_frames = st.lists(
    st.builds(
        encode_message,
        st.integers(0, 255),
        st.integers(0, 4),
        st.binary(max_size=30) | st.just(b"{}"),
    ),
    max_size=6,
).map(b"".join)


@given(st.booleans(), st.sampled_from(Dialect), st.binary(max_size=80) | some_frames, cut_points)
def test_any_bytes_split_anywhere_are_received_the_same_and_raise_nothing(
    welcome: bool, dialect: Dialect, data: bytes, cuts: list[int]
) -> None:
    def receive(pieces: list[bytes]) -> tuple[list[ReceivedByClient], bytes]:
        connection = ClientConnection(dialect)
        if dialect is Dialect.STRUCTURED:
            connection.send_hello()
            if welcome:
                connection.receive_data(encode_reply(MessageType.HELLO, 1, WELCOME))
            connection.send(messages.Cancel())
        received = [item for piece in pieces for item in connection.receive_data(piece)]
        return received, connection.data_to_send()

    assert receive([data]) == receive(cut(data, cuts))
