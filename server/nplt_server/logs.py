"""Log lines on stderr: short, one per line, made to be read.

At level debug the frames of every connection are shown as a transcript,
`<` received and `>` sent.
"""

from __future__ import annotations

import logging
import sys

wire_log = logging.getLogger("nplt.wire")


def configure_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def transcript_for(peer: str) -> Transcript | None:
    return Transcript(peer) if wire_log.isEnabledFor(logging.DEBUG) else None


class Transcript:
    """One line per frame of one connection."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def __call__(self, line: str) -> None:
        wire_log.debug("%s %s", self._peer, line)
