"""Pieces of a model's output while it is in flight.

Every provider speaks in these six, and nothing vendor-specific passes them but
what is marked as such: an opaque piece goes back to the model it came from,
where it stood, and nobody else ever looks into it.
Tool-call pieces with the same `index` belong to one call; their arguments are
raw text until the call is complete, because models stream JSON in fragments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nplt_protocol.json_values import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningPiece:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallPiece:
    index: int
    tool_name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaquePiece:
    """At this place of the answer: a signature of the reasoning before it, an item's id."""

    data: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """Of one call; a later one of the same call replaces it."""

    input_tokens: int
    """All of them, those served from a cache included."""
    output_tokens: int
    cached_tokens: int = 0

    def as_json(self) -> dict[str, int]:
        said = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return said | {"cached_tokens": self.cached_tokens} if self.cached_tokens else said


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The provider said that it is done. A stream without it was cut."""

    reason: str


ModelOutputDelta: TypeAlias = (
    TextPiece | ReasoningPiece | ToolCallPiece | OpaquePiece | UsageReport | Stopped
)
