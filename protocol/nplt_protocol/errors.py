"""What can go wrong on the wire.

    ProtocolError
        LocalProtocolError      we broke the rules: a bug on this side, nothing was sent
        RemoteProtocolError     the bytes of the other side can't be framed any more: close
        RequestError            one message is refused; the connection lives on

`RequestError` is also how a server says no to a request it understood: the
code says who acts next, the message is a sentence for a person, `field` names
the culprit in the payload.
"""

from __future__ import annotations

from collections.abc import Mapping

from nplt_protocol.codes import RETRYABLE, ErrorCode
from nplt_protocol.json_values import JsonValue


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
        """A refusal may wait its turn; the frames and payloads it came from need not."""
        self.__traceback__ = None
        self.__context__ = None

    @property
    def retryable(self) -> bool:
        return self.code in RETRYABLE
