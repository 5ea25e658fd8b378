"""Whole `nplt` and `nplt-server` processes, as a user would run them.

Every process gets a home of its own; nothing of the person who runs the tests
is read or written.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

NPLT = (sys.executable, "-m", "nplt_client")
SECONDS_MAX = 40


def private_environment(home: Path, **more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NPLT_", "XDG_", "OPENAI_", "ANTHROPIC_"))
        and name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONDONTWRITEBYTECODE")
    }
    return {
        **kept,
        "HOME": str(home),
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
        # Of a server; a real model, if one is installed, would say something else each time.
        "NPLT_PROVIDERS": '[{"type": "offline"}]',
        **more,
    }


@contextmanager
def running_server(home: Path, *options: str) -> Iterator[str]:
    """Gives its address once it says that it listens."""
    command = [sys.executable, "-m", "nplt_server", "--port", "0"]
    command += ["--data-dir", str(home / "data"), *options]
    with subprocess.Popen(
        command,
        env=private_environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("listening on "), line
            yield f"nplt://{line.removeprefix('listening on ').strip()}"
        finally:
            server.terminate()
            server.wait(timeout=SECONDS_MAX)


def hear_ctrl_c() -> None:
    """For `preexec_fn`: test runners ignore the signal, and children would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_nplt(
    *arguments: str,
    home: Path,
    server: str | None = None,
    stdin: str = "",
    environ: Mapping[str, str] | None = None,
    command: Sequence[str] = NPLT,
) -> subprocess.CompletedProcess[str]:
    more = {**({"NPLT_SERVER": server} if server else {}), **(environ or {})}
    return subprocess.run(
        [*command, *arguments],
        env=private_environment(home, **more),
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS_MAX,
        check=False,
    )
