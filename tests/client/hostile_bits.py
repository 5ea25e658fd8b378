"""What hostile text is made of, and what must never reach a terminal."""

from __future__ import annotations

import re

FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]",
)
BITS = [
    "\x1b", "\x1b[", "\x1b]", "\x1bP", "\x1b_", "\x1b^", "\x1bX", "\x1b\\", "\x1b(", "\x1bc",
    "\x9b", "\x9d", "\x90", "\x9c", "\x07", "\x18", "\x1a", "\x00", "\x08", "\x7f", "\r", "\r\n",
    "\n", "\t", "31m", "0;title", "?1049h", "2J", "6n", ";", " ", "q", "A", "日本", "é", "🎉",
    "\u202e", "\u2066", "\u2069", "\u200d", "\ud83d", "text", "52;c;aGk=", "x" * 70, "1" * 70,
]  # fmt: skip
