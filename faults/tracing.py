"""Fault injection with strace: a chosen system call kills, fails or pretends.

strace counts the calls of each thread separately, so "the third pwrite64" is the third one of any
thread. With `-D` the traced program stays our child, so that it can be waited for and signalled as
usual.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from faults.results import CannotBeDone

_LETS_GO_SECONDS_MAX = 20.0
_BEGINS_A_CALL = re.compile(r"\d+ +\w+\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    calls: Sequence[str]
    effect: str
    """In strace's notation: `signal=SIGKILL`, `error=EIO`, `retval=0`."""
    when: str = "1+"
    """`3` is the third, `3+` all from the third on, `3+2` every second from the third on."""
    path: Path | None = None
    """If set, only calls on this file."""

    def options(self, log: Path) -> list[str]:
        calls = ",".join(self.calls)
        only = ["-P", str(self.path)] if self.path else []
        inject = f"inject={calls}:{self.effect}:when={self.when}"
        return ["-f", *only, "-o", str(log), "-e", f"trace={calls}", "-e", inject]


def through_strace(injection: Injection, log: Path) -> list[str]:
    """A command that runs a program under strace; the injection applies from its first call on."""
    check_strace()
    return ["strace", "-D", *injection.options(log), "--"]


class Attached:
    """An injection into a running program, in the body of a `with`."""

    def __init__(self, pid: int, injection: Injection, log: Path) -> None:
        check_strace()
        self._command = ["strace", *injection.options(log), "-p", str(pid)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Attached:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        if "attached" not in line:
            self._process.kill()
            self._process.wait()
            raise CannotBeDone(f"strace can't attach: {line.strip()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Detaches from the program, which continues if it lives."""
        assert self._process is not None
        if kind is None:
            self._process.terminate()
        # Otherwise the program died, and strace ends with it. It must not be told
        # to let go of a program that is just dying: it would wait for that for ever.
        try:
            self._process.communicate(timeout=_LETS_GO_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def injected(log: Path) -> int:
    """How often the fault was injected."""
    return log.read_text().count("(INJECTED)") if log.exists() else 0


def most_calls(log: Path) -> int:
    """The number of traced calls of the busiest thread."""
    lines = log.read_text().splitlines() if log.exists() else []
    threads = Counter(line.split(maxsplit=1)[0] for line in lines if _BEGINS_A_CALL.match(line))
    return max(threads.values(), default=0)


def check_strace() -> None:
    if shutil.which("strace") is None:
        raise CannotBeDone("needs strace")
