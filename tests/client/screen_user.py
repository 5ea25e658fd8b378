"""A person in front of a whole screen: a pseudo-terminal, and a terminal's memory of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pyte
from tests.client.nplt_process import NPLT, SECONDS_MAX, default_ctrl_c, private_environment
from tests.client.terminal_user import end

_READ_SECONDS = 0.05


class ScreenPerson:
    def __init__(self, child: Any, rows: int, columns: int) -> None:
        self.raw = b""
        """Every byte that was sent to the terminal."""
        self._child = child
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def screen(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column of the terminal's own cursor."""
        return self._screen.cursor.y, self._screen.cursor.x

    def sees(self, *words: str) -> None:
        """Waits until all of it stands on the screen at once."""
        self._wait(lambda: all(each in self.screen for each in words), f"to see {words}")

    def sees_no(self, words: str) -> None:
        self._wait(lambda: words not in self.screen, f"not to see {words}")

    def receives(self, sequence: bytes) -> None:
        """Waits for what is not seen: a bell, a notification."""
        self._wait(lambda: sequence in self.raw, f"for {sequence!r}")

    def sees_the_cursor_in(self, words: str) -> None:
        self._wait(
            lambda: words in self._screen.display[self.cursor[0]], f"for the cursor in {words}"
        )

    def types(self, text: str) -> None:
        self._child.send(text.encode())

    def pastes(self, text: str) -> None:
        self.types(f"\x1b[200~{text}\x1b[201~")

    def presses_enter(self) -> None:
        self.types("\r")

    def presses_escape(self) -> None:
        self.types("\x1b")

    def presses_ctrl(self, letter: str) -> None:
        self._child.sendcontrol(letter)

    def resizes(self, rows: int, columns: int) -> None:
        self._screen.resize(rows, columns)
        self._child.setwinsize(rows, columns)

    def sees_it_end(self) -> int:
        self._wait(lambda: not self._child.isalive(), "it to end")
        self._read()
        return int(self._child.exitstatus)

    @property
    def last_line(self) -> str:
        return self.raw.rsplit(b"\x1b", 1)[-1].partition(b"l")[2].decode().strip()

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + SECONDS_MAX
        while not holds():
            assert time.monotonic() < give_up, f"waited in vain {what}; the screen:\n{self.screen}"
            self._read()

    def _read(self) -> None:
        try:
            data = self._child.read_nonblocking(65536, timeout=_READ_SECONDS)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            return
        self.raw += data
        self._stream.feed(data)


@contextmanager
def at_screen(
    *arguments: str, home: Path, rows: int = 30, columns: int = 90, **environ: str
) -> Iterator[ScreenPerson]:
    child: Any = pexpect.spawn(
        NPLT[0],
        [*NPLT[1:], *arguments],
        env=private_environment(home, COLORTERM="truecolor", **environ),
        timeout=SECONDS_MAX,
        dimensions=(rows, columns),
        preexec_fn=default_ctrl_c,
        echo=False,
    )
    child.delaybeforesend = None
    try:
        yield ScreenPerson(child, rows, columns)
    finally:
        end(child)
