"""A connection's bytes as a transcript: `<` what came, `>` what went.

Made only when somebody wants to read it; a connection that isn't logged pays
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from nplt_protocol.frames import FrameDecoder


class FrameLog:
    __slots__ = ("_came", "_write_line")

    def __init__(self, write_line: Callable[[str], None]) -> None:
        self._write_line = write_line
        self._came = FrameDecoder()

    def came(self, data: bytes) -> None:
        for frame in self._came.receive_data(data):
            self._write_line(f"< {frame}")

    def went(self, data: bytes) -> None:
        # What is sent is always made of whole frames.
        for frame in FrameDecoder().receive_data(data):
            self._write_line(f"> {frame}")
