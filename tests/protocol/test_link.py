"""The messages of a link between two servers, whole and broken."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.protocol.splits import cut, cut_points

from nplt_protocol import Frame, MessageType, RemoteProtocolError, encode_message
from nplt_protocol.link import (
    ChannelClose,
    ChannelData,
    ChannelOpen,
    LinkConnection,
    LinkType,
    decode_link_message,
    encode_channel_close,
    encode_channel_data,
    encode_channel_open,
    split_messages,
)

OPEN = ChannelOpen(channel=7, user="ann", client="here", can_decide=False)
EVENT = encode_message(MessageType.TEXT_DELTA, 3, b"{}")
LONG = encode_message(MessageType.PROMPT, 4, b"x" * 70_000)
PING = encode_message(MessageType.PING, 5, b"there?")
PONG = encode_message(MessageType.PONG, 5, b"there?")


@given(cut_points)
def test_link_messages_decode_the_same_however_the_bytes_are_split(cuts: list[int]) -> None:
    sent = (
        encode_channel_open(OPEN)
        + encode_channel_data([7], EVENT)
        + encode_channel_data([7, 70_000, 9], EVENT + LONG)
        + encode_channel_close(7)
    )
    link = LinkConnection()
    received = [message for piece in cut(sent, cuts) for message in link.receive_data(piece)]
    assert [decode_link_message(message) for message in received] == [
        OPEN,
        ChannelData((7,), EVENT),
        ChannelData((7, 70_000, 9), EVENT + LONG),
        ChannelClose(channel=7),
    ]
    assert not link.has_partial


def test_a_link_sends_pong_once_for_a_ping_and_ignores_pong() -> None:
    link = LinkConnection()
    assert link.receive_data(PING + PONG) == []
    assert link.data_to_send() == PONG
    assert link.data_to_send() == b""


def test_link_messages_are_passed_to_take_as_they_arrive() -> None:
    taken: list[Frame] = []
    link = LinkConnection(taken.append)
    assert link.receive_data(encode_channel_close(7) + PING + encode_channel_close(8)) == []
    assert [decode_link_message(message) for message in taken] == [
        ChannelClose(channel=7),
        ChannelClose(channel=8),
    ]


def test_messages_of_a_channel_are_split_and_passed_on_unchanged() -> None:
    event, prompt = split_messages(EVENT + LONG)
    assert (event.type, event.seq, event.payload, event.frames) == (0x21, 3, b"{}", EVENT)
    assert (prompt.type, prompt.seq, prompt.payload) == (0x07, 4, b"x" * 70_000)
    assert prompt.frames == LONG


@pytest.mark.parametrize("cut_off", [1, 4_000, 4_468, 4_470, 70_000, 70_008])
def test_a_truncated_message_of_a_channel_is_refused(cut_off: int) -> None:
    """In a payload, in a header, and between two frames (the second one has 4,470 bytes)."""
    with pytest.raises(RemoteProtocolError):
        split_messages((EVENT + LONG)[:-cut_off])


@pytest.mark.parametrize(
    "message",
    [
        Frame(LinkType.CHANNEL_DATA, 2, bytes(7)),
        Frame(LinkType.CHANNEL_OPEN, 0, b'{"channel":1}'),
        Frame(LinkType.CHANNEL_CLOSE, 0, b"noise"),
    ],
)
def test_a_malformed_link_message_is_refused(message: Frame) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_link_message(message)


def test_a_link_message_of_a_later_version_is_ignored() -> None:
    assert decode_link_message(Frame(0x43, 0, b"")) is None
