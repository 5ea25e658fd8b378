"""Who else is in the conversation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nplt_client.fullscreen.safe_text import safe_line
from nplt_protocol.json_values import JsonObject, JsonValue

_NAME_WIDTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    user: str
    program: str


def guests_in(clients: JsonValue | Sequence[JsonObject]) -> tuple[Guest, ...]:
    """As an ATTACH or a presence event lists them."""
    listed = clients if isinstance(clients, list | tuple) else ()
    return tuple(
        Guest(
            user=safe_line(one.get("user") or "", _NAME_WIDTH),
            program=safe_line(one.get("client") or "", _NAME_WIDTH),
        )
        for one in listed
        if isinstance(one, dict)
    )


def others(guests: Sequence[Guest], me: Guest) -> tuple[str, ...]:
    """Everyone but ourselves: other people by name, our own other programs by theirs, and
    how many more windows of this one there are."""
    left = list(guests)
    if me in left:
        left.remove(me)
    windows = left.count(me)
    names = tuple(
        (guest.program or "someone") if guest.user == me.user else guest.user
        for guest in left
        if guest != me
    )
    if not windows:
        return names
    return (*names, f"{windows} more {'window' if windows == 1 else 'windows'}")
