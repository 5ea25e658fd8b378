"""What is known of one turn, put together from its events. Pure.

A turn may hold several calls of the model, with tools between them; the answer
is the text of all of them, a blank line apart. Text arrives as deltas placed by
offset (a piece that was sent twice counts once, one from beyond a gap not at
all), and each call's stored entry replaces its deltas, unless that entry itself
was cut to fit a message.
"""

from __future__ import annotations

from collections.abc import Callable

from nplt_protocol.events import (
    EntryAdded,
    Event,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import Receipt

CALLS_APART = "\n\n"


class _CallText:
    """The text of one call. `length` counts code points, as offsets do."""

    __slots__ = ("_pieces", "length", "shown")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.length = 0
        self.shown = 0

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, delta: TextDelta) -> str:
        """Gives the part that nobody has seen yet."""
        if delta.replay_from is not None:
            self._pieces.clear()
            self.length = delta.replay_from
        if delta.offset > self.length:
            return ""
        new = delta.text[self.length - delta.offset :]
        if new:
            self._pieces.append(new)
            self.length += len(new)
        unseen = delta.text[max(0, self.shown - delta.offset) :]
        self.shown = max(self.shown, self.length)
        return unseen

    def replace(self, text: str) -> str:
        unseen = text[self.shown :]
        self._pieces = [text]
        self.length = len(text)
        self.shown = max(self.shown, len(text))
        return unseen


_OF_A_RESULT = ("tool_call_id", "tool_name", "status", "duration", "result")


class TurnRecord:
    def __init__(self) -> None:
        self.receipt: Receipt | None = None
        self.model: str | None = None
        self.finished: TurnFinished | None = None
        self.abandoned = False
        """Whoever asked did not want to wait for the end."""
        self.tool_calls: dict[str, JsonObject] = {}
        self.lacks_text = False
        """A call's text came with a gap, and its entry cut: the record has it whole."""
        self._calls: dict[int, _CallText] = {}
        self._said_something = False

    @property
    def text(self) -> str:
        texts = (self._calls[call].text for call in sorted(self._calls))
        return CALLS_APART.join(text for text in texts if text)

    @property
    def place(self) -> tuple[int, int]:
        """The call that speaks, and how much of its text has come."""
        call = max(self._calls, default=0)
        return call, self._calls[call].length if self._calls else 0

    def apply(self, event: Event) -> str:
        """Takes an event of this turn in; gives the piece of the answer it adds."""
        match event:
            case TurnStarted():
                self.model = event.model
            case TextDelta():
                return self._apart(event.call, lambda call: call.add(event))
            case EntryAdded():
                return self._take_entry(event)
            case ToolStarted():
                self.tool_calls[event.tool_call_id] = {
                    "tool_call_id": event.tool_call_id,
                    "tool_name": event.tool_name,
                    "arguments": event.arguments,
                    "status": "pending",
                }
            case ToolFinished():
                self._finish_tool(event)
            case TurnFinished():
                self.finished = event
            case _:
                pass
        return ""

    def _take_entry(self, event: EntryAdded) -> str:
        entry = event.entry
        content = entry.get("content")
        if entry.get("kind") == "tool_results":
            self._take_results(entry)
        if entry.get("role") != "assistant" or not isinstance(content, str):
            return ""
        self.model = self.model or _model_of(entry)
        call = event.call if event.call is not None else len(self._calls)
        if entry.get("truncated"):
            held = self._calls[call].length if call in self._calls else 0
            self.lacks_text |= held != entry.get("size")
            if held >= len(content):
                return ""
        return self._apart(call, lambda text: text.replace(content))

    def _take_results(self, entry: JsonObject) -> None:
        """Of tools whose events were missed."""
        results = entry.get("tool_calls")
        for result in results if isinstance(results, list) else ():
            if isinstance(result, dict) and isinstance(name := result.get("tool_call_id"), str):
                known = {key: result[key] for key in _OF_A_RESULT if key in result}
                self.tool_calls[name] = {"arguments": {}, **self.tool_calls.get(name, {}), **known}

    def _finish_tool(self, event: ToolFinished) -> None:
        call = self.tool_calls.setdefault(
            event.tool_call_id,
            {"tool_call_id": event.tool_call_id, "tool_name": event.tool_name, "arguments": {}},
        )
        call.update(status=event.status, duration=event.duration, result=event.result)
        if event.truncated:
            call.update(truncated=True, size=event.size)

    def _apart(self, number: int, change: Callable[[_CallText], str]) -> str:
        """The first words of a later call stand apart from the call before."""
        call = self._calls.setdefault(number, _CallText())
        is_first = call.shown == 0
        piece = change(call)
        if not piece:
            return ""
        apart = is_first and self._said_something
        self._said_something = True
        return CALLS_APART + piece if apart else piece


def _model_of(entry: JsonObject) -> str | None:
    if isinstance(model := entry.get("model"), str):
        return model
    match entry.get("invocation"):
        case {"provider": str(provider), "model": str(model)}:
            return f"{provider}/{model}"
        case _:
            return None
