"""A clock of the time of day for one process, which can be set while the process runs.

A library is preloaded that is compiled on first use, so it needs a C compiler. Monotonic clocks,
timers and the times of files are not changed.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

_SOURCE = Path(__file__).with_name("clocks.c")


def find_compiler() -> str | None:
    return shutil.which("cc")


class Clock:
    def __init__(self, directory: Path, ahead: timedelta = timedelta()) -> None:
        """`directory` gets the library and the file that says how far the clock is ahead."""
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / "clock"
        self._library = directory / "clocks.so"
        assert not set(" :") & set(str(directory)), "LD_PRELOAD can't name such a path"
        compiler = find_compiler()
        assert compiler is not None, "there is no C compiler named cc"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(self._library), str(_SOURCE)]
        subprocess.run([*command, "-ldl"], check=True)
        self._file.write_bytes(bytes(8))
        self.set(ahead)

    def set(self, ahead: timedelta) -> None:
        """Takes effect at once, in all processes that were started with `environment`."""
        self.ahead = ahead
        with self._file.open("r+b") as file:
            nanoseconds = int(ahead.total_seconds() * 1e9)
            os.pwrite(file.fileno(), struct.pack("=q", nanoseconds), 0)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        return {**base, "LD_PRELOAD": str(self._library), "CLOCK_FILE": str(self._file)}
