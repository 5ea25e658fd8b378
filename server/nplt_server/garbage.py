"""Keeps modules that are loaded late out of the garbage collector's way.

A full collection visits every object that may be part of a cycle. The SDKs of vendors and of MCP
make 200,000 such objects, which stay until the process ends: each collection would stop the event
loop for a quarter of a second, and Python would therefore collect so rarely that the conversations
closed in between take tens of megabytes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading_modules() -> Iterator[None]:
    """Exempts the objects that exist when the block ends from collections, if the block has loaded
    modules. Garbage from before the block is collected first: later it would stay for ever."""
    gc.collect()
    loaded = len(sys.modules)
    yield
    if len(sys.modules) > loaded:
        gc.freeze()
