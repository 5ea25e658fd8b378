"""`nplt server status | stop | log`: the server that nplt started in the background.

Servers started otherwise (by hand, by systemd) are not touched; they have
owners of their own.
"""

from __future__ import annotations

from nplt_client.background import find_server, last_lines, state_dir, stop_server
from nplt_client.errors import CannotConnect, TimedOut
from nplt_client.sanitize import sanitize
from nplt_client.tables import pairs
from nplt_client.terminal import say

_NONE = "no server that nplt started in the background is running"


def print_server_status() -> None:
    server = find_server()
    if server is None:
        raise CannotConnect(_NONE)
    print(
        pairs(
            [
                ("pid", str(server.pid)),
                ("address", server.url),
                ("log", str(state_dir() / "server.log")),
            ]
        )
    )


def stop() -> None:
    """Nothing to stop is as good as stopped."""
    server = find_server()
    if server is None:
        say(_NONE)
        return
    if not stop_server(server):
        raise TimedOut(f"nplt-server (pid {server.pid}) was told to stop but is still running")
    say(f"stopped nplt-server (pid {server.pid})")


def print_log(lines: int) -> None:
    path = state_dir() / "server.log"
    if not path.exists():
        raise CannotConnect(f"there is no log yet ({path})")
    for line in last_lines(path, lines):
        print(sanitize(line))
