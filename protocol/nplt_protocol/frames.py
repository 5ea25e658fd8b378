"""Frames, fragments and their limits: bytes to frames, frames to whole messages, and back.

A frame has a five-byte header (type, seq, length) and up to 65,535 bytes of
payload. A longer message travels as consecutive frames of one type and one
seq; all but the last are full and have the MORE bit. No other frame may come
between them. The decoder copies each payload once and holds at most one
unfinished frame; the joiner holds at most one unfinished message. Payloads are
not interpreted here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from nplt_protocol.codes import MORE, ErrorCode, MessageType
from nplt_protocol.errors import LocalProtocolError, RemoteProtocolError, RequestError

HEADER = struct.Struct(">BHH")
"""type, seq, length of the payload; big-endian."""

HEADER_BYTES = HEADER.size


FRAME_PAYLOAD_BYTES_MAX = 65_535
"""The length field has 16 bits."""


class WireLimits(Struct, frozen=True, kw_only=True):
    """The limits of a connection. Each name ends with its unit and bound."""

    frame_bytes_max: int = FRAME_PAYLOAD_BYTES_MAX
    message_bytes_max: int = 1024 * 1024
    json_depth_max: int = 32
    json_keys_max: int = 1_000
    prompt_json_keys_max: int = 50_000
    """The same for a prompt, which may bring the schemas of many tools, or a whole list of
    messages."""
    message_seconds_max: float = 10.0
    event_bytes_max: int = 512 * 1024
    write_seconds_max: float = 10.0


class Frame(NamedTuple):
    """A named tuple, not a dataclass: a busy connection makes millions of them."""

    type: int
    seq: int
    payload: bytes

    def __str__(self) -> str:
        """Formats the frame as `PROMPT #7 {"text":"hello"} [16 bytes]`; a `+` after the name is
        the MORE bit. Control characters are escaped, and the token of a HELLO is left out."""
        code, payload = self.type & ~MORE, self.payload
        name = _NAMES.get(code, f"0x{code:02X}") + ("+" if self.type & MORE else "")
        preview = _without_token(payload) if code == MessageType.HELLO else _preview(payload)
        size = f"[{len(payload)} byte{'' if len(payload) == 1 else 's'}]"
        return " ".join(part for part in (name, f"#{self.seq}", preview, size) if part)


def encode_frame(type: int, seq: int, payload: bytes = b"") -> bytes:  # noqa: A002
    if len(payload) > FRAME_PAYLOAD_BYTES_MAX:
        raise LocalProtocolError(
            f"a frame holds at most {FRAME_PAYLOAD_BYTES_MAX:,} bytes, not {len(payload):,}"
        )
    return HEADER.pack(type, seq, len(payload)) + payload


class FrameDecoder:
    """Bytes to frames.

    A header that announces more than `frame_bytes_max` sets `error`: the frames
    before it are still returned, and everything after it is dropped, since the
    beginning of the next frame is unknown.
    """

    __slots__ = ("_buffer", "_needed", "error", "frame_bytes_max", "has_partial")

    def __init__(self, frame_bytes_max: int = FRAME_PAYLOAD_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.error: RemoteProtocolError | None = None
        self.has_partial = False
        """Whether a frame is incomplete. A plain attribute, since it is read so often."""
        self._buffer = bytearray()
        self._needed = 0

    @property
    def pending_bytes(self) -> int:
        return len(self._buffer)

    def receive_data(self, data: bytes) -> list[Frame]:
        if self.error is not None:
            return []
        if self.has_partial:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
            data = bytes(self._buffer)
            self._buffer = bytearray()
        return self._walk(data)

    def _walk(self, data: bytes) -> list[Frame]:
        # This is the server's hot loop, hence the local names and `tuple.__new__`: calling
        # `Frame` would take half as long again.
        frames: list[Frame] = []
        append, unpack, new = frames.append, HEADER.unpack_from, tuple.__new__
        offset, end, limit = 0, len(data), self.frame_bytes_max
        needed, self.has_partial = HEADER_BYTES, False
        while end - offset >= HEADER_BYTES:
            type_, seq, length = unpack(data, offset)
            if length > limit:
                self.error = RemoteProtocolError(
                    f"a frame of {length:,} bytes was announced, at most {limit:,} are taken here"
                )
                return frames
            stop = offset + HEADER_BYTES + length
            if stop > end:
                needed = HEADER_BYTES + length
                break
            append(new(Frame, (type_, seq, data[offset + HEADER_BYTES : stop])))
            offset = stop
        if offset < end:
            self._buffer += data[offset:]
            self._needed, self.has_partial = needed, True
        return frames


def encode_message(type: int, seq: int, payload: bytes) -> bytes:  # noqa: A002
    size = len(payload)
    if size <= FRAME_PAYLOAD_BYTES_MAX:
        return HEADER.pack(type, seq, size) + payload
    parts: list[bytes] = []
    last = (size - 1) // FRAME_PAYLOAD_BYTES_MAX * FRAME_PAYLOAD_BYTES_MAX
    for offset in range(0, last, FRAME_PAYLOAD_BYTES_MAX):
        parts.append(HEADER.pack(type | MORE, seq, FRAME_PAYLOAD_BYTES_MAX))
        parts.append(payload[offset : offset + FRAME_PAYLOAD_BYTES_MAX])
    parts.append(encode_frame(type, seq, payload[last:]))
    return b"".join(parts)


class BrokenMessage(Struct, frozen=True, kw_only=True):
    """A message that can't be completed, and the reason."""

    type: int
    seq: int
    error: RequestError


Joined: TypeAlias = Frame | BrokenMessage
"""A complete message is a frame without the MORE bit, of any length."""


