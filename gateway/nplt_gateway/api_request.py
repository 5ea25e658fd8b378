"""A request to the API: who sent it, what its body says, and the routes that take such requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from nplt_gateway.access import Access
from nplt_gateway.bodies import QUICK_BYTES_MAX, Body, read_json_and_digest
from nplt_gateway.errors import as_api_error
from nplt_gateway.http_connection import HttpConnection
from nplt_gateway.retries import SentRequests
from nplt_gateway.session_pipe import SessionPipe
from nplt_protocol import ErrorCode, JsonObject, RequestError
from nplt_server.app import Server
from nplt_server.providers import check_options, options_not_taken

T = TypeVar("T")


class _Application(Protocol):
    server: Server
    access: Access
    sent: SentRequests


@dataclass(frozen=True, slots=True)
class ApiRequest:
    request: Request
    server: Server
    connection: HttpConnection
    user: str
    sent: SentRequests
    """The requests that this server has received lately."""

    async def body(self, shape: type[Body]) -> tuple[Body, str]:
        """The body, checked, and its digest."""
        return await read_json_and_digest(self.request, self.server, self.user, shape)

    def session(self) -> SessionPipe:
        """A session of its user, not yet open."""
        return SessionPipe(
            self.server, self.user, client=self.client, address=self.connection.client_address
        )

    async def compute(self, work: Callable[[], T]) -> T:
        """Computes something of the body: in a thread, unless the body is known to be small."""
        length = self.header("content-length")
        if length.isdecimal() and int(length) <= QUICK_BYTES_MAX:
            return work()
        return await self.server.services.heavy.run(self.user, work)

    async def unless_gone(self, work: Awaitable[T]) -> T:
        """Awaits the work, or cancels it and raises `ClientDisconnect` if the client goes away."""
        with self.connection.cancelled_when_lost():
            return await work
        raise ClientDisconnect

    async def check_options(self, model: str | None, options: JsonObject) -> None:
        """Raises `RequestError` for an option that makes no sense, or that the provider's API does
        not have: what a client asks for is passed on or refused."""
        await check_options(options)
        router = self.server.services.router
        chosen = router.choose(router.wished(model=model, role=None))
        specification = router.route_of(chosen).invocation.specification
        for name in options_not_taken(specification, options):
            raise RequestError(
                ErrorCode.UNSUPPORTED, f"{chosen} does not take {name}", field=f"options.{name}"
            )

    def header(self, name: str) -> str:
        """The value of a header without blanks around it; empty if it is not there."""
        return self.request.headers.get(name, "").strip()

    def set_id(self, request_id: str) -> None:
        """Replaces the id that the response has as `x-request-id`, before the response begins."""
        self.request.scope["request_id"] = request_id

    @property
    def is_repeated(self) -> bool:
        """Whether OpenAI's library sends it again because its connection broke."""
        count = self.header("x-stainless-retry-count")
        return count.isdecimal() and int(count) > 0

    @property
    def client(self) -> str:
        """The program that sent it, by its own name."""
        return self.header("user-agent")[:64] or "http"


Endpoint: TypeAlias = Callable[[ApiRequest], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _AuthenticatedEndpoint:
    """An endpoint as an ASGI application. Starlette wraps plain functions in a handler of errors,
    which `Application` has already."""

    endpoint: Endpoint
    params: Mapping[str, str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: _Application = scope["app"]
        connection: HttpConnection = scope["state"]["connection"]
        request = Request(scope, receive, send)
        user = await app.access.user_by_token(connection, request.headers)
        try:
            response = await self.endpoint(
                ApiRequest(request, app.server, connection, user, app.sent)
            )
        except RequestError as error:
            raise as_api_error(error, self.params) from None
        await response(scope, receive, send)


def api_route(
    method: str, path: str, endpoint: Endpoint, params: Mapping[str, str] | None = None
) -> Route:
    """A route whose requests need a token, on a server that has tokens. `params` maps the fields in
    the server's errors to those of the request."""
    return Route(path, _AuthenticatedEndpoint(endpoint, params or {}), methods=[method])
