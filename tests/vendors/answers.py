"""What a model is made to answer: a script is a function from a call to an `Answer`.

An answer is told in parts that every API knows in its own way; pieces of a text or of
a call's arguments are so many characters long. The default script says the last user
text again. A script may also raise a `Rejection`, for whatever no rule here knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tests.vendors.faults import Fault
from tests.vendors.fields import JsonObject

ApiName = Literal["chat", "responses", "messages"]
Stop = Literal["end", "tools", "length", "filter", "refusal", "stop_sequence", "pause"]


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """Anthropic: a signed block (`redacted`: an encrypted one); responses: a reasoning
    item; chat: only counted, unless the wire has a field for it."""

    text: str
    redacted: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is sent as it is, so it may be broken JSON."""

    name: str
    arguments: str = "{}"
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    text: str


@dataclass(frozen=True, slots=True)
class UnknownItem:
    """A block or item of a type no client knows, given as it is on the wire."""

    block: JsonObject


Part = Text | Thinking | ToolCall | Refusal | UnknownItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    parts: tuple[Part, ...]
    stop: Stop | None = None  # by what the parts are, if not told
    piece_characters: int = 6
    fault: Fault | None = None

    @property
    def stopped_by(self) -> Stop:
        if self.stop is not None:
            return self.stop
        if any(isinstance(part, Refusal) for part in self.parts):
            return "refusal"
        return "tools" if any(isinstance(part, ToolCall) for part in self.parts) else "end"

    def pieces(self, text: str) -> list[str]:
        size = self.piece_characters
        return [text[start : start + size] for start in range(0, len(text), size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request the rules have let pass, as the script sees it."""

    api: ApiName
    body: JsonObject
    headers: Mapping[str, str]
    number: int  # of the request, from 1; refused ones and all APIs are counted


Script = Callable[[Call], Answer]


def say(*texts: str) -> Answer:
    return Answer(parts=tuple(Text(text) for text in texts))


def echo(call: Call) -> Answer:
    messages = call.body["input"] if call.api == "responses" else call.body["messages"]
    if isinstance(messages, str):
        return say(messages)
    users = [message for message in messages if message.get("role") == "user"]
    return say(_text_of(users[-1]["content"]) if users else "nothing")


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    assert isinstance(content, list)
    texts = [part["text"] for part in content if "text" in part]
    return " ".join(texts) or "nothing"
