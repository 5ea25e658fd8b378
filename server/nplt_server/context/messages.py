"""What a model is shown, by role: values no vendor has shaped.

    system        the instruction
    model_input   what someone asked, and the live screen as it was then
    model_output  what a model said, and the tools it called
    tool_result   what those tools gave, all calls of one output

What some messages can do beyond that is an ability: who needs one asks for it
with a function here, and passes by what does not have it. So a message of a kind
nobody has thought of yet hurts nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from nplt_server.context.attachments import ContextAttachment
from nplt_storage.facts.entries import UNSTAMPED, ModelInvocationDescriptor, OutputPart
from nplt_storage.facts.json_values import JsonValue
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult

ContextRole: TypeAlias = Literal["system", "model_input", "model_output", "tool_result"]
ShownLevel: TypeAlias = Literal["live", "summary", "gist", "cut"]
"""The levels of detail of an entry, and: live, but with a piece out of its middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    seq: int = 0
    """The entry it shows; 0: it has no entry of its own."""
    level: ShownLevel = "live"
    timestamp: datetime = UNSTAMPED
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMessage(_Message):
    role: ClassVar[ContextRole] = "system"

    instruction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputMessage(_Message):
    role: ClassVar[ContextRole] = "model_input"

    content: str
    live_screen: str | None = None
    attachments: tuple[ContextAttachment, ...] = ()

    @property
    def text(self) -> str:
        """What is sent, but for pictures; `content` is what was said."""
        said = self.content
        if self.attachments:
            said = "\n\n".join((*(one.shown for one in self.attachments), said))
        return _with_screen(said, self.live_screen)

    @property
    def images(self) -> tuple[ContextAttachment, ...]:
        return tuple(one for one in self.attachments if one.is_image)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutputMessage(_Message):
    role: ClassVar[ContextRole] = "model_output"

    content: str
    tool_calls: tuple[ToolCallRequest, ...] = ()
    invocation: ModelInvocationDescriptor | None = None
    usage: Mapping[str, JsonValue] | None = None
    reasoning: str = ""
    parts: tuple[OutputPart, ...] = ()
    """How it came, for the model it came from, if what was sent before it is unchanged:
    elsewhere both are empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultsMessage(_Message):
    role: ClassVar[ContextRole] = "tool_result"

    results: tuple[ToolCallResult, ...]
    live_screen: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """What is sent, result by result: the screen comes with the last of them."""
        texts = [result.result for result in self.results]
        texts[-1:] = [_with_screen(text, self.live_screen) for text in texts[-1:]]
        return tuple(texts)


ContextMessage: TypeAlias = (
    SystemMessage | ModelInputMessage | ModelOutputMessage | ToolResultsMessage
)


@runtime_checkable
class ToolCallCarrier(Protocol):
    @property
    def tool_calls(self) -> tuple[ToolCallRequest, ...]: ...


@runtime_checkable
class TokenUsageCarrier(Protocol):
    @property
    def usage(self) -> Mapping[str, JsonValue] | None: ...


def tool_calls_of(message: object) -> tuple[ToolCallRequest, ...]:
    return message.tool_calls if isinstance(message, ToolCallCarrier) else ()


def usage_of(message: object) -> Mapping[str, JsonValue] | None:
    return message.usage if isinstance(message, TokenUsageCarrier) else None


def _with_screen(content: str, screen: str | None) -> str:
    """It has a heading of its own."""
    if screen is None:
        return content
    return f"{content}\n\n{screen}" if content else screen
