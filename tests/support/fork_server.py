"""Servers that start at once: forked from a process that has imported all it needs.

Starting Python and importing the server takes most of a second, thousands of times in the
tests and in `faults`. What is forked is a whole process that runs the server's own command
line from its first line on; it has a process id, an exit code, and dies of SIGKILL, like
any. `python -m tests.support.fork_server` is the process they come from. It takes lines of
JSON: a command line for each server to be born, answered with its process id, and a process
id to wait for, answered with the exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path

_IMPORTED_LATER = (
    "nplt_server.app",
    "nplt_server.logs",
    "nplt_server.settings_loader",
    "nplt_server.start",
    "nplt_storage.files.store",
    "yaml",
)


class ForkServer:
    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )

    def start(self, arguments: list[str], *, said: Path, log: Path) -> int:
        """The process id; what it says goes to the one, what it logs to the other file."""
        return self._ask([str(said), str(log), *arguments])

    def wait_for(self, pid: int) -> int:
        """Its exit code, once it is gone."""
        return self._ask(pid)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._process.communicate()

    def _ask(self, order: list[str] | int) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def main() -> None:
    program = importlib.import_module("nplt_server.cli")
    for name in _IMPORTED_LATER:
        importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        if isinstance(order, int):
            print(os.waitstatus_to_exitcode(os.waitpid(order, 0)[1]), flush=True)
            continue
        said, log, *arguments = order
        pid = os.fork()
        if pid == 0:
            _live(program.main, said, log, arguments)
        print(pid, flush=True)


def _live(run: object, said: str, log: str, arguments: list[str]) -> None:
    assert callable(run)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(said, os.O_WRONLY), 1)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    code = 1
    try:
        run(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
