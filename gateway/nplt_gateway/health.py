"""`/livez` and `/readyz`: whether the process runs, and whether it can take work. `/metrics`.

The first two need no token: a load balancer has none, and they say nothing about users.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from nplt_gateway.api_request import ApiRequest, api_route
from nplt_gateway.bodies import JsonResponse
from nplt_gateway.errors import ApiError
from nplt_protocol import JsonObject
from nplt_server.app import Server
from nplt_server.histories import HistoryProfile
from nplt_storage.errors import StorageError
from nplt_storage.files.format import LOCAL_USER

_CHECK_SECONDS_MAX: Final = 2.0
_OK: Final = "ok"
_UNCACHED: Final = {"cache-control": "no-store"}


async def is_alive(request: Request) -> Response:
    return PlainTextResponse("ok\n", headers=_UNCACHED)


async def is_ready(request: Request) -> Response:
    """Status 200 if every check is `ok`, else 503."""
    server: Server = request.scope["app"].server
    checks: JsonObject = {"accepting": "shutting down" if server.services.draining else _OK}

    async def check(profile: HistoryProfile) -> None:
        checks[f"history {profile.id}"] = await _trouble_with(profile) or _OK

    async with anyio.create_task_group() as tasks:
        for profile in server.services.histories:
            tasks.start_soon(check, profile)
    ready = all(each == _OK for each in checks.values())
    return JsonResponse({"ready": ready, "checks": checks}, 200 if ready else 503, {**_UNCACHED})


async def scrape(call: ApiRequest) -> Response:
    """The counts of the whole server; on a server with users, operators may read them."""
    if not call.server.admission.is_operator(call.user):
        raise ApiError(
            403, "metrics are for operators (users: [{operator: true}])", code="forbidden"
        )
    answer = await anyio.to_thread.run_sync(_import_metrics)
    return await answer(call.server)


def _import_metrics() -> Callable[[Server], Awaitable[Response]]:
    from nplt_gateway.metrics import scrape  # slow to load

    return scrape


async def _trouble_with(profile: HistoryProfile) -> str | None:
    """Queries the index or Redis. Returns why the history can't be read or written now."""
    if (reason := profile.read_only_reason) is not None:
        return reason
    counted: int | None = None
    try:
        with anyio.move_on_after(_CHECK_SECONDS_MAX):
            counted = await profile.store.count(LOCAL_USER)
    except StorageError as error:
        return str(error) or "unavailable"
    return None if counted is not None else f"no answer in {_CHECK_SECONDS_MAX:g} s"


HEALTH: Final[tuple[BaseRoute, ...]] = (
    Route("/livez", is_alive, methods=["GET"]),
    Route("/readyz", is_ready, methods=["GET"]),
)
METRICS: Final[tuple[BaseRoute, ...]] = (api_route("GET", "/metrics", scrape),)
