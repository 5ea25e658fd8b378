"""A person at a pseudo-terminal in which `nplt` runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
from tests.client.nplt_process import NPLT, SECONDS_MAX, default_ctrl_c, private_environment

PROMPT = "you ▸ "


class Person:
    def __init__(self, child: Any) -> None:
        self._child = child

    def sees(self, text: str) -> str:
        """Waits for it; gives what was shown before it."""
        self._child.expect_exact(text)
        return str(self._child.before)

    def sees_match(self, pattern: str) -> str:
        self._child.expect(pattern)
        return str(self._child.match.group(1))

    def is_asked(self) -> str:
        return self.sees(PROMPT)

    def types(self, line: str) -> None:
        self._child.sendline(line)

    def types_without_enter(self, text: str) -> None:
        self._child.send(text)

    def presses_ctrl_c(self) -> None:
        self._child.sendintr()

    def presses_ctrl_d(self) -> None:
        self._child.sendeof()

    def sees_all(self) -> str:
        return str(self._child.read())

    def sees_it_end(self) -> int:
        self._child.expect(pexpect.EOF)
        self._child.wait()
        return int(self._child.exitstatus)


@contextmanager
def at_terminal(*arguments: str, home: Path, **environ: str) -> Iterator[Person]:
    """Chats are plain here; `screen_user` has the other kinds."""
    if arguments[0].startswith(("chat", "-", "nplt://")):
        arguments += ("--plain",)
    child: Any = pexpect.spawn(
        NPLT[0],
        [*NPLT[1:], *arguments],
        env=private_environment(home, **environ),
        encoding="utf-8",
        timeout=SECONDS_MAX,
        dimensions=(40, 200),
        preexec_fn=default_ctrl_c,
        echo=False,
    )
    child.delaybeforesend = None  # a person who waits for the prompt needs no pause
    try:
        yield Person(child)
    finally:
        end(child)


def end(child: Any) -> None:
    """Ends the program, however busy the machine is: pexpect itself gives up soon."""
    if child.isalive():
        child.kill(signal.SIGKILL)
        child.ptyproc.wait()
    child.delayafterclose = child.ptyproc.delayafterclose = 0
    child.close()
