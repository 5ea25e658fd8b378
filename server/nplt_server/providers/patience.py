"""How long a vendor may take, the same for all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    connect_seconds: float = 5.0
    first_token_seconds: float = 120.0
    gap_seconds: float = 60.0
    """Between two pieces of an answer, pings included."""
