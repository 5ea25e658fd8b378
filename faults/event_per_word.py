"""The server, with an `offline/echo` that pauses after every word, so that each is an event.

`python -m faults.event_per_word python -m nplt_server …` runs the command after it. Without it,
`offline/echo` sends many words in one event if it need not wait.
"""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    echo = importlib.import_module("nplt_server.providers.offline")
    echo._CHECKPOINT_EVERY = 1  # type: ignore[attr-defined]
    program = importlib.import_module("nplt_server.cli")
    program.main(sys.argv[4:])
