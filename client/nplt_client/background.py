"""The server that `nplt` starts by itself, as tmux does.

Only for the default address, and only when nothing listens there. It outlives
the command that started it: a session of its own, its output in a log file, a
pid file beside it. Two commands started at once agree through a lock: one
starts the server, the other finds it. Stopping asks first whether the process
with that pid is a server of ours at all.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nplt_client.errors import CannotConnect
from nplt_client.settings import Address
from nplt_client.terminal import say
from nplt_protocol.version import __version__

START_SECONDS_MAX = 15.0
STOP_SECONDS_MAX = 20.0
_LOOK_AGAIN_SECONDS = 0.05
_LOG_LINES_SHOWN = 8
_LOG_BYTES_MAX = 4 * 1024 * 1024


def state_dir() -> Path:
    from platformdirs import user_state_dir

    return Path(user_state_dir("nplt", appauthor=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundServer:
    pid: int
    url: str


def ensure_running(address: Address) -> None:
    """Returns when something listens at the address; whoever came first has started it."""
    folder = state_dir()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _lock(folder / "server.lock"):
        if not _listens(address):
            _start(address, folder)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start(address: Address, folder: Path) -> None:
    log = folder / "server.log"
    _keep_small(log)
    # -P: a folder the user stands in must not lend its modules to the server.
    command = [sys.executable, "-P", "-m", "nplt_server"]
    command += ["--host", address.host, "--port", str(address.port)]
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # Reaped when it ends, or a chat that lasts longer would keep a zombie of it.
    threading.Thread(target=child.wait, name="nplt-server-reaper", daemon=True).start()
    _wait_until_ready(child, address, log)
    if child.poll() is None:
        _write_atomically(folder / "server.pid", f"{child.pid}\n{address}\n")
        say(
            f"started nplt-server in the background (pid {child.pid}); "
            "stop it with: nplt server stop"
        )


def _wait_until_ready(child: subprocess.Popen[bytes], address: Address, log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < give_up:
        died = child.poll() is not None
        if _listens(address):
            return
        if died:
            raise CannotConnect(_with_log(f"nplt-server ended with code {child.returncode}", log))
        time.sleep(_LOOK_AGAIN_SECONDS)
    child.terminate()
    raise CannotConnect(
        _with_log(f"nplt-server was started but did not listen within {START_SECONDS_MAX:g} s", log)
    )


def _with_log(sentence: str, log: Path) -> str:
    lines = last_lines(log, _LOG_LINES_SHOWN)
    if not lines:
        return f"{sentence}; it left no word in {log}"
    return f"{sentence}; the end of {log}:\n" + "\n".join(f"    {line}" for line in lines)


def _listens(address: Address) -> bool:
    try:
        socket.create_connection((address.host, address.port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _keep_small(log: Path) -> None:
    if log.exists() and log.stat().st_size > _LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def last_lines(path: Path, count: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 1024 * count))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-count:]


def find_server() -> BackgroundServer | None:
    """The one we started, if it is still alive."""
    try:
        pid_line, url, *_ = (state_dir() / "server.pid").read_text().splitlines()
        found = BackgroundServer(pid=int(pid_line), url=url)
    except (OSError, ValueError):
        return None
    return found if _is_our_server(found.pid) else None


def _is_our_server(pid: int) -> bool:
    """Pids are used again; only a live process that runs our module is ours."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if not command:  # a zombie has none
            return False
    except FileNotFoundError:
        if Path("/proc/self/cmdline").exists():
            return False
        shown = subprocess.run(
            ["ps", "-p", str(pid), "-o", "command="], capture_output=True, check=False
        )
        command = shown.stdout
    return b"nplt_server" in command or b"nplt-server" in command


def stop_server(server: BackgroundServer) -> bool:
    """True when it is gone; it is given time to finish what it promised."""
    os.kill(server.pid, signal.SIGTERM)
    give_up = time.monotonic() + STOP_SECONDS_MAX
    while _is_our_server(server.pid):
        if time.monotonic() > give_up:
            return False
        time.sleep(_LOOK_AGAIN_SECONDS)
    (state_dir() / "server.pid").unlink(missing_ok=True)
    return True


def compare_versions(server: str) -> None:
    """Says so when the server in the background is of another version than this client."""
    ours, theirs = __version__, server.removeprefix("nplt/")
    if theirs != ours:
        say(
            f"the server in the background is nplt {theirs}, this is nplt {ours}; "
            "to renew it: nplt server stop, and the next command starts a new one"
        )
