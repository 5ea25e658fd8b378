"""Servers that start at once: forked from a process that has imported all it needs.

Starting Python and importing the server takes most of a second, thousands of
times. What is forked is a whole process that runs the server's own command
line from its first line on; it has a process id, and dies of SIGKILL, like any.

`python -m faults.fork_server` is that process. It takes a line for each server to
be born, the command line as JSON, and says `born PID` and `gone PID`; what the
server says itself (`listening on …`) comes through the same pipe.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from faults.serving import DidNotStart, clean_environment, flags, log_path, newest_log

_PROGRAM = "nplt_server.cli"
_IMPORTED_LATER = (
    "nplt_server.app",
    "nplt_server.start",
    "nplt_server.logs",
    "nplt_server.settings_loader",
    "nplt_storage.files.store",
    "yaml",
)


class ForkServer:
    """Where servers for one data directory at a time come from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        with suppress(BrokenPipeError):
            self._process.communicate()

    def tell(self, order: list[str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DidNotStart("the process that servers are forked from is gone")
        return line.strip()


class ForkedServer:
    def __init__(self, fork_server: ForkServer, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = 0
        self._fork_server = fork_server
        self._pid: int | None = None

    def __enter__(self) -> ForkedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.kill()

    def spawn(self) -> None:
        self._fork_server.tell([str(log_path(self.data_dir)), *flags(self.data_dir)])
        self._pid = int(self._fork_server.hear().removeprefix("started "))

    def start(self) -> None:
        self.spawn()
        line = self._fork_server.hear()
        if not line.startswith("listening on "):
            self._pid = None
            raise DidNotStart(f"{line!r}; {newest_log(self.data_dir)}")
        self.port = int(line.rsplit(":", 1)[1])

    def kill(self) -> None:
        pid, self._pid = self._pid, None
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            while self._fork_server.hear() != f"gone {pid}":
                pass  # it may have said something before it died


def start() -> None:
    program = importlib.import_module(_PROGRAM)
    for name in _IMPORTED_LATER:
        importlib.import_module(name)
    for line in sys.stdin:
        log, *arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _live(program.main, log, arguments)
        print(f"started {pid}", flush=True)
        os.waitpid(pid, 0)
        print(f"gone {pid}", flush=True)


def _live(main: object, log: str, arguments: list[str]) -> None:
    assert callable(main)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    code = 1
    try:
        main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    start()
