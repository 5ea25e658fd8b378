"""Assembles one turn from its events: text, model, tool calls, end. Pure.

A turn may hold several calls of the model, with tools between them; the answer is the
text of all calls, separated by blank lines, without rejected answers. Deltas are placed by
offset (`nplt_protocol.resume`), and each call's stored entry replaces its deltas, unless
that entry was truncated to fit a message.
"""

from __future__ import annotations

from nplt_client.errors import TurnInterrupted, error_from_turn
from nplt_client.render.answers import (
    fallback_words,
    model_of,
    stop_words,
    tokens_of_answer,
)
from nplt_protocol import messages
from nplt_protocol.json_text import JsonObject
from nplt_protocol.resume import Extent

CALLS_APART = "\n\n"


class _CallText(Extent):
    """The text of one call, and how much of it was returned to the caller."""

    __slots__ = ("_pieces", "shown")

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[str] = []
        self.shown = 0

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, delta: messages.TextDelta) -> str:
        """Returns the part that was not returned before."""
        if delta.replay_from is not None:
            self._pieces = [self.text[: delta.replay_from]]
        new = self.take(delta.offset, delta.text, replay_from=delta.replay_from)
        self._pieces.append(new)
        return self._unseen(new)

    def replace(self, text: str) -> str:
        self._pieces = [text]
        self.length = len(text)
        return self._unseen(text)

    def _unseen(self, new: str) -> str:
        """Returns the part of `new`, which ends the text, that was not returned before."""
        start = self.length - len(new)
        unseen = new[max(0, self.shown - start) :]
        self.shown = max(self.shown, self.length)
        return unseen


_OF_A_RESULT = ("tool_call_id", "tool_name", "status", "duration", "result")


class ReceivedTurn:
    def __init__(self) -> None:
        self.receipt: messages.Receipt | None = None
        self.model: str | None = None
        self.finished: messages.TurnFinished | None = None
        self.abandoned = False
        """Whether the caller stopped following the turn before its end."""
        self.was_dropped = False
        """Whether its conversation was moved to the trash."""
        self.tool_calls: dict[str, JsonObject] = {}
        self.notices: list[str] = []
        """Lines that a person should read: how the answer was made."""
        self.lacks_text = False
        """Whether a call's deltas have a gap and its entry was truncated, so that only the
        record has all of its text."""
        self._calls: dict[int, _CallText] = {}
        self._rejected: set[int] = set()
        """Calls whose answer did not fit the schema, after which the model was called again."""
        self._has_text = False
        self._stopped_at: int | None = None
        """The tokens of the last answer."""

    @property
    def is_later(self) -> bool:
        """Whether the prompt's time has not come, so that there is nothing to follow yet."""
        return self.receipt is not None and self.receipt.state == "later"

    @property
    def stop_words(self) -> str:
        """Why the answer is not whole; empty if it is."""
        if self.finished is None or self.finished.state != "completed":
            return ""
        return stop_words(self.finished.stop_reason, self._stopped_at)

    @property
    def fallback_words(self) -> str:
        """Why another model answered than the one that was to; empty if none did."""
        if self.finished is None:
            return ""
        has_answered = self.finished.state == "completed"
        return fallback_words(self.model, self.finished.fallback_from, has_answered=has_answered)

    @property
    def text(self) -> str:
        texts = (self._calls[call].text for call in sorted(self._calls.keys() - self._rejected))
        return CALLS_APART.join(text for text in texts if text)

    @property
    def last_text(self) -> str:
        """The text of the last call: with a schema that is the whole answer."""
        return self._calls[max(self._calls)].text if self._calls else ""

    def raise_unless_completed(self) -> None:
        if self.finished is None or self.finished.state == "completed":
            return
        if self.finished.state == "interrupted" and self.finished.later is None:
            raise TurnInterrupted("the answer was interrupted", text=self.text)
        raise error_from_turn(self.finished.error)

    def apply(self, event: messages.Event) -> str:
        """Applies an event of this turn, and returns the piece that it adds to the answer."""
        match event:
            case messages.TurnStarted():
                self.model = event.model
            case messages.TextDelta():
                return self._take_text(event.call, event)
            case messages.AgentThought(type="notice", content=str(notice)):
                self.notices.append(notice)
            case messages.EntryAdded():
                return self._take_entry(event)
            case messages.ToolStarted():
                self.tool_calls[event.tool_call_id] = {
                    "tool_call_id": event.tool_call_id,
                    "tool_name": event.tool_name,
                    "arguments": event.arguments,
                    "status": "pending",
                }
            case messages.ToolFinished():
                name, tool_name = event.tool_call_id, event.tool_name
                bare: JsonObject = {"tool_call_id": name, "tool_name": tool_name, "arguments": {}}
                finished = self.tool_calls.setdefault(name, bare)
                finished.update(status=event.status, duration=event.duration, result=event.result)
                if event.truncated:
                    finished.update(truncated=True, size=event.size)
            case messages.TurnFinished():
                self.finished = event
                self.model = event.model or self.model
            case _:
                pass
        return ""

    def _take_entry(self, event: messages.EntryAdded) -> str:
        entry = event.entry
        content = entry.get("content")
        if entry.get("kind") == "tool_results":
            self._take_results(entry)
        if entry.get("role") != "assistant" or not isinstance(content, str):
            return ""
        self.model = model_of(entry) or self.model  # a fallback may have answered
        self._stopped_at = tokens_of_answer(entry)
        call = event.call if event.call is not None else len(self._calls)
        if entry.get("truncated"):
            held = self._calls[call].length if call in self._calls else 0
            self.lacks_text |= held != entry.get("size")
            if held >= len(content):
                return ""
        if entry.get("rejected"):
            self._rejected.add(call)
        return self._take_text(call, content)

    def _take_results(self, entry: JsonObject) -> None:
        """Adds the results of tools whose events were missed."""
        results = entry.get("tool_calls")
        for result in results if isinstance(results, list) else ():
            if isinstance(result, dict) and isinstance(name := result.get("tool_call_id"), str):
                known = {key: result[key] for key in _OF_A_RESULT if key in result}
                self.tool_calls[name] = {"arguments": {}, **self.tool_calls.get(name, {}), **known}

    def _take_text(self, number: int, given: messages.TextDelta | str) -> str:
        """Adds a piece of a call's text, or all of it. A blank line separates it from the text
        of the call before."""
        call = self._calls.setdefault(number, _CallText())
        is_first = call.shown == 0
        piece = call.replace(given) if isinstance(given, str) else call.add(given)
        if not piece:
            return ""
        later = is_first and self._has_text
        self._has_text = True
        return CALLS_APART + piece if later else piece
