"""What a server may say, when, and how often."""

from __future__ import annotations

import pytest
from tests.protocol.fake_link import WELCOME
from tests.protocol.server_ends import BUSY, structured

from nplt_protocol import replies as say
from nplt_protocol.codes import MessageType
from nplt_protocol.connection import (
    SERVER_TRANSITIONS,
    State,
)
from nplt_protocol.errors import LocalProtocolError
from nplt_protocol.frames import Frame, FrameDecoder, encode_frame
from nplt_protocol.limits import WireLimits
from nplt_protocol.server_connection import ServerConnection

HELLO, PING, PONG, STATUS = (
    int(code)
    for code in (MessageType.HELLO, MessageType.PING, MessageType.PONG, MessageType.STATUS)
)


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


def test_nothing_is_answered_twice() -> None:
    connection = structured()
    connection.receive_data(encode_frame(MessageType.DETACH, 2))
    connection.send_reply(MessageType.DETACH, 2, say.Detached())
    with pytest.raises(LocalProtocolError, match="#2"):
        connection.send_reply(MessageType.DETACH, 2, say.Detached())


def test_a_reply_that_cannot_be_encoded_leaves_its_request_unanswered() -> None:
    connection = structured(WireLimits(message_bytes_max=1_000))
    connection.receive_data(encode_frame(MessageType.SEARCH, 2, b'{"query":"x"}'))
    with pytest.raises(LocalProtocolError):
        connection.send_reply(MessageType.SEARCH, 2, {"hits": "x" * 1_000})
    assert connection.unanswered == 1
    assert connection.send_error(2, BUSY)


def test_welcome_answers_a_hello_and_nothing_else() -> None:
    connection = ServerConnection()
    with pytest.raises(LocalProtocolError):
        connection.send_welcome(1, WELCOME)
    connection.receive_data(encode_frame(HELLO, 1))
    with pytest.raises(LocalProtocolError):
        connection.send_welcome(2, WELCOME)


def test_what_does_not_fit_the_state_cannot_be_said() -> None:
    undecided, plain, closed = ServerConnection(), ServerConnection(), ServerConnection()
    plain.receive_data(encode_frame(0x14, 0))
    closed.close()
    for connection in (undecided, plain, closed):
        with pytest.raises(LocalProtocolError):
            connection.send_reply(MessageType.DETACH, 1, say.Detached())
        with pytest.raises(LocalProtocolError):
            connection.send_error(0, BUSY)
    for connection in (undecided, structured(), closed):
        with pytest.raises(LocalProtocolError):
            connection.send_thought({})
    with pytest.raises(LocalProtocolError):
        closed.send_text("x")


def test_a_closed_connection_hears_nothing_and_keeps_nothing() -> None:
    connection = structured()
    connection.receive_data(encode_frame(PING, 1) + encode_frame(STATUS, 2) + b"\x07")
    connection.close()
    assert connection.receive_data(encode_frame(STATUS, 1)) == []
    assert connection.data_to_send() == b""
    assert (connection.has_partial, connection.unanswered) == (False, 0)
    connection.close()


def test_every_state_a_cue_leads_to_is_in_the_table() -> None:
    reached = {state for cues in SERVER_TRANSITIONS.values() for state in cues.values()}
    assert reached | {State.UNDECIDED} == set(SERVER_TRANSITIONS)
