"""Errors in the shape that OpenAI's clients read, and the map from the server's own codes.

OpenAI's libraries choose their exception by the HTTP status; programs read `type`, `code` and
`param` (https://platform.openai.com/docs/guides/error-codes).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from nplt_protocol import ErrorCode, JsonObject, RequestError

INVALID: Final = "invalid_request_error"
SERVER: Final = "server_error"


class ApiError(Exception):
    """A response that is an error; `param` names the field of the request that caused it."""

    def __init__(  # noqa: PLR0913  the fields of the error, and three of the response
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,  # noqa: A002
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        closes: bool = False,
    ) -> None:
        """`closes`: the connection can't be used for another request."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.closes = closes

    @property
    def headers(self) -> dict[str, str]:
        headers = {"connection": "close"} if self.closes else {}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        return headers

    def as_json(self) -> JsonObject:
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


class _Kind(Struct, frozen=True):
    status: int
    type: str


_KINDS: Final[Mapping[ErrorCode, _Kind]] = {
    ErrorCode.MALFORMED: _Kind(400, INVALID),
    ErrorCode.UNSUPPORTED: _Kind(400, INVALID),
    ErrorCode.UNAUTHORIZED: _Kind(401, INVALID),
    ErrorCode.FORBIDDEN: _Kind(403, "permission_error"),
    ErrorCode.NOT_FOUND: _Kind(404, INVALID),
    ErrorCode.AMBIGUOUS: _Kind(400, INVALID),
    ErrorCode.CONFLICT: _Kind(409, INVALID),
    ErrorCode.TOO_LARGE: _Kind(413, INVALID),
    ErrorCode.BUSY: _Kind(429, "rate_limit_error"),
    ErrorCode.RATE_LIMITED: _Kind(429, "rate_limit_error"),
    ErrorCode.PROVIDER_REFUSED: _Kind(400, INVALID),
    ErrorCode.PROVIDER_UNAVAILABLE: _Kind(502, SERVER),
    ErrorCode.SCHEMA_MISMATCH: _Kind(502, SERVER),
    ErrorCode.UNAVAILABLE: _Kind(503, SERVER),
    ErrorCode.SHUTTING_DOWN: _Kind(503, SERVER),
    ErrorCode.READ_ONLY: _Kind(503, SERVER),
    ErrorCode.INTERNAL: _Kind(500, SERVER),
}


def api_error(error: RequestError, *, params: Mapping[str, str] | None = None) -> ApiError:
    """Translates the server's refusal; `params` maps its fields to those of the HTTP request."""
    kind = _KINDS.get(error.code, _KINDS[ErrorCode.INTERNAL])
    param = error.field and (params or {}).get(error.field, error.field)
    return ApiError(
        kind.status,
        error.message,
        type=kind.type,
        code=str(error.code),
        param=param,
        retry_after=error.retry_after,
    )


def as_api_error(error: ApiError | RequestError, params: Mapping[str, str]) -> ApiError:
    """The error for a client of OpenAI's API."""
    if isinstance(error, ApiError):
        return error
    translated = api_error(error, params=params)
    if error.field == "model" and error.code == ErrorCode.NOT_FOUND:
        translated.code = "model_not_found"
    return translated
