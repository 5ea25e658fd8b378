"""Logging in: a code or a token becomes a cookie, which only this server's own page can use.

A program that may use the server gets a code (`POST /login/codes`) and shows it to its user, as the
fragment of an address. The page sends the code back in a body, never in an address, so that neither
logs nor previews of links see it. The cookie is HttpOnly and SameSite=Strict.

Cookies do not distinguish ports, so another server of this machine gets this one's cookie. A
connection from this machine is therefore checked by the user at its other end as well.
"""

from __future__ import annotations

import re
from typing import Final

import anyio
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from nplt_gateway.access import Access, cookie_name
from nplt_gateway.bodies import JsonResponse, read_json
from nplt_gateway.errors import ApiError
from nplt_gateway.http_connection import HttpConnection
from nplt_gateway.logins import CODE_SECONDS_MAX
from nplt_gateway.websocket import WebSocketSession
from nplt_protocol import JsonValue
from nplt_server.app import Server

_COOKIE_SECONDS_MAX: Final = 365 * 24 * 3_600
_SYSTEMS: Final = ("iPhone", "iPad", "Android", "Windows", "Macintosh", "CrOS", "Linux")
_BROWSERS: Final = (
    ("Firefox", "Firefox/"),
    ("Edge", "Edg/"),
    ("Opera", "OPR/"),
    ("Chrome", "Chrome/"),
    ("Safari", "Safari/"),
)


class _Credentials(BaseModel):
    code: str | None = None
    token: str | None = None


async def make_code(request: Request) -> Response:
    access: Access = request.scope["app"].access
    user = await access.find_user(request)
    code = await access.logins.make_code(user)
    return JsonResponse({"code": code, "user": user, "expires_in": CODE_SECONDS_MAX}, 201)


async def show_login(request: Request) -> Response:
    access, server = _parts(request)
    login = await access.find_login(request)
    need_tokens = server.admission.need_tokens
    return JsonResponse(
        {"user": login.user if login is not None else None, "tokens": need_tokens},
        headers=_UNCACHED,
    )


async def log_in(request: Request) -> Response:
    access, server = _parts(request)
    connection: HttpConnection = request.scope["state"]["connection"]
    given = await read_json(request, server, "", _Credentials)
    device = device_of(request.headers.get("user-agent", ""))
    if given.code is not None:
        redeemed = await access.logins.redeem(given.code, device)
    else:
        need_tokens = server.admission.need_tokens
        user = server.admission.authenticate(given.token) if need_tokens else None
        redeemed = None if user is None else (user, await access.logins.begin(user, device))
    if redeemed is None:
        server.admission.log_refusal(connection.client_address, "a login failed")
        await anyio.sleep(server.admission.penalty_for(connection.client_address))
        what = "the token is not known" if given.token else "the code is wrong, used or too old"
        raise ApiError(401, f"{what}; nplt web makes a new code", code="login_failed")
    user, secret = redeemed
    response = JsonResponse({"user": user}, headers=_UNCACHED)
    _set_cookie(request.scope, response, secret, _COOKIE_SECONDS_MAX)
    return response


async def log_out(request: Request) -> Response:
    """Ends the login and removes what the browser stored for this page."""
    access, server = _parts(request)
    if (login := await access.find_login(request)) is not None:
        await _end(access, server, login.user, login.id)
    response = JsonResponse({}, headers={"clear-site-data": '"cache", "storage"', **_UNCACHED})
    _set_cookie(request.scope, response, "", 0)
    return response


async def list_logins(request: Request) -> Response:
    access: Access = request.scope["app"].access
    logins = await access.logins.of_user(await access.find_user(request))
    own = await access.find_login(request)
    rows: list[JsonValue] = [
        {
            "id": each.id,
            "device": each.device,
            "created_at": each.created_at,
            "used_at": each.used_at,
            "is_this": own is not None and each.id == own.id,
        }
        for each in logins
    ]
    return JsonResponse({"logins": rows}, headers=_UNCACHED)


async def revoke(request: Request) -> Response:
    access, server = _parts(request)
    user = await access.find_user(request)
    if not await _end(access, server, user, request.path_params["login_id"]):
        raise ApiError(404, "there is no such login", code="not_found")
    return JsonResponse({})


def _parts(request: Request) -> tuple[Access, Server]:
    app = request.scope["app"]
    return app.access, app.server


async def _end(access: Access, server: Server, user: str, login_id: str) -> bool:
    """Revokes the login and closes its WebSockets."""
    is_ended = await access.logins.end(user, login_id)
    for session in tuple(server.sessions):
        login = session.login if isinstance(session, WebSocketSession) else None
        if login is not None and (login.user, login.id) == (user, login_id.upper()):
            session.send_away("this browser was logged out")
    return is_ended


def device_of(agent: str) -> str:
    """Names the browser and the system of a User-Agent, for a list of logins."""
    browser = next((name for name, mark in _BROWSERS if mark in agent), "")
    system = next((name for name in _SYSTEMS if name in agent), "")
    named = {"Macintosh": "macOS", "CrOS": "ChromeOS"}.get(system, system)
    if browser and named:
        return f"{browser} on {named}"
    return browser or named or re.sub(r"[^ -~]", "", agent)[:60] or "an unnamed program"


def _set_cookie(scope: Scope, response: Response, value: str, seconds: int) -> None:
    response.set_cookie(
        cookie_name(scope),
        value,
        max_age=seconds,
        secure=scope["scheme"] == "https",
        httponly=True,
        samesite="strict",
    )


_UNCACHED: Final = {"cache-control": "no-store"}

ROUTES: Final[tuple[BaseRoute, ...]] = (
    Route("/login", show_login, methods=["GET"]),
    Route("/login", log_in, methods=["POST"]),
    Route("/login/codes", make_code, methods=["POST"]),
    Route("/logout", log_out, methods=["POST"]),
    Route("/logins", list_logins, methods=["GET"]),
    Route("/logins/{login_id}", revoke, methods=["DELETE"]),
)
