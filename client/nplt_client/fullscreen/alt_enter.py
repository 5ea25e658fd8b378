"""Alt+Enter, which most terminals send as Escape and Return.

Textual takes that for a plain Enter, and would send what was to be continued.
Its table of sequences is the one place where it can be told otherwise; should
the table be elsewhere one day, Ctrl+J still makes a new line.
"""

from __future__ import annotations

import contextlib
from typing import cast


def understand_alt_enter() -> None:
    with contextlib.suppress(ImportError, AttributeError):
        from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
        from textual.keys import Keys

        table = cast("dict[str, tuple[Keys, ...]]", ANSI_SEQUENCES_KEYS)
        for sequence in ("\x1b\r", "\x1b\n"):
            table.setdefault(sequence, (Keys.ControlJ,))
