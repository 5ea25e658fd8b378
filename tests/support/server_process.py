"""A real `nplt-server` in a process of its own, on a free port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import yaml

DEFAULTS = {"providers": [{"id": "offline", "type": "offline", "words_per_second": 0}]}


class ServerProcess:
    def __init__(self, data_dir: Path, *flags: str, settings: dict[str, object] | None = None):
        self.data_dir = data_dir
        self._flags = flags
        self._settings = {**DEFAULTS, **(settings or {})}
        self.process: subprocess.Popen[str] | None = None
        self.port = 0

    def start(self) -> ServerProcess:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        config = self.data_dir.parent / f"{self.data_dir.name}.yaml"
        config.write_text(yaml.safe_dump(self._settings))
        command = [sys.executable, "-m", "nplt_server", "--config", str(config), "--port", "0"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--data-dir", str(self.data_dir), *self._flags],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=clean_environment(),
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise AssertionError(f"the server did not start: {line!r}\n{self.log}")
        self.port = int(line.rsplit(":", 1)[1])
        return self

    @property
    def log_path(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.log"

    @property
    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def terminate(self) -> int:
        """SIGTERM; gives the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def _end(self, number: int) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def restart(self) -> ServerProcess:
        self.terminate()
        return self.start()


def clean_environment() -> dict[str, str]:
    """Ours, without anything that would configure a server or a client."""
    return {key: value for key, value in os.environ.items() if not key.startswith("NPLT_")}
