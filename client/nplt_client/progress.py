"""How far something long has come, for a person who waits; nothing for a program.

One line on stderr that is written over, begun only when it takes long enough to
wonder about, and gone when it is over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import TextIO

from nplt_client.sanitize import sanitize_line
from nplt_client.tables import shorten, width_of
from nplt_client.terminal import is_terminal

BEGIN_AFTER_SECONDS = 0.5
BETWEEN_SECONDS = 0.1
_CELLS = 24
_NAME_WIDTH_MAX = 40


class ProgressBar:
    def __init__(
        self,
        name: str,
        total: int,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name = shorten(sanitize_line(name), _NAME_WIDTH_MAX)
        self._total = max(1, total)
        self._stream = stream or sys.stderr
        self._clock = clock
        self._next = clock() + BEGIN_AFTER_SECONDS
        self._width = 0
        self._is_wanted = is_terminal(self._stream)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def show(self, done: int) -> None:
        if not self._is_wanted or (now := self._clock()) < self._next:
            return
        self._next = now + BETWEEN_SECONDS
        share = min(1.0, done / self._total)
        full = int(share * _CELLS)
        line = f"{self._name}  {'█' * full}{'░' * (_CELLS - full)}  {share:4.0%}"
        self._width = width_of(line)
        self._write(f"\r{line}")

    def note(self, text: str) -> None:
        """For what goes on elsewhere, and can't be measured from here."""
        if self._is_wanted:
            line = f"{self._name}  {text}"
            self._write("\r" + " " * self._width + f"\r{line}")
            self._width = width_of(line)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
