"""`nplt server status | stop | log`: the server that nplt started in the background.

Servers started otherwise (by hand, by systemd) are not touched; they have
owners of their own.
"""

from __future__ import annotations

from nplt_client.background import (
    BackgroundServer,
    compare_versions,
    find_server,
    last_lines,
    state_dir,
    stop_server,
)
from nplt_client.errors import CannotConnect, NpltError, TimedOut
from nplt_client.link import Deadline
from nplt_client.opening import reopen_at
from nplt_client.sanitize import sanitize
from nplt_client.settings import parse_url
from nplt_client.tables import pairs
from nplt_client.terminal import say
from nplt_protocol.replies import Welcome

_ANSWER_SECONDS_MAX = 3.0
_NONE = "no server that nplt started in the background is running"


def print_server_status() -> None:
    server = find_server()
    if server is None:
        raise CannotConnect(_NONE)
    said = _ask(server)
    print(
        pairs(
            [
                ("pid", str(server.pid)),
                ("address", server.url),
                ("version", said.server.removeprefix("nplt/") if said else "it does not answer"),
                ("log", str(state_dir() / "server.log")),
            ]
        )
    )
    if said is not None:
        compare_versions(said.server)


def _ask(server: BackgroundServer) -> Welcome | None:
    try:
        with reopen_at(parse_url(server.url), Deadline(_ANSWER_SECONDS_MAX)) as link:
            return link.welcome
    except NpltError:
        return None


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
