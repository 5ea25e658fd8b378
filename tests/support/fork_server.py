"""Processes that start at once: forked from a process that has imported all they need.

Starting Python and importing the server takes most of a second, and `nplt` a third of one,
thousands of times in the tests and in `faults`. What is forked is a whole process that runs
the command line of `nplt-server` or `nplt` from its first line on, with standard streams and
an environment of its own; it has a process id, an exit code, and dies of SIGKILL, like any.
`python -m tests.support.fork_server FD` is the process they come from. Over the socket FD it
is given JSON: a command line for each process to be born, with its standard streams,
answered with the process id; and a process id to wait for, answered with the exit code.

What imports cost, and what happens before and after `main`, is not seen in such a process:
tests of that start Python.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal

Program = Literal["nplt", "nplt-server"]

_MODULES: Mapping[Program, Sequence[str]] = {
    "nplt": (
        "nplt_client.cli",
        "nplt_client.cli.ask",
        "nplt_client.cli.commands",
        "nplt_client.lines.plain_terminal",
    ),
    "nplt-server": (
        "nplt_server.cli",
        "nplt_server.app",
        "nplt_server.logs",
        "nplt_server.providers.offline",
        "nplt_server.providers.schemas",
        "nplt_server.settings_loader",
        "nplt_server.start",
        "nplt_storage.files.store",
        "anyio._backends._asyncio",
        "concurrent.futures.thread",
        "ctypes",
        "pydantic.type_adapter",
        "yaml",
    ),
}
"""The one with `main`, and others that it imports when it runs."""

_ORDER_BYTES_MAX = 200_000


class ForkServer:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=Path(__file__).parents[2],
                pass_fds=[theirs.fileno()],
            )

    @property
    def pid(self) -> int:
        """Of the process they are forked from: its limits are theirs."""
        return self._process.pid

    def start(self, arguments: Sequence[str], *, ready: Path, log: Path) -> int:
        """Starts a server and gives its process id; what it says goes to the one, what it
        logs to the other file."""
        return self._ask({"arguments": arguments, "said": str(ready), "log": str(log)})

    def run(
        self,
        program: Program,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        streams: Sequence[int],
    ) -> int:
        """Starts a program and gives its process id. `streams` are its standard input,
        output and error."""
        order = {"program": program, "arguments": arguments, "environment": dict(environment)}
        return self._ask({**order, "directory": str(Path.cwd())}, streams)

    def wait_for(self, pid: int) -> int:
        """Its exit code, once it is gone."""
        return self._ask(pid)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def _ask(self, order: Mapping[str, object] | int, streams: Sequence[int] = ()) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(order).encode()], streams)
            return int(self._socket.recv(_ORDER_BYTES_MAX))


def main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    while True:
        order, streams, _, _ = socket.recv_fds(orders, _ORDER_BYTES_MAX, 3)
        if not order:
            return
        match json.loads(order):
            case int(pid):
                reply = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            case wanted:
                run = _main_of(wanted.get("program", "nplt-server"))
                reply = os.fork()
                if reply == 0:
                    orders.close()
                    _live(run, wanted, streams)
        for stream in streams:
            os.close(stream)
        orders.send(str(reply).encode())


@cache
def _main_of(program: Program) -> Callable[[], int | None]:
    first, *_ = [importlib.import_module(name) for name in _MODULES[program]]
    if program == "nplt-server":
        # Made once, when they are needed first: most of what a server does as it starts.
        importlib.import_module("nplt_server.settings").Settings.model_rebuild()
        importlib.import_module("nplt_server.tokens").load_o200k()
    gc.freeze()  # else the first collection of each process copies every page
    run: Callable[[], int | None] = first.main
    return run


def _live(run: Callable[[], int | None], wanted: dict[str, Any], streams: list[int]) -> None:
    code = 1
    try:
        _settle(wanted, streams)
        code = run() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


def _settle(wanted: dict[str, Any], streams: list[int]) -> None:
    """Makes this process the one that was wanted, as Python makes one when it starts."""
    if streams:
        os.chdir(wanted["directory"])
        os.environ.clear()
        os.environ.update(wanted["environment"])
        time.tzset()
    else:
        ready = os.open(wanted["said"], os.O_WRONLY)
        log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        streams = [os.open(os.devnull, os.O_RDONLY), ready, log]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.argv = [wanted.get("program", "nplt-server"), *wanted["arguments"]]


if __name__ == "__main__":
    main()
