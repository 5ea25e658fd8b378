"""A log file of bounded size: the current file and a few older ones, `server.log.1` and so on.

In a module of its own because `logging.handlers` is slow to load, and a server in the foreground
logs to stderr.
"""

from __future__ import annotations

import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path


class RotatedFile(RotatingFileHandler):
    """The output of the process also goes to the current file, if it went to this file at the
    start: `nplt` starts servers in the background that way."""

    def __init__(self, path: Path, *, bytes_max: int, kept: int) -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        super().__init__(path, maxBytes=bytes_max, backupCount=kept, encoding="utf-8")
        self._outputs = [each for each in (1, 2) if _is_same_file(each, self._descriptor())]

    def doRollover(self) -> None:  # noqa: N802
        for output in (sys.stdout, sys.stderr):
            output.flush()
        super().doRollover()
        os.chmod(self.baseFilename, 0o600)  # noqa: PTH101
        for descriptor in self._outputs:
            os.dup2(self._descriptor(), descriptor)

    def _descriptor(self) -> int:
        assert self.stream is not None  # it is opened at once
        return self.stream.fileno()


def _is_same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False
