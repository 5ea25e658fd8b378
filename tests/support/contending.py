"""Many processes that try to open the same conversations of one Redis."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.server_process import clean_environment

_PROGRAM = Path(__file__).parents[1] / "storage" / "redis_contenders.py"


@contextmanager
def contending(
    url: str, prefix: str, *, processes: int, conversations: int
) -> Iterator[Iterator[str]]:
    """Gives the conversations as they are won, until all processes have tried all of them. Inside
    the block each winner still holds what it has won. Raises `ChildProcessError` if one fails."""
    command = [sys.executable, str(_PROGRAM), url, prefix, str(processes), str(conversations)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    ) as contenders:

        def won() -> Iterator[str]:
            assert contenders.stdout is not None
            done = 0
            while done < processes:
                line = contenders.stdout.readline().strip()
                if not line:
                    raise ChildProcessError("a process that contends failed")
                if line == "done":
                    done += 1
                else:
                    yield line

        yield won()
        contenders.communicate()
