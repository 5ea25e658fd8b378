"""May this call be run? The port to whoever can be asked about a tool classed `ask`.

Asking takes as long as people take: no clock of the runner's runs meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nplt_storage.facts.tool_calls import ToolCallRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    allowed: bool
    why_not: str = ""
    """A sentence for the model."""


class Asker(Protocol):
    async def ask(self, call: ToolCallRequest) -> Permission: ...


class NobodyToAsk:
    """Where tools run outside of any conversation."""

    async def ask(self, call: ToolCallRequest) -> Permission:
        return Permission(
            allowed=False,
            why_not=f"not run: {call.tool_name} needs someone's approval, and nobody can be asked "
            f"here; `tools: {{{call.tool_name}: allow}}` in the server's settings would allow it",
        )
