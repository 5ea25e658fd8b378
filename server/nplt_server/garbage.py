"""Keeps modules that are loaded late out of the garbage collector's way.

A full collection visits every object that may be part of a cycle. The SDKs of vendors and of MCP
make 200,000 such objects, which stay until the process ends: each collection would stop the event
loop for a quarter of a second, and Python would therefore collect so rarely that the conversations
closed in between take tens of megabytes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading_modules() -> Iterator[None]:
    """Exempts from collections the objects that exist when the block ends. Garbage from before the
    block is collected first, because it would never be again."""
    gc.collect()
    yield
    gc.freeze()
