"""Cuts an answer into pieces a version 2 client can take.

A blank piece means "end" to it, so white space alone waits for its neighbour;
`HEARTBEAT` alone means "I am alive", so it is never a piece by itself; a piece
fits one frame and never ends inside a character. White space that ends an
answer has no neighbour left and is not sent.
"""

from __future__ import annotations

from nplt_protocol.limits import FRAME_PAYLOAD_BYTES_MAX

_HEARTBEAT = "HEARTBEAT"
_PIECE_CHARACTERS_MAX = FRAME_PAYLOAD_BYTES_MAX // 4
"""A character takes at most four bytes."""


class PieceCutter:
    def __init__(self) -> None:
        self._blank = ""

    def feed(self, text: str) -> list[str]:
        text = self._blank + text
        self._blank = ""
        pieces: list[str] = []
        while text:
            piece, text = text[:_PIECE_CHARACTERS_MAX], text[_PIECE_CHARACTERS_MAX:]
            if not piece.strip():
                # A screenful of white space is still only white space.
                self._blank = piece if not text else ""
            elif piece == _HEARTBEAT:
                pieces += [piece[:5], piece[5:]]
            else:
                pieces.append(piece)
        return pieces


def fit_frame(text: str) -> str:
    """The text, or as much of it as one frame holds."""
    if len(text) <= _PIECE_CHARACTERS_MAX:
        return text
    data = text.encode()
    if len(data) <= FRAME_PAYLOAD_BYTES_MAX:
        return text
    return data[: FRAME_PAYLOAD_BYTES_MAX - 3].decode(errors="ignore") + "…"
