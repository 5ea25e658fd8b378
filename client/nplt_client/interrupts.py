"""Ctrl+C as something that is noticed, not something that strikes anywhere.

An exception raised between `recv` and the decoder would lose bytes and garble
the stream we still need for saying CANCEL. So the first Ctrl+C only leaves a
mark (`Interrupts`: in a pipe that every wait looks at) or makes a call
(`OnInterrupt`); a second one, from someone in a hurry, is the usual
KeyboardInterrupt. Where the signal is ignored, as in the background of a
script, it stays ignored.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType


class OnInterrupt:
    """While this `with` lasts, the first Ctrl+C calls `notice` and nothing else."""

    def __init__(self, notice: Callable[[], object]) -> None:
        self._notice = notice
        self._struck = False
        self._former: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> OnInterrupt:
        self._former = signal.getsignal(signal.SIGINT)
        if self._former is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._strike)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._former is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._former)

    def _strike(self, number: int, frame: FrameType | None) -> None:
        if self._struck:
            raise KeyboardInterrupt
        self._struck = True
        self._notice()


class Interrupts:
    """Ctrl+C for someone who waits with `select`: readable once it was pressed."""

    def __init__(self) -> None:
        self._pending = False
        self._pipe = (-1, -1)
        self._on_interrupt = OnInterrupt(self._mark)

    def __enter__(self) -> Interrupts:
        self._pipe = os.pipe()
        self._on_interrupt.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._on_interrupt.__exit__(kind, error, trace)
        for end in self._pipe:
            os.close(end)

    def fileno(self) -> int:
        return self._pipe[0]

    def check(self) -> None:
        """Called where stopping is safe."""
        if self._pending:
            self._pending = False
            os.read(self._pipe[0], 1)
            raise KeyboardInterrupt

    def _mark(self) -> None:
        self._pending = True
        os.write(self._pipe[1], b"!")
