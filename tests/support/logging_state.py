"""Restores the process's logging after a test that configured it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from nplt_server import logs


@contextmanager
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    logs.switch_categories("")
