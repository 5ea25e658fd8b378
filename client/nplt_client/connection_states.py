"""What a client can say about its connection, for whoever shows it to a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Online:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnecting:
    """Lost, and being looked for. The `attempt` comes `in_seconds` from when this is
    said; 0: now. Nothing is known to be lost: what was asked is asked again."""

    attempt: int
    in_seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """For good: it was closed, given up, or would not have us any more."""

    reason: str


ConnectionState: TypeAlias = Online | Reconnecting | Offline
