"""Text that can be written down: half of a surrogate pair can't."""

from __future__ import annotations


def clean_text(text: str) -> str:
    """The same text; lone surrogates, which no UTF-8 can hold, become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
