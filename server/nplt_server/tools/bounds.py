"""How much one tool may give back. What is more is cut, and the result says so."""

from __future__ import annotations

from typing import Final

from nplt_server.clean_text import clean_text

RESULT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of UTF-8. Smaller limits say how much of it stands in the record and is shown."""


def bounded(text: str, *, bytes_max: int = RESULT_BYTES_MAX) -> str:
    """Text that can be written down. That it was cut stands first, where it is read."""
    if len(text) * 4 <= bytes_max:  # no character takes more
        return clean_text(text)
    # Each takes at least a byte, so only the beginning is worth encoding.
    beginning = clean_text(text[: bytes_max + 1]).encode()
    if len(text) <= bytes_max and len(beginning) <= bytes_max:
        return clean_text(text)
    kept = beginning[:bytes_max].decode(errors="ignore")
    return f"[cut: the first {len(kept):,} of {len(text):,} characters]\n{kept}"
