"""Fragments: messages longer than one frame.

A long message travels as consecutive frames of one type and one seq. All but
the last are full and carry the MORE bit. Nothing may come between them: then
the part is dropped and reported, and the frame in between is heard as usual.
A message that grows too large is reported once, and the rest of its frames is
swallowed without being kept. Used by the structured dialect only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from nplt_protocol.codes import MORE, ErrorCode, MessageType
from nplt_protocol.errors import RequestError
from nplt_protocol.frames import HEADER, Frame, encode_frame
from nplt_protocol.limits import FRAME_PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from nplt_protocol.values import dataclass


def encode_message(type: int, seq: int, payload: bytes) -> bytes:  # noqa: A002
    if len(payload) <= FRAME_PAYLOAD_BYTES_MAX:
        return encode_frame(type, seq, payload)
    parts: list[bytes] = []
    last = (len(payload) - 1) // FRAME_PAYLOAD_BYTES_MAX * FRAME_PAYLOAD_BYTES_MAX
    for offset in range(0, last, FRAME_PAYLOAD_BYTES_MAX):
        parts.append(HEADER.pack(type | MORE, seq, FRAME_PAYLOAD_BYTES_MAX))
        parts.append(payload[offset : offset + FRAME_PAYLOAD_BYTES_MAX])
    parts.append(encode_frame(type, seq, payload[last:]))
    return b"".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenMessage:
    """A message that will never be whole, and why."""

    type: int
    seq: int
    error: RequestError


Joined: TypeAlias = Frame | BrokenMessage
"""A whole message is a frame without the MORE bit, of any length."""


class FragmentJoiner:
    __slots__ = ("_key", "_parts", "_size", "is_open", "message_bytes_max")

    def __init__(self, message_bytes_max: int) -> None:
        self.message_bytes_max = message_bytes_max
        self.is_open = False
        """Between the first and the last frame of a message. Asked per frame: no property."""
        self._key: tuple[int, int] | None = None
        self._parts: list[bytes] | None = None
        self._size = 0

    def receive_frame(self, frame: Frame) -> list[Joined]:
        joined: list[Joined] = []
        code, seq, more = frame.type & ~MORE, frame.seq, bool(frame.type & MORE)
        if self._key is not None and self._key != (code, seq):
            joined.extend(self._interrupted())
        if code == MessageType.FILE_DATA:
            # Each piece of a file stands by itself; the bit says nothing here.
            joined.append(Frame(code, seq, frame.payload))
        elif more:
            joined.extend(self._add_part(code, seq, frame.payload))
        elif self._key is None:
            joined.append(frame)
        else:
            joined.extend(self._finish(code, seq, frame.payload))
        return joined

    def _add_part(self, code: int, seq: int, payload: bytes) -> list[Joined]:
        if self._key is None:
            self._key, self._parts, self._size, self.is_open = (code, seq), [], 0, True
        if self._parts is None:
            return []
        if code == MessageType.HELLO:
            return self._refuse(ErrorCode.MALFORMED, "HELLO is never fragmented.")
        if len(payload) != FRAME_PAYLOAD_BYTES_MAX:
            return self._refuse(
                ErrorCode.MALFORMED,
                f"A frame that is not the last of its message holds {FRAME_PAYLOAD_BYTES_MAX:,} "
                f"bytes, not {len(payload):,}.",
            )
        return self._keep(payload)

    def _keep(self, payload: bytes) -> list[Joined]:
        assert self._parts is not None
        self._size += len(payload)
        if self._size > self.message_bytes_max:
            return self._refuse(
                ErrorCode.TOO_LARGE, f"A message holds at most {self.message_bytes_max:,} bytes."
            )
        self._parts.append(payload)
        return []

    def _finish(self, code: int, seq: int, payload: bytes) -> list[Joined]:
        refused = [] if self._parts is None else self._keep(payload)
        parts = self._parts
        self.reset()
        if parts is None or refused:
            return refused
        return [Frame(code, seq, b"".join(parts))]

    def _refuse(self, code: ErrorCode, sentence: str) -> list[Joined]:
        """From here on the message's frames are swallowed, up to its last."""
        assert self._key is not None
        self._parts = None
        type_, seq = self._key
        return [BrokenMessage(type=type_, seq=seq, error=RequestError(code, sentence))]

    def _interrupted(self) -> list[Joined]:
        already_refused = self._parts is None
        broken = self._refuse(
            ErrorCode.MALFORMED, "Another frame came between the fragments of this message."
        )
        self.reset()
        return [] if already_refused else broken

    def reset(self) -> None:
        self._key, self._parts, self._size, self.is_open = None, None, 0, False
