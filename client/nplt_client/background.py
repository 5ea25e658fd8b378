"""Starts and stops the server that `nplt` runs in the background.

It is started only when no address was given and no server of this user runs
(`settings.find_server`). It reads its own settings. It outlives the command that started
it: it has its own process session, and its output goes to a log file. A lock lets one of
several commands start it; the others find it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from nplt_client.errors import CannotConnect
from nplt_client.render.terminal import print_remark
from nplt_client.settings import Address, RunningServer, find_server, state_dir
from nplt_protocol.version import __version__

START_SECONDS_MAX = 15.0
STOP_SECONDS_MAX = 20.0
_LOOK_AGAIN_SECONDS = 0.05
_LOG_LINES_SHOWN = 8


def ensure_running(
    address: Address, *, is_ending: bool = False, tell: Callable[[str], None] = print_remark
) -> Address:
    """Returns the address of a server of this user, and starts one if none runs.

    `address` is the one in the settings. If another program listens there, such as the server
    of another user or of another home, ours takes another port. `is_ending`: the running
    server accepts no connections any more, so this waits for its end first. `tell` is called
    with a line about what was done.
    """
    running = find_server()
    if running is not None and not (is_ending and wait_until_gone(running)):
        return running.address
    folder = Path(state_dir())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "server.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (running := find_server()) is not None:
            return running.address
        started = _start(tell)
    if started.port != address.port:
        tell(
            f"port {address.port} is taken by another program or another server, "
            f"so yours listens at {started}"
        )
    return started


def _start(tell: Callable[[str], None]) -> Address:
    if _has_units() and (address := _start_by_systemd()) is not None:
        tell("started nplt-server by systemd; stop it with: nplt server stop")
        return address
    log = log_path()
    earlier = log.stat().st_size if log.exists() else 0
    # -P: modules in the current directory must not be imported.
    command = [sys.executable, "-P", "-m", "nplt_server", "--any-port", "--log-file", str(log)]
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # A thread reaps it, since a long chat would leave a zombie otherwise.
    threading.Thread(target=child.wait, name="nplt-server-reaper", daemon=True).start()
    why = f"nplt-server was started but did not listen within {START_SECONDS_MAX:g} s"
    give_up = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < give_up:
        died = child.poll() is not None
        if (server := find_server()) is not None:
            if server.pid == child.pid:
                tell(
                    f"started nplt-server in the background (pid {child.pid}); "
                    "stop it with: nplt server stop"
                )
            return server.address
        if died:
            why = f"nplt-server ended with code {child.returncode}"
            break
        time.sleep(_LOOK_AGAIN_SECONDS)
    child.terminate()  # does nothing if it has ended
    if not (lines := last_lines(log, _LOG_LINES_SHOWN, after=earlier)):
        raise CannotConnect(f"{why}; it wrote nothing to its log ({log})")
    raise CannotConnect(f"{why}; the end of {log}:\n" + "\n".join(f"    {line}" for line in lines))


def _has_units() -> bool:
    """Whether `nplt server install` has written the user's units, whose socket has the port."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return (Path(config) / "systemd" / "user" / "nplt.service").exists()


def _start_by_systemd() -> Address | None:
    try:
        done = subprocess.run(
            ["systemctl", "--user", "start", "nplt.service"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    server = find_server() if done.returncode == 0 else None
    return None if server is None else server.address


def log_path() -> Path:
    return Path(state_dir()) / "server.log"


def last_lines(path: Path, count: int, *, after: int = 0) -> list[str]:
    """The last lines of a file; with `after`, only lines that begin behind so many bytes, unless
    the file is shorter by now."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1024 * count, after if after <= size else 0))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-count:]


def wait_until_gone(server: RunningServer) -> bool:
    """Waits for the server to end, and returns whether it did. It needs time to write what it
    has acknowledged."""
    give_up = time.monotonic() + STOP_SECONDS_MAX
    while find_server() == server:
        if time.monotonic() > give_up:
            return False
        time.sleep(_LOOK_AGAIN_SECONDS)
    return True


def compare_versions(server: str) -> None:
    """Prints a remark if the background server has another version than this client."""
    ours, theirs = __version__, server.removeprefix("nplt/")
    if theirs != ours:
        print_remark(
            f"the server in the background is nplt {theirs}, this is nplt {ours}; "
            "to renew it: nplt server restart"
        )
