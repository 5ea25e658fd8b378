"""Whole `nplt` and `nplt-server` processes, as a user would run them.

Every process gets a home of its own; nothing of the person who runs the tests
is read or written. Those that are only run to their end are forked from one that has
imported `nplt` (`tests.support.fork_server`), which saves most of their time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.server_process import fork_server, run_forked

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
    arguments = ["--port", "0", "--data-dir", str(home / "data"), *options]
    reading, writing = os.pipe()
    with Path(os.devnull).open("r+") as nothing:
        pid = fork_server().run(
            "nplt-server",
            arguments,
            environment=private_environment(home),
            streams=(nothing.fileno(), writing, nothing.fileno()),
        )
    os.close(writing)
    with os.fdopen(reading) as stream:
        try:
            line = stream.readline()
            assert line.startswith("listening on "), line
            yield f"nplt://{line.removeprefix('listening on ').strip()}"
        finally:
            os.kill(pid, signal.SIGTERM)
            fork_server().wait_for(pid)


def default_ctrl_c() -> None:
    """For `preexec_fn`: test runners ignore the signal, and children would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_nplt(
    *arguments: str,
    home: Path,
    server: str | None = None,
    stdin: str = "",
    environ: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs `nplt` in a forked process, or the command that is given in one of its own."""
    more = {**({"NPLT_SERVER": server} if server else {}), **(environ or {})}
    environment = private_environment(home, **more)
    if command is None:
        return run_forked("nplt", arguments, environment=environment, stdin=stdin)
    return subprocess.run(
        [*command, *arguments],
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS_MAX,
        check=False,
    )
