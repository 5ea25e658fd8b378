"""`nplt web`: logs a browser in to the page of the server.

The command gets a one-time code from the server and puts it into the fragment of the page's
address, which browsers do not send to servers. The address is not given to the browser as an
argument, because every user of the machine can read those, but in a file that only this user can
read and that sends the browser on.
"""

from __future__ import annotations

import html
import json
import os
import time
import webbrowser
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

from nplt_client.errors import CannotConnect, RequestRefused
from nplt_client.settings import Address, find_token, state_dir
from nplt_client.wire.blocking import BlockingConnection
from nplt_protocol import messages

_SECONDS_MAX = 10.0


class WebPage:
    """The server's page, as a program sees it."""

    def __init__(self, connection: BlockingConnection, address: Address) -> None:
        status = connection.request(messages.StatusRequest(), messages.Status)
        if status.http is None:
            raise CannotConnect("this server does not listen for HTTP (listen.http: false)")
        self._address = address
        self.place = _seen_from_here(urlsplit(status.http), address)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ip_address(self.place.hostname or "").is_loopback
        except ValueError:
            return self.place.hostname == "localhost"

    def new_address(self) -> str:
        """Returns the page's address with a code that logs a browser in, once."""
        code = self._request("POST", "/login/codes")["code"]
        return urlunsplit(self.place._replace(fragment=f"code={code}"))

    def logins(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._request("GET", "/logins")["logins"]
        return found

    def revoke(self, login_id: str) -> None:
        self._request("DELETE", f"/logins/{login_id}")

    def _request(self, method: str, path: str) -> Any:
        token = find_token(None, address=self._address)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection = self._connection()
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            document = json.loads(response.read(1_000_000))
        except (OSError, HTTPException, ValueError) as error:
            where = self.place.netloc
            raise CannotConnect(f"can't reach the page at {where}: {error}") from None
        finally:
            connection.close()
        if response.status >= 400:
            refused = document["error"]
            raise RequestRefused(refused["message"], code=refused["code"] or "unsupported")
        return document

    def _connection(self) -> HTTPConnection:
        host, port = self.place.hostname or "", self.place.port
        if self.place.scheme != "https":
            return HTTPConnection(host, port, timeout=_SECONDS_MAX)
        from nplt_client.wire.tls import client_context

        return HTTPSConnection(host, port, timeout=_SECONDS_MAX, context=client_context())


def _seen_from_here(place: SplitResult, address: Address) -> SplitResult:
    """A server that listens on all addresses names its loopback address; from here it has the name
    by which it was reached."""
    if address.host in ("", place.hostname) or place.hostname not in ("127.0.0.1", "::1"):
        return place
    host = f"[{address.host}]" if ":" in address.host else address.host
    return place._replace(netloc=f"{host}:{place.port}")


def open_in_browser(url: str) -> bool:
    """Opens the address in the user's browser. Returns False if there is none."""
    path = f"{state_dir()}/web.html"
    os.makedirs(state_dir(), mode=0o700, exist_ok=True)  # noqa: PTH103  pathlib is slow to load
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f'<meta http-equiv="refresh" content="0;url={html.escape(url)}">\n')
    return webbrowser.open(f"file://{path}")


def has_display() -> bool:
    """Whether a browser could show a window here."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) or (
        os.name == "posix" and os.uname().sysname == "Darwin"
    )


def qr_code(url: str) -> str:
    """Returns the address as a QR code of block characters."""
    from io import StringIO

    import segno  # only --qr needs it

    drawn = StringIO()
    segno.make(url, error="m").terminal(out=drawn, compact=True)
    return drawn.getvalue().rstrip("\n")


def how_to_reach_from_a_phone(place: SplitResult) -> str:
    port = place.port
    return (
        "This address works on this machine only. To use the page on a phone or another machine, "
        "either\n"
        f"  forward the port, there: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE\n"
        "  or let the server listen on the network, with users and TLS (docs/page.md):\n"
        "    listen: {host: 0.0.0.0, hosts: [NAME], tls: {cert: …, key: …}}\n"
        "    users: [{name: YOU, token_sha256: …}]      # made by nplt-server token YOU"
    )


def login_line(login: dict[str, Any]) -> str:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(login["used_at"]))
    return f"{login['id']}  last used {used}  {login['device']}"
