"""Which colours the person chose last: light, dark, or the terminal's own sixteen."""

from __future__ import annotations

import contextlib
from pathlib import Path

THEMES = {"dark": "dark", "light": "light", "terminal": "ansi-dark"}
"""What `/theme` takes, and what textual calls it."""
DEFAULT = "dark"


def remembered_theme(file: Path) -> str:
    try:
        name = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return DEFAULT
    return name if name in THEMES else DEFAULT


def remember_theme(file: Path, name: str) -> None:
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(f"{name}\n", encoding="utf-8")