class ByteBudget:
    """Limits the bytes that are held, together with the parent budget if it has one."""

    __slots__ = ("_part_of", "bytes_max", "used")

    def __init__(self, bytes_max: int, part_of: ByteBudget | None = None) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._part_of = part_of

    def take(self, size: int) -> bool:
        """Reserves `size` bytes. Returns False, and reserves nothing, if there is no room."""
        if self.used + size > self.bytes_max:
            return False
        if self._part_of is not None and not self._part_of.take(size):
            return False
        self.used += size
        return True

    def add(self, size: int) -> None:
        """Counts bytes that are held already, whether there is room or not."""
        self.used += size
        if self._part_of is not None:
            self._part_of.add(size)

    def give_back(self, size: int) -> None:
        self.used -= size
        if self._part_of is not None:
            self._part_of.give_back(size)


class FragmentJoiner:
    """Joins frames into messages. A frame between the fragments of another message breaks
    that message, which is reported; the frame itself is handled as usual. A refused message
    is reported once, and its remaining frames are dropped."""

    __slots__ = ("_budget", "_key", "_parts", "_size", "is_open", "message_bytes_max")

    def __init__(self, message_bytes_max: int) -> None:
        self.message_bytes_max = message_bytes_max
        self.is_open = False
        """Whether more fragments of a message must follow. A plain attribute, since it is read
        for each frame."""
        self._key: tuple[int, int] | None = None
        self._parts: list[bytes] | None = None
        """The fragments so far. `None`: no message is open, or it was refused."""
        self._size = 0
        """The size of `_parts` in bytes."""
        self._budget: ByteBudget | None = None

    def receive_frame(self, frame: Frame) -> list[Joined]:
        joined: list[Joined] = []
        code, seq, payload = frame.type & ~MORE, frame.seq, frame.payload
        if self._key is not None and self._key != (code, seq):
            if self._parts is not None:
                between = "Another frame came between the fragments of this message."
                joined.append(self._refuse(self._key, ErrorCode.MALFORMED, between))
            self.reset()
        is_last = not frame.type & MORE
        if code == MessageType.FILE_DATA:
            # Each FILE_DATA frame is a message of its own; the MORE bit is ignored.
            joined.append(Frame(code, seq, payload))
        elif self._key is None and is_last:
            joined.append(frame)
        else:
            if self._key is None:
                self._key, self._parts, self.is_open = (code, seq), [], True
            if self._parts is not None and (broken := self._keep(code, seq, payload, is_last)):
                joined.append(broken)
            if is_last:
                if self._parts is not None:
                    joined.append(Frame(code, seq, b"".join(self._parts)))
                self.reset()
        return joined

    def _keep(self, code: int, seq: int, payload: bytes, is_last: bool) -> BrokenMessage | None:
        assert self._parts is not None
        key, size = (code, seq), len(payload)
        if code == MessageType.HELLO:
            return self._refuse(key, ErrorCode.MALFORMED, "HELLO is never fragmented.")
        if size != FRAME_PAYLOAD_BYTES_MAX and not is_last:
            short = (
                f"A frame that is not the last of its message holds {FRAME_PAYLOAD_BYTES_MAX:,} "
                f"bytes, not {size:,}."
            )
            return self._refuse(key, ErrorCode.MALFORMED, short)
        if self._size + size > self.message_bytes_max:
            long = f"A message holds at most {self.message_bytes_max:,} bytes."
            return self._refuse(key, ErrorCode.TOO_LARGE, long)
        if self._budget is not None and not self._budget.take(size):
            many = "Too many messages of your connections are unfinished; send it again later."
            return self._refuse(key, ErrorCode.BUSY, many)
        self._size += size
        self._parts.append(payload)
        return None

    def _refuse(self, key: tuple[int, int], code: ErrorCode, sentence: str) -> BrokenMessage:
        """Reports the message, and drops its frames from here to the last one."""
        self._drop_parts()
        return BrokenMessage(type=key[0], seq=key[1], error=RequestError(code, sentence))

    def reset(self) -> None:
        self._drop_parts()
        self._key, self.is_open = None, False

    def move_to(self, budget: ByteBudget) -> None:
        """Counts unfinished messages in a budget that several connections share. Fragments that
        arrived before the sender was known are moved to it."""
        if self._budget is not None:
            self._budget.give_back(self._size)
        budget.add(self._size)
        self._budget = budget

    def _drop_parts(self) -> None:
        if self._budget is not None:
            self._budget.give_back(self._size)
        self._parts, self._size = None, 0


PREVIEW_CHARS_MAX = 80
_NAMES = {int(code): code.name for code in MessageType}
_HEX_BYTES_MAX = 24


def _without_token(payload: bytes) -> str:
    try:
        greeting = msgspec.json.decode(payload or b"{}")
    except (ValueError, RecursionError):
        return "(not JSON)" if payload else ""
    if not isinstance(greeting, dict):
        return "(not an object)"
    if "token" in greeting:
        greeting["token"] = "…"
    return _preview(msgspec.json.encode(greeting)) if payload else ""


def _preview(payload: bytes) -> str:
    # A character takes at most four bytes, so a whole upload need not be decoded.
    head = payload[: 4 * (PREVIEW_CHARS_MAX + 1)]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        cut_by_us = len(head) < len(payload) and error.start > len(head) - 4
        if not cut_by_us:
            return payload[:_HEX_BYTES_MAX].hex(" ") + (
                " …" if len(payload) > _HEX_BYTES_MAX else ""
            )
        text = head[: error.start].decode()
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text[:PREVIEW_CHARS_MAX]
    )
    return shown + ("…" if len(text) > PREVIEW_CHARS_MAX else "")
