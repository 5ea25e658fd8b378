"""Small texts in many languages and notations, each with its number of o200k tokens.

`o200k_counts.json` is made from the real vocabulary, where it is installed:

    python -m tests.server.tokens.corpus
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent
COUNTS = FOLDER / "o200k_counts.json"


def texts() -> dict[str, str]:
    return {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.txt"))}


def o200k_counts() -> dict[str, int]:
    counts: dict[str, int] = json.loads(COUNTS.read_text("utf-8"))
    return counts
