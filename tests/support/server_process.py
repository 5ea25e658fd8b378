"""A real `nplt-server` in a process of its own, on a free port."""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from pathlib import Path
from signal import Signals

import yaml
from tests.support.clocks import Clock
from tests.support.fork_server import ForkServer, Program

_SECONDS_MAX = 40
DEFAULTS = {"providers": [{"id": "offline", "type": "offline", "words_per_second": 0}]}


class ServerProcess:
    def __init__(
        self,
        data_dir: Path,
        *flags: str,
        settings: dict[str, object] | None = None,
        clock: Clock | None = None,
    ):
        """`clock` is what it takes for the time of day."""
        self._clock = clock
        self.data_dir = data_dir
        self._flags = flags
        self.settings = {**DEFAULTS, **(settings or {})}
        self._pid: int | None = None
        self._exit_code = 0
        self.port = 0
        self.http_url = ""

    def start(self) -> ServerProcess:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        config = self.data_dir.parent / f"{self.data_dir.name}.yaml"
        config.write_text(yaml.safe_dump(self.settings))
        ready = self.data_dir.parent / f"{self.data_dir.name}.said"
        ready.unlink(missing_ok=True)
        os.mkfifo(ready)
        arguments = ["--config", str(config), "--port", "0", "--data-dir", str(self.data_dir)]
        fork_server = fork_server_of(self._clock)
        self._pid = fork_server.start([*arguments, *self._flags], ready=ready, log=self.log_path)
        with ready.open() as pipe:
            lines = os.read(pipe.fileno(), 1_000).decode().splitlines()  # in one piece
        if not lines or not lines[0].startswith("listening on "):
            self.kill()
            raise AssertionError(f"the server did not start: {lines!r}\n{self.log}")
        self.port = int(lines[0].rsplit(":", 1)[1])
        self.http_url = lines[1].removeprefix("http on ") if len(lines) > 1 else ""
        return self

    @property
    def log_path(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.log"

    @property
    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    @property
    def pid(self) -> int:
        assert self._pid is not None
        return self._pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and not ended from here."""
        return self._pid is not None

    def terminate(self) -> int:
        """SIGTERM; gives the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def signal(self, number: Signals) -> None:
        os.kill(self.pid, number)

    def _end(self, number: Signals) -> int:
        pid, self._pid = self._pid, None
        if pid is not None:
            os.kill(pid, number)  # gone already: its parent has not looked yet, so no error
            self._wait(pid)
            self._exit_code = fork_server_of(self._clock).wait_for(pid)
        return self._exit_code

    @staticmethod
    def _wait(pid: int) -> None:
        descriptor = os.pidfd_open(pid)
        try:
            gone, _, _ = select.select([descriptor], [], [], 30)
        finally:
            os.close(descriptor)
        assert gone, f"process {pid} does not end"

    def restart(self) -> ServerProcess:
        self.terminate()
        return self.start()


def fork_server() -> ForkServer:
    """One for all processes of this process's tests."""
    return fork_server_of(None)


@cache
def fork_server_of(clock: Clock | None) -> ForkServer:
    environment = clean_environment()
    server = ForkServer(environment if clock is None else clock.environment(environment))
    atexit.register(server.close)
    return server


def clean_environment() -> dict[str, str]:
    """Ours, without anything that would configure a server or a client."""
    configures = ("NPLT_", "OPENAI_", "ANTHROPIC_")
    return {key: value for key, value in os.environ.items() if not key.startswith(configures)}


def run_nplt_server(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return run_forked("nplt-server", list(map(str, arguments)), environment=clean_environment())


def run_forked(
    program: Program, arguments: Sequence[str], *, environment: Mapping[str, str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    (read_stdin, write_stdin), (read_stdout, write_stdout), (read_stderr, write_stderr) = (
        os.pipe() for _ in range(3)
    )
    theirs = (read_stdin, write_stdout, write_stderr)
    pid = fork_server().run(program, arguments, environment=environment, streams=theirs)
    for stream in theirs:
        os.close(stream)
    with ThreadPoolExecutor(3) as threads:
        threads.submit(_write, write_stdin, stdin.encode())
        ready = [threads.submit(_read, stream) for stream in (read_stdout, read_stderr)]
        ended = wait(ready, timeout=_SECONDS_MAX)
        if ended.not_done:
            os.kill(pid, signal.SIGKILL)
    code = fork_server().wait_for(pid)
    assert not ended.not_done, f"{program} {arguments} did not end: {ready}"
    stdout, stderr = (future.result().decode() for future in ready)
    return subprocess.CompletedProcess([program, *arguments], code, stdout, stderr)


def _write(stream: int, data: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(stream, "wb") as pipe:
        pipe.write(data)


def _read(stream: int) -> bytes:
    with os.fdopen(stream, "rb") as pipe:
        return pipe.read()
