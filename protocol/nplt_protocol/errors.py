"""The errors of the wire.

    ProtocolError
        LocalProtocolError      we broke the rules: a bug on this side, nothing was sent
        RemoteProtocolError     the bytes of the other side can't be framed any more: close
        RequestError            one message is refused; the connection lives on

A server also raises `RequestError` for a request that it understood and
refuses: the code says who acts next, the message is a sentence for a person,
`field` names the field of the payload.
"""

from __future__ import annotations

from collections.abc import Mapping

from nplt_protocol.codes import RETRYABLE, ErrorCode
from nplt_protocol.json_text import JsonValue


class ProtocolError(Exception):
    pass


class LocalProtocolError(ProtocolError):
    pass


class RemoteProtocolError(ProtocolError):
    pass


class RequestError(ProtocolError):
    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        field: str | None = None,
        retry_after: float | None = None,
        details: Mapping[str, JsonValue] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.retry_after = retry_after
        self.details = details or {}

    def forget_origin(self) -> None:
        """Drops the traceback, whose frames would keep the payload in memory."""
        self.__traceback__ = None
        self.__context__ = None

    @property
    def retryable(self) -> bool:
        return self.code in RETRYABLE
