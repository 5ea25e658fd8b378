"""Ids of calls and names of tools as a vendor takes them.

Both keep what they are where it fits: letters, digits, `_` and `-`, and not too
many. An id that doesn't fit, or that another call of the same context has, becomes
a digest of itself, so no two calls ever share one. A name that doesn't fit keeps
what is legible of it; nobody offers a tool of such a name, it was made up by a
model or by another program.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from nplt_server.providers.compiling.rules import VendorRules

_ALLOWED: Final = re.compile(r"[A-Za-z0-9_-]+")
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_-]")
_ID_DIGITS: Final = 32
_NAME_DIGITS: Final = 8


class CallIds:
    """Of one context, call by call in its order: what comes later changes nothing."""

    def __init__(self, rules: VendorRules) -> None:
        self._characters_max = rules.call_id_characters_max
        self._taken: set[str] = set()
        self._repeats: dict[str, int] = {}

    def take(self, own_id: str) -> str:
        call_id = own_id
        while call_id in self._taken or not _fits(call_id, self._characters_max):
            number = self._repeats.get(own_id, 0)
            self._repeats[own_id] = number + 1
            digits = _digest(f"{number} {own_id}")[:_ID_DIGITS]
            call_id = f"call_{digits}"[-self._characters_max :]
        self._taken.add(call_id)
        return call_id


def fitting_tool_name(name: str, rules: VendorRules) -> str:
    if _fits(name, rules.tool_name_characters_max):
        return name
    room = rules.tool_name_characters_max - _NAME_DIGITS - 1
    stem = _NOT_ALLOWED.sub("_", name[:room]) or "tool"
    return f"{stem}-{_digest(name)[:_NAME_DIGITS]}"


def _fits(name: str, characters_max: int) -> bool:
    return len(name) <= characters_max and _ALLOWED.fullmatch(name) is not None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
