"""Bodies of requests and responses: JSON in, JSON out, both bounded."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Final, TypeVar

import anyio
import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from nplt_gateway.errors import ApiError
from nplt_protocol import JsonObject
from nplt_server.app import Server

_MIB: Final = 1024 * 1024
QUICK_BYTES_MAX: Final = 256 * 1024
"""A larger body is parsed in a thread."""

Body = TypeVar("Body", bound=BaseModel)


class JsonResponse(Response):
    media_type = "application/json"

    def __init__(
        self, content: JsonObject, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(orjson.dumps(content), status, headers)


async def read_json(request: Request, server: Server, user: str, shape: type[Body]) -> Body:
    """Reads and checks the body of a request. Raises `ApiError` with the field that is wrong."""
    return (await read_json_and_digest(request, server, user, shape))[0]


async def read_json_and_digest(
    request: Request, server: Server, user: str, shape: type[Body]
) -> tuple[Body, str]:
    """Reads it likewise, and returns its SHA-256 too, by which a repeated request is known."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        # A web page can send any other type to a foreign server without asking it first.
        raise ApiError(415, "the body must be JSON, sent as Content-Type: application/json")
    data = await read_body(request, server, user)
    if len(data) <= QUICK_BYTES_MAX:
        return _parsed(data, shape)
    return await server.services.heavy.run(user, partial(_parsed, data, shape))


def _parsed(data: bytes, shape: type[Body]) -> tuple[Body, str]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(document, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    try:
        return shape.model_validate(document), sha256(data).hexdigest()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        param = ".".join(str(part) for part in first["loc"])
        raise ApiError(400, f"{param}: {first['msg']}", param=param, code="invalid_value") from None


async def read_body(request: Request, server: Server, user: str) -> bytes:
    """Reads the body, within the limits for its size, for the time that it takes, and for the
    memory of all unfinished messages."""
    limits = server.services.limits
    size_max, held = limits.http_body_bytes_max, 0
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > size_max:
        raise _too_large(size_max)
    budget = server.admission.unfinished_of_user[user]
    parts: list[bytes] = []
    seconds_max = limits.message_seconds_max
    try:
        with anyio.fail_after(seconds_max) as scope:
            async for part in request.stream():
                if held + len(part) > size_max:
                    raise _too_large(size_max)
                if not budget.take(len(part)):
                    raise ApiError(
                        429,
                        "too many bytes of unfinished requests; try again",
                        type="rate_limit_error",
                        code="busy",
                        retry_after=1,
                    )
                # Each further MiB has as long as a message of the other port.
                if (held + len(part)) // _MIB > held // _MIB:
                    scope.deadline += seconds_max
                held += len(part)
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {seconds_max:g} s", closes=True) from None
    except ClientDisconnect:
        raise ApiError(400, "the body is incomplete", closes=True) from None
    finally:
        budget.give_back(held)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(size_max: int) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {size_max} bytes (limits.http_body_bytes_max)",
        code="too_large",
    )
