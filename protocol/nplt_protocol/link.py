"""A link between two servers: many channels over one connection.

A server that relays (the edge) opens a link to the server that owns a conversation. Both
prove that they know the secret of the cluster, each by an HMAC over the nonces of both
(HELLO with `peer`); the secret itself is never sent. After WELCOME the link carries only
these frames, and PING and PONG:

    CHANNEL_OPEN   JSON: the channel's number, and the client it stands for
    CHANNEL_CLOSE  JSON: the channel's number
    CHANNEL_DATA   seq: the number of channels; payload: their numbers (32 bits each), then whole
                   frames of the structured dialect, for each of these channels

So an event for many clients of one edge is sent once. A channel is a connection of the
structured dialect after its WELCOME. This module does no I/O and does not interpret requests.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from nplt_protocol.codes import MORE, MessageType
from nplt_protocol.connection import Connection, State
from nplt_protocol.errors import RemoteProtocolError
from nplt_protocol.frames import (
    HEADER,
    HEADER_BYTES,
    Frame,
    FrameDecoder,
    WireLimits,
    encode_message,
)


class LinkType(IntEnum):
    CHANNEL_OPEN = 0x40
    CHANNEL_CLOSE = 0x41
    CHANNEL_DATA = 0x42


LINK_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""The limit is high because one CHANNEL_DATA may hold several messages."""
CHANNELS_PER_MESSAGE_MAX = 0xFFFF
_NUMBER = struct.Struct(">I")


def peer_proof(secret: bytes, role: Literal["edge", "owner"], edge: str, owner: str) -> str:
    """The proof that this end knows the secret. `edge` and `owner` are the nonces of both ends."""
    return hmac.new(secret, f"nplt {role} {edge} {owner}".encode(), hashlib.sha256).hexdigest()


class ChannelOpen(Struct, frozen=True, kw_only=True):
    """Describes the client of a channel. The edge has authenticated it."""

    channel: int
    user: str
    client: str = ""
    can_decide: bool = True
    """Whether the client can decide approval requests."""


class ChannelClose(Struct, frozen=True, kw_only=True):
    channel: int


def encode_channel_open(opened: ChannelOpen) -> bytes:
    return encode_message(LinkType.CHANNEL_OPEN, 0, msgspec.json.encode(opened))


def encode_channel_close(channel: int) -> bytes:
    closed = ChannelClose(channel=channel)
    return encode_message(LinkType.CHANNEL_CLOSE, 0, msgspec.json.encode(closed))


def encode_channel_data(channels: Sequence[int], frames: bytes) -> bytes:
    count = len(channels)
    numbers = _NUMBER.pack(*channels) if count == 1 else struct.pack(f">{count}I", *channels)
    return encode_message(LinkType.CHANNEL_DATA, count, numbers + frames)


class ChannelData(NamedTuple):
    channels: tuple[int, ...]
    frames: bytes


def decode_link_message(message: Frame) -> ChannelOpen | ChannelClose | ChannelData | None:
    """Returns `None` for a type that only a later version has. Raises `RemoteProtocolError` for
    a payload that can't be decoded."""
    try:
        match message.type:
            case LinkType.CHANNEL_DATA:
                start = _NUMBER.size * message.seq
                channels = struct.unpack_from(f">{message.seq}I", message.payload)
                return ChannelData(channels, message.payload[start:])
            case LinkType.CHANNEL_OPEN:
                return msgspec.json.decode(message.payload, type=ChannelOpen)
            case LinkType.CHANNEL_CLOSE:
                return msgspec.json.decode(message.payload, type=ChannelClose)
            case _:
                return None
    except (struct.error, msgspec.MsgspecError) as error:
        raise RemoteProtocolError(f"a message of a link can't be read: {error}") from None


class Enclosed(NamedTuple):
    """One complete message of a channel."""

    type: int
    seq: int
    frames: bytes
    """The encoded frames; those of an event are passed to the client unchanged."""

    @property
    def payload(self) -> bytes:
        frames = self.frames
        if not frames[0] & MORE:
            return frames[HEADER_BYTES:]
        return b"".join(frame.payload for frame in FrameDecoder().receive_data(frames))


def split_messages(frames: bytes) -> list[Enclosed]:
    messages: list[Enclosed] = []
    start = offset = 0
    while offset < len(frames):
        if len(frames) - offset < HEADER_BYTES:
            raise RemoteProtocolError("a frame of a channel is cut off")
        type_, seq, length = HEADER.unpack_from(frames, offset)
        offset += HEADER_BYTES + length
        if not type_ & MORE:
            whole = frames if not start and offset == len(frames) else frames[start:offset]
            messages.append(Enclosed(type_, seq, whole))
            start = offset
    if start != len(frames) or offset != len(frames):
        raise RemoteProtocolError("a message of a channel is cut off")
    return messages


class LinkConnection(Connection):
    """Decodes the messages of a link, and sends PONGs. `take`, if given, is called with each
    message; otherwise `receive_data` returns them."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[Frame], None] | None = None) -> None:
        super().__init__(State.STRUCTURED, WireLimits(message_bytes_max=LINK_MESSAGE_BYTES_MAX))
        self._take = take

    def receive_data(self, data: bytes) -> list[Frame]:
        received: list[Frame] = []
        for frame in self._decoder.receive_data(data):
            if frame.type & MORE or self._joiner.is_open:
                for joined in self._joiner.receive_frame(frame):
                    if not isinstance(joined, Frame):
                        raise RemoteProtocolError(joined.error.message)
                    received.append(joined)
            elif frame.type == MessageType.PING:
                self._pongs.append(encode_message(MessageType.PONG, frame.seq, frame.payload))
            elif frame.type != MessageType.PONG:
                received.append(frame)
        if self._take is None:
            return received
        for message in received:
            self._take(message)
        return []
