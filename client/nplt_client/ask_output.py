"""`nplt ask` for people: the answer on stdout, remarks on stderr.

The forms for programs are in `ask_json`; both are told the same things: that
the turn began, each event with the piece of the answer it adds, the end or the
failure.
"""

from __future__ import annotations

from typing import TextIO

from nplt_client.errors import NpltError
from nplt_client.terminal import AnswerWriter, say
from nplt_client.turn_record import TurnRecord
from nplt_protocol.events import ApprovalRequest, Event
from nplt_protocol.replies import Receipt


class TextOutput:
    def __init__(self, stream: TextIO, *, streams: bool, quiet: bool) -> None:
        self._answer = AnswerWriter(stream)
        self._streams = streams
        self._quiet = quiet

    def began(self, receipt: Receipt, model: str) -> None:
        if receipt.position and not self._quiet:
            say(f"waiting behind {receipt.position} other prompt(s)", dimmed=True)

    def took(self, event: Event, piece: str) -> None:
        if self._streams:
            self._answer.write(piece)
        if isinstance(event, ApprovalRequest) and not self._quiet:
            say(f"the tool {event.tool_name} waits for approval", dimmed=True)

    def ended(self, record: TurnRecord) -> None:
        if not self._streams:
            self._answer.write(record.text)
        self._answer.end_line()

    def failed(self, error: NpltError, record: TurnRecord) -> None:
        self._answer.end_line()
