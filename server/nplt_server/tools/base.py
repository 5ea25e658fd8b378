"""What a tool is: a name, a schema the model reads, and a function to run.

A tool that fails raises whatever it likes; the runner makes a result of it
that the model can read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from nplt_protocol.json_values import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDescription:
    name: str
    description: str
    parameters: JsonObject
    """JSON Schema of the arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    description: ToolDescription
    run: Callable[[JsonObject], Awaitable[str]]


class ToolFailed(Exception):
    """Raised by a tool with a sentence meant for the model."""
