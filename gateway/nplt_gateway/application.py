"""The application behind the door for HTTP: checks each request and passes it to its route.

Each module of the API has its own routes. A route answers with a Starlette response, or
raises `ApiError`.
"""

from __future__ import annotations

import logging
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Router, WebSocketRoute
from starlette.types import Message, Receive, Scope, Send

from nplt_gateway import (
    chat_completions,
    conversations,
    health,
    login,
    openai_models,
    page,
    responses,
    websocket,
)
from nplt_gateway.access import Access, check_framing
from nplt_gateway.bodies import JsonResponse
from nplt_gateway.errors import SERVER, ApiError, api_error
from nplt_gateway.retries import SentRequests
from nplt_gateway.which_conversation import take_name_from_path
from nplt_protocol import RequestError
from nplt_server.app import Server

log = logging.getLogger(__name__)

# The paths exclude one another. The router tries them in order, the usual ones first.
API: Final[tuple[BaseRoute, ...]] = (
    *chat_completions.ROUTES,
    *responses.ROUTES,
    *openai_models.ROUTES,
    *conversations.ROUTES,
    WebSocketRoute("/ws", websocket.serve),
    *page.ROUTES,
    *login.ROUTES,
)

_SERVED: Final = "it has /v1/models, /v1/chat/completions, /v1/responses and /v1/conversations"
_NOT_SERVED: Final = (
    *("assistants", "audio", "batches", "completions", "embeddings", "evals", "files"),
    *("fine_tuning", "images", "moderations", "realtime", "threads", "uploads", "vector_stores"),
    "videos",
)
"""Endpoints of OpenAI's that clients may look for."""


class Application:
    """The ASGI application; a route finds it in `scope["app"]`."""

    def __init__(self, server: Server, *, has_api: bool = True, has_metrics: bool = True) -> None:
        self.server = server
        self.access = Access(server)
        self.sent = SentRequests()
        metrics = health.METRICS if has_metrics else ()
        routes = [*(API if has_api else ()), *health.HEALTH, *metrics]
        self._router = Router(routes=routes, redirect_slashes=False, default=_not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(raw=scope["headers"])
        cors: dict[str, str] = {}
        scope["app"] = self
        scope["request_id"] = self.server.services.new_entry_id()
        send = _with_request_id(send, scope)
        try:
            if (refusal := scope["state"]["connection"].refusal) is not None:
                raise refusal
            check_framing(scope["headers"])
            take_name_from_path(scope)
            self.access.check(scope, headers)
            if cors := self.access.cors_headers(headers):
                if scope["type"] == "http" and scope["method"] == "OPTIONS":
                    await Response(status_code=204, headers=cors)(scope, receive, send)
                    return
                send = _with_headers(send, cors)
            await self._router(scope, receive, send)
        except ApiError as error:
            await _refuse(error, scope, receive, send)
        except RequestError as refusal:
            await _refuse(api_error(refusal), scope, receive, send)
        except ClientDisconnect:
            pass
        except HTTPException as unfit:  # Starlette's own: a method that the route does not have
            refused = ApiError(unfit.status_code, f"{scope['method']} can't be used here")
            await _refuse(refused, scope, receive, send)
        except Exception:
            named = {"fields": {"request": scope["request_id"]}}
            log.exception("an HTTP request failed", extra=named)
            failed = ApiError(500, "the server failed; its log says more", type=SERVER)
            await _refuse(failed, scope, receive, send)


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the error. If a response has begun, this fails and the connection is closed."""
    await JsonResponse(error.as_json(), error.status, error.headers)(scope, receive, send)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    parts = scope["path"].split("/")
    if parts[1] == "v1" and parts[2:] and parts[2] in _NOT_SERVED:
        raise ApiError(404, f"this server has no {parts[2]}; {_SERVED}", code="not_found")
    raise ApiError(404, f"there is nothing at {scope['path'][:200]}", code="not_found")


def _with_request_id(send: Send, scope: Scope) -> Send:
    """Adds the id of the request. A request that begins a turn has the id of the turn, also if the
    turn fails, so the header is written when the response begins."""

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            named = (b"x-request-id", scope["request_id"].encode())
            message = {**message, "headers": [*message.get("headers", ()), named]}
        await send(message)

    return send_with_id


def _with_headers(send: Send, added: dict[str, str]) -> Send:
    raw = [(name.encode(), value.encode()) for name, value in added.items()]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *raw]}
        await send(message)

    return send_with_headers
