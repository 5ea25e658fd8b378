"""The server as a program: started, perhaps under a tracer, and killed.

Its environment has nothing that would configure it, and it writes no byte code, so that it touches
no files but its conversations.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from tests.support.fork_server import ForkServer

PATIENCE_SECONDS = 60.0
_SETTINGS: Mapping[str, object] = {
    "providers": [{"id": "offline", "type": "offline", "words_per_second": 0}],
    "log_level": "error",
}


class DidNotStart(Exception):
    """The server ended, or printed something else, instead of listening."""


class Server(Protocol):
    """A data directory, and the process that serves it at the moment."""

    @property
    def data_dir(self) -> Path: ...

    @property
    def port(self) -> int: ...

    def spawn(self) -> None:
        """Starts the process without waiting for it to listen."""
        ...

    def start(self) -> None: ...

    def kill(self) -> None: ...


class ServerProgram:
    """`nplt-server` as people start it. `through` is a command that runs it, `module` is run
    instead of it, `settings` replace the usual ones."""

    def __init__(
        self,
        data_dir: Path,
        *,
        through: Sequence[str] = (),
        module: str = "nplt_server",
        settings: Mapping[str, object] = _SETTINGS,
    ) -> None:
        self.data_dir = data_dir
        self._settings = settings
        self.port = 0
        self.http_port = 0
        self._through = through
        self._module = module
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ServerProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def spawn(self) -> None:
        command = [*self._through, sys.executable, "-m", self._module]
        command += flags(self.data_dir, self._settings)
        with log_path(self.data_dir).open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=clean_environment()
            )

    def start(self) -> None:
        self.spawn()
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_SECONDS)
        line = self._process.stdout.readline() if ready else "nothing"
        if not line.startswith("listening on "):
            if not line:
                self._process.wait(
                    timeout=PATIENCE_SECONDS
                )  # the caller decides what its death means
            self.kill()
            raise DidNotStart(f"{line!r}; {newest_log(self.data_dir)}")
        self.port = int(line.rsplit(":", 1)[1])
        self.http_port = int(self._process.stdout.readline().rstrip("/\n").rsplit(":", 1)[1])

    def kill(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def was_killed(self) -> bool:
        """Whether SIGKILL has ended it."""
        assert self._process is not None
        try:
            return self._process.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            return False


class ForkedServer:
    """The same, forked from a process that has already imported it. Its stdout is a pipe beside the
    data directory."""

    def __init__(self, fork_server: ForkServer, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = 0
        self._fork_server = fork_server
        self._pid: int | None = None
        self._ready: int | None = None

    def __enter__(self) -> ForkedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.kill()

    def spawn(self) -> None:
        pipe = self.data_dir.with_name(f"{self.data_dir.name}.said")
        if not pipe.exists():
            os.mkfifo(pipe)
        self._ready = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # does not wait for a writer
        arguments = flags(self.data_dir)
        self._pid = self._fork_server.start(arguments, ready=pipe, log=log_path(self.data_dir))

    def start(self) -> None:
        self.spawn()
        assert self._ready is not None
        ready, _, _ = select.select([self._ready], [], [], PATIENCE_SECONDS)
        line = os.read(self._ready, 1_000).decode().partition("\n")[0] if ready else "nothing"
        if not line.startswith("listening on "):
            self.kill()
            raise DidNotStart(f"{line!r}; {newest_log(self.data_dir)}")
        self.port = int(line.rsplit(":", 1)[1])

    def kill(self) -> None:
        pid, self._pid = self._pid, None
        if pid is not None:
            os.kill(
                pid, signal.SIGKILL
            )  # a dead one is still there, because nobody has waited for it yet
            self._fork_server.wait_for(pid)
        if self._ready is not None:
            os.close(self._ready)
            self._ready = None


def flags(data_dir: Path, settings: Mapping[str, object] = _SETTINGS) -> list[str]:
    """The flags; also writes the settings that they name, beside the data directory."""
    config = data_dir.with_name(f"{data_dir.name}.yaml")
    config.write_text(json.dumps(settings))  # JSON is YAML
    return ["--config", str(config), "--port", "0", "--data-dir", str(data_dir)]


def log_path(data_dir: Path) -> Path:
    return data_dir.with_name(f"{data_dir.name}.log")


def newest_log(data_dir: Path) -> str:
    path = log_path(data_dir)
    return path.read_text()[-2_000:] if path.exists() else "no log"


def clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NPLT_")}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}
