"""Counts what the server does since its start, for STATUS and for metrics.

The counts are kept for each user, because a user may see only his own in STATUS. Metrics add
them up; they name no user and no conversation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from nplt_storage.durations import Durations


@dataclass(slots=True, kw_only=True)
class Counters:
    turns_started: int = 0
    turns_finished: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """The turns that ended, by model and final state."""
    turn_seconds: Durations = field(default_factory=Durations)
    tool_calls: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """The calls by MCP server (empty for tools of no MCP server) and status."""
    replays: int = 0
    """How often an attaching client was sent events that it had missed."""
    lagged: int = 0
    """How often a client was detached because it read too slowly."""

    @property
    def turns_by_state(self) -> Counter[str]:
        states: Counter[str] = Counter()
        for (_, state), number in self.turns_finished.items():
            states[state] += number
        return states
