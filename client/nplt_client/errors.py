"""The errors of the client, as one tree.

    NpltError                   exit code
        ConfigurationError          3   an address, token or setting that can't be right
        AuthenticationFailed        4   the token is missing, wrong, or not enough
        CannotConnect               5   nothing listens there, or the server refused us
        ConnectionLost              5   the connection ended
        ProviderFailed              6   the model's provider refused or failed
        TimedOut                    7   no reply in the time that was allowed
        ProtocolViolation           8   the server does not follow the protocol
        LimitExceeded               9   too large, too many, too fast
        RequestRefused              2   the server refused a valid request: `code` says why
        MovedElsewhere              1   this client left the conversation of a running turn
        TurnInterrupted           130   the answer was cut short; `text` is its beginning

`WIRE_ERRORS` is the one map from error codes on the wire to these classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # slow to load, and needed only once there is a connection
    from nplt_protocol.json_text import JsonObject, JsonValue
    from nplt_protocol.messages import ErrorReport


class NpltError(Exception):
    """The base of all errors. `code` and `field` are those of the server, if it refused."""

    exit_code: int = 1

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        retry_after: float | None = None,
        details: Mapping[str, JsonValue] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.field = field
        self.retry_after = retry_after
        self.details = dict(details or {})


class ConfigurationError(NpltError):
    exit_code = 3


class AuthenticationFailed(NpltError):
    exit_code = 4


class CannotConnect(NpltError):
    exit_code = 5
    nothing_listens = False
    """Whether no program listens at the address, as opposed to one that refused us."""


class ConnectionLost(NpltError):
    exit_code = 5


class ProviderFailed(NpltError):
    exit_code = 6


class TimedOut(NpltError):
    exit_code = 7


class ProtocolViolation(NpltError):
    exit_code = 8


class LimitExceeded(NpltError):
    exit_code = 9


class RequestRefused(NpltError):
    """The server refused the request: no such conversation, two of that name, a name too long.

    The caller has to change it, hence the exit code of a usage error; a failure inside the
    server has the exit code of an internal error.
    """

    _SERVER_TROUBLE: ClassVar[frozenset[str]] = frozenset({"internal", "unavailable", "read_only"})

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return 1 if self.code in self._SERVER_TROUBLE else 2


class MovedElsewhere(NpltError):
    """The turn can't be followed any more: events come for one conversation at a time."""


class TurnInterrupted(NpltError):
    exit_code = 130

    def __init__(self, message: str, *, text: str) -> None:
        super().__init__(message)
        self.text = text


WIRE_ERRORS: dict[str, type[NpltError]] = {
    "unauthorized": AuthenticationFailed,
    "forbidden": AuthenticationFailed,
    "too_large": LimitExceeded,
    "busy": LimitExceeded,
    "rate_limited": LimitExceeded,
    "provider_refused": ProviderFailed,
    "provider_unavailable": ProviderFailed,
    "schema_mismatch": ProviderFailed,
    "unsupported": ProtocolViolation,
    "shutting_down": ConnectionLost,
    "malformed": RequestRefused,
    "not_found": RequestRefused,
    "ambiguous": RequestRefused,
    "conflict": RequestRefused,
    "unavailable": RequestRefused,
    "read_only": RequestRefused,
    "internal": RequestRefused,
}
"""The class of each error code. Unknown codes, from a newer server, are a `RequestRefused`."""


def error_from_report(report: ErrorReport) -> NpltError:
    kind = WIRE_ERRORS.get(report.code, RequestRefused)
    if type(report.code) is not str:
        # This report was not sent: it was made here because a message could not be decoded.
        kind = ProtocolViolation
    return kind(
        report.message,
        code=report.code,
        field=report.field,
        retry_after=report.retry_after,
        details=report.details,
    )


def error_from_turn(error: JsonObject | None) -> NpltError:
    """Converts the `error` of a failed turn; without a code it is the provider's failure."""
    details = error or {}
    code = word if isinstance(word := details.get("code"), str) else None
    message = text if isinstance(text := details.get("message"), str) else ""
    kind = WIRE_ERRORS.get(code or "", ProviderFailed)
    return kind(message or "the turn failed", code=code)
