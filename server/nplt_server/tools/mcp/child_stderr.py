"""What a child process says on its standard error: read, so that it never has to wait,
and shown in the log at level debug, so much and no more."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from types import TracebackType
from typing import Final, TextIO

from nplt_server.tools.mcp.foreign_text import one_line

log = logging.getLogger(__name__)

_LINE_BYTES_MAX: Final = 2_000
_LOGGED_BYTES_MAX: Final = 256 * 1024
"""Of one process in its whole life."""
_READ_BYTES: Final = 16 * 1024
_LAST_READS_MAX: Final = 16
"""What a dead process left behind is at most a full pipe; one that lives on may write for ever."""


class ChildStderr:
    """`file` is what the child is given; `started` when it has it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._line = b""
        self._logged_bytes = 0

    def __enter__(self) -> ChildStderr:
        self._descriptor, given = os.pipe()
        os.set_blocking(self._descriptor, False)
        self.file: TextIO = os.fdopen(given, "w")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._read)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.file.close()
        for _ in range(_LAST_READS_MAX):
            if not self._read():
                break
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def started(self) -> None:
        """The child has its own copy; with ours closed, its end can be seen."""
        self.file.close()

    def _read(self) -> bool:
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._descriptor, _READ_BYTES)
            if not data:
                self._loop.remove_reader(self._descriptor)
                data = b"\n" if self._line else b""
        if log.isEnabledFor(logging.DEBUG):
            *lines, self._line = (self._line + data).split(b"\n")
            self._line = self._line[:_LINE_BYTES_MAX]
            for line in lines:
                self._log(line)
        return bool(data)

    def _log(self, line: bytes) -> None:
        if not line.strip() or self._logged_bytes > _LOGGED_BYTES_MAX:
            return
        text = one_line(line[:_LINE_BYTES_MAX].decode(errors="replace"), characters_max=500)
        log.debug("mcp %s says: %s", self._name, text)
        self._logged_bytes += len(line)
        if self._logged_bytes > _LOGGED_BYTES_MAX:
            log.debug("mcp %s: what else it says is not logged", self._name)
