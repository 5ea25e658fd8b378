"""One answer on the screen, as it comes.

The answer itself goes to stdout. Thoughts and tools are dimmed lines on
stderr, for terminals with colours only: without the dimming they would read
as part of the answer.
"""

from __future__ import annotations

import sys

from nplt_client.sanitize import sanitize, sanitize_line
from nplt_client.tables import shorten
from nplt_client.terminal import AnswerWriter, Paint, colour_wanted
from nplt_client.turn_record import TurnRecord
from nplt_protocol.events import AgentThought, Event, ToolFinished, ToolStarted

_REMARK_WIDTH = 100
_SAID_BY_OTHER_EVENTS = frozenset({"tool_call", "generating"})


class TurnDisplay:
    def __init__(self) -> None:
        self.record = TurnRecord()
        self._answer = AnswerWriter(sys.stdout)
        self._paint = Paint(enabled=colour_wanted(sys.stderr))
        self._reasoning = ""

    def show(self, event: Event) -> None:
        piece = self.record.apply(event)
        if isinstance(event, AgentThought) and event.type == "reasoning":
            self._reason(event.text or "")
            return
        self._end_reasoning()
        if piece:
            self._answer.write(piece)
        elif remark := _remark_on(event):
            self._remark(shorten(sanitize_line(remark), _REMARK_WIDTH))

    def end(self) -> None:
        self._end_reasoning()
        self._answer.end_line()

    def _reason(self, text: str) -> None:
        *lines, self._reasoning = (self._reasoning + text).split("\n")
        for line in lines:
            self._remark(sanitize(line))

    def _end_reasoning(self) -> None:
        if self._reasoning:
            self._remark(sanitize(self._reasoning))
            self._reasoning = ""

    def _remark(self, text: str) -> None:
        if self._paint.enabled:
            self._answer.end_line()
            sys.stderr.write(self._paint.dim(text) + "\n")
            sys.stderr.flush()


def _remark_on(event: Event) -> str | None:
    match event:
        case AgentThought() if event.type not in _SAID_BY_OTHER_EVENTS:
            return event.content
        case ToolStarted():
            return f"⚙ {event.tool_name} {event.arguments or ''}"
        case ToolFinished():
            return f"⚙ {event.tool_name}: {event.status}, {event.duration:.1f} s: {event.result}"
        case _:
            return None
