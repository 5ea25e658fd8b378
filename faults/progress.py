"""The progress that a person sees, on stderr; stdout is for the table alone."""

from __future__ import annotations

import sys
import threading


class Progress:
    """Counts what is done; several threads may call it."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._lock = threading.Lock()
        self._shows_all = sys.stderr.isatty()

    def step(self, remark: str = "") -> None:
        with self._lock:
            self._done += 1
            if self._shows_all:
                print(f"\r\x1b[K{self._line(remark)}", end="", file=sys.stderr, flush=True)
            elif self._is_a_tenth():
                print(self._line(remark), file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shows_all and self._done:
            print(file=sys.stderr, flush=True)

    def _line(self, remark: str) -> str:
        of = f"/{self._total}" if self._total else ""
        return f"{self._what} {self._done}{of} {remark}".rstrip()

    def _is_a_tenth(self) -> bool:
        stride = max(1, (self._total or 100) // 10)
        return self._done % stride == 0
