"""The server with an echo that takes a breath after every word: an event for each.

`python -m faults.event_per_word python -m nplt_server …` runs that last part.
Left alone, offline/echo says many words in one breath when it may be quick.
"""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    echo = importlib.import_module("nplt_server.providers.offline")
    echo._CHECKPOINT_EVERY = 1  # type: ignore[attr-defined]
    program = importlib.import_module("nplt_server.cli")
    program.main(sys.argv[4:])
