"""Checks who may call: the name of the host, the web page that calls, and the token.

A browser runs as the same user as the terminal, so checking the user at the other end of the
connection does not stop a hostile web page. A page can make a browser call this server in two ways:
from its own origin, which the browser names in `Origin` or `Sec-Fetch-Site`, or under a name of its
own that it lets point here (DNS rebinding), which the browser names in `Host`. Both are refused. An
address in `Host` is always good, because only names can be made to point elsewhere.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

import anyio
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, cookie_parser
from starlette.types import Scope

from nplt_gateway.errors import ApiError
from nplt_gateway.http_connection import HttpConnection
from nplt_gateway.logins import Login, Logins
from nplt_server.app import Server

_OTHER_SITES: Final = ("cross-site", "same-site")
_ALLOWED_METHODS: Final = "GET, POST, DELETE, OPTIONS"
_ALLOWED_HEADERS: Final = "authorization, content-type, idempotency-key, x-stainless-*"


class Access:
    def __init__(self, server: Server) -> None:
        listen = server.settings.listen
        self._admission = server.admission
        self._hosts = {"localhost", listen.host.lower(), *map(_host_name, listen.hosts)}
        self._origins = frozenset(listen.origins)
        self.logins = Logins(server.settings.data_dir / "logins.sqlite", server.admission)

    def check(self, scope: Scope, headers: Headers) -> None:
        """Raises `ApiError` for a request that a foreign web page may have caused."""
        self._take_forwarded(scope, headers)
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        name = _host_name(host)
        if name not in self._hosts and not _is_address(name):
            raise ApiError(
                403,
                f"this server is not called {name[:100]!r}: use its address, or add the name to "
                "listen.hosts in its settings",
                code="forbidden_host",
            )
        if origin in self._origins:
            return
        is_own = origin in (f"http://{host}", f"https://{host}")
        must_say = scope["type"] == "websocket"  # browsers send Origin with every one
        if (origin and not is_own) or (must_say and not origin):
            raise ApiError(
                403,
                f"pages of {origin[:100] or 'unknown origin'} may not call this server: add them "
                "to listen.origins in its settings",
                code="forbidden_origin",
            )
        is_elsewhere = headers.get("sec-fetch-site") in _OTHER_SITES
        if is_elsewhere and headers.get("sec-fetch-mode") != "navigate":
            raise ApiError(403, "pages of other sites may not call this server", code="forbidden")

    def _take_forwarded(self, scope: Scope, headers: Headers) -> None:
        """Takes the client's address and scheme from the headers of a proxy."""
        connection: HttpConnection = scope["state"]["connection"]
        proxies = self._admission.proxies
        if not proxies.holds(connection.address):
            return
        client = proxies.client_in(headers.getlist("x-forwarded-for"))
        connection.client_address = client or connection.address
        if headers.get("x-forwarded-proto", "").strip().lower() == "https":
            scope["scheme"] = "wss" if scope["type"] == "websocket" else "https"

    def cors_headers(self, headers: Headers) -> dict[str, str]:
        """The headers for a web page of `listen.origins`; others get none."""
        origin = headers.get("origin", "")
        if origin.lower() not in self._origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": _ALLOWED_METHODS,
            "access-control-allow-headers": headers.get(
                "access-control-request-headers", _ALLOWED_HEADERS
            ),
            "access-control-expose-headers": "x-nplt-conversation, x-nplt-recorded, x-request-id",
            "vary": "origin",
        }

    async def find_login(self, request: HTTPConnection) -> Login | None:
        """Returns the login whose cookie the request has."""
        cookies = cookie_parser(request.headers.get("cookie", ""))
        return await self.logins.find(cookies.get(cookie_name(request.scope), ""))

    async def find_user(self, request: HTTPConnection) -> str:
        """Returns the user of a request: of a page by its login, of a program by its token."""
        connection: HttpConnection = request.scope["state"]["connection"]
        if (login := await self.find_login(request)) is not None:
            connection.user = login.user
            return login.user
        if "origin" in request.headers or "sec-fetch-site" in request.headers:
            raise ApiError(401, "log in first: nplt web", code="not_logged_in")
        return await self.user_by_token(connection, request.headers)

    async def user_by_token(self, connection: HttpConnection, headers: Headers) -> str:
        """Returns the user of the bearer token. A server without tokens accepts any."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else None
        user = self._admission.authenticate(given)
        if user is None:
            self._admission.log_refusal(connection.client_address, "its token is not known")
            await anyio.sleep(self._admission.penalty_for(connection.client_address))
            what = "this server does not know the token" if given else "this server needs a token"
            raise ApiError(
                401,
                f"{what}: give one as the API key (Authorization: Bearer TOKEN)",
                code="invalid_api_key",
            )
        if connection.user != user:
            if not self._admission.has_room_for(user):
                raise ApiError(
                    429,
                    "you have too many connections; close one and try again",
                    type="rate_limit_error",
                    code="busy",
                    retry_after=10,
                )
            connection.user = user
        return user


def cookie_name(scope: Scope) -> str:
    """Two servers of one machine, at different ports, do not overwrite each other's cookie."""
    prefix = "__Host-" if scope["scheme"] in ("https", "wss") else ""
    return f"{prefix}nplt-{scope['server'][1]}"


def check_framing(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuses a request whose length is given twice (RFC 9112, 6.1): a proxy in front of this
    server may have read the other one."""
    names = [name for name, _ in headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise ApiError(
            400, "a request has a Content-Length or a Transfer-Encoding, not both", closes=True
        )


def _host_name(host: str) -> str:
    """The host without its port; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
