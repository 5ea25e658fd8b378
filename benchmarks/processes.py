"""Programs under measurement: started, watched from outside, ended.

What a process costs is read from the kernel's own books (its CPU clock, its
memory map), never asked of the process. Linux only. Every process gets an
environment without anything that would configure a server or a client.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OFFLINE = {"providers": [{"id": "offline", "type": "offline", "words_per_second": 0}]}
PATIENCE_SECONDS = 60.0
ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers" / "bin"
"""Where what people run instead is installed, if it is: see `peers/requirements.txt`."""
_CPU_CLOCK_OF_PROCESS = 2


class DidNotStart(Exception):
    """A program ended, or said something else, instead of listening."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    pid: int
    port: int
    seconds_to_listen: float

    def cpu_seconds(self) -> float:
        """User and system time of all its threads, to the nanosecond."""
        return time.clock_gettime(~self.pid << 3 | _CPU_CLOCK_OF_PROCESS)

    def resident_bytes(self) -> int:
        return self._kibibytes("smaps_rollup", "Rss:") * 1024

    def peak_resident_bytes(self) -> int:
        return self._kibibytes("status", "VmHWM:") * 1024

    def _kibibytes(self, book: str, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/{book}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
        raise LookupError(name)


@contextmanager
def listening(
    command: Sequence[str], *, stderr: Path | None = None, python_path: Path | None = None
) -> Iterator[Program]:
    """Runs a program until it is no longer needed; gives it once it listens. `python_path`:
    where it finds modules that are not installed."""
    environment = clean_environment()
    if python_path is not None:
        environment["PYTHONPATH"] = str(python_path)
    with (stderr or Path(os.devnull)).open("wb") as log:
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        assert process.stdout is not None
        try:
            waiting = select.poll()  # `select` can't wait for descriptors above 1,023
            waiting.register(process.stdout, select.POLLIN)
            ready = waiting.poll(PATIENCE_SECONDS * 1_000)
            line = process.stdout.readline() if ready else "nothing"
            seconds = time.perf_counter() - begun
            if not line.startswith("listening on "):
                errors = stderr.read_text()[-2_000:] if stderr else ""
                raise DidNotStart(f"{' '.join(command[1:4])}: {line or errors!r}")
            port = int(line.rsplit(":", 1)[1])
            yield Program(pid=process.pid, port=port, seconds_to_listen=seconds)
        finally:
            _end(process)


def server_command(
    data_dir: Path,
    *,
    settings: dict[str, Any] | None = None,
    python: Sequence[str] = (),
    checkout: Path | None = None,
) -> list[str]:
    """Runs `nplt-server` as it is installed here, or in the `.venv` of another checkout."""
    data_dir.mkdir(parents=True, exist_ok=True)
    config = data_dir.with_suffix(".yaml")
    # JSON is YAML.
    config.write_text(json.dumps({**OFFLINE, "log_level": "error", **(settings or {})}))
    flags = ["--config", str(config), "--port", "0", "--data-dir", str(data_dir)]
    programs = checkout / ".venv" / "bin" if checkout else Path(sys.executable).parent
    return [str(programs / "python"), *python, str(programs / "nplt-server"), *flags]


@contextmanager
def server(
    data_dir: Path,
    *,
    settings: dict[str, Any] | None = None,
    checkout: Path | None = None,
    python_path: Path | None = None,
) -> Iterator[Program]:
    command = server_command(data_dir, settings=settings, checkout=checkout)
    log = data_dir.with_suffix(".log")
    with listening(command, stderr=log, python_path=python_path) as program:
        yield program


@contextmanager
def peer(name: str, *arguments: str) -> Iterator[Program]:
    with listening([sys.executable, "-m", f"benchmarks.peers.{name}", *arguments]) as program:
        yield program


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of a whole process, from fork to exit."""

    wall_seconds: float
    cpu_seconds: float


def cost_of(*command: str, variables: Mapping[str, str] | None = None) -> Cost:
    """Runs it once, with these environment variables besides; it must succeed."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        command,
        env={**clean_environment(), **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall_seconds = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(wall_seconds=wall_seconds, cpu_seconds=usage.ru_utime + usage.ru_stime)


def clean_environment() -> dict[str, str]:
    """With compiled modules, as an installed program has them."""
    unwanted = ("NPLT_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
