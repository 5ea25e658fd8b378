"""The server's exceptions, and the one map from exceptions to wire codes.

Each class says who acts next. A request that can't be granted raises
`nplt_protocol.RequestError`. Error frames carry a code and a short sentence, never the text
of another library's exception.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from nplt_protocol import ErrorCode, JsonObject, RequestError
from nplt_storage.errors import (
    BadEntry,
    ConversationDamaged,
    ConversationHeld,
    ConversationNotFound,
    ConversationReadOnly,
    StorageError,
    StorageUnavailable,
    WrittenElsewhere,
)

log = logging.getLogger(__name__)


class ServerError(Exception):
    pass


EXIT_CONFIGURATION = 78
"""Of a server whose settings have mistakes."""


class ConfigurationError(ServerError):
    """The operator must correct the settings: exit 78."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class CannotServe(ServerError):
    """Another process uses the port or the data directory: exit 1."""


class VendorWords(Struct, frozen=True, kw_only=True):
    """What a vendor said about a failure, without keys and without text of the prompt."""

    code: str = ""
    param: str = ""
    message: str = ""

    def __str__(self) -> str:
        named = (("code", self.code), ("param", self.param))
        names = ", ".join(f"{name} {value}" for name, value in named if value)
        return f"{self.message} ({names})" if self.message and names else self.message or names

    def as_json(self) -> JsonObject:
        said = {"code": self.code, "param": self.param, "message": self.message}
        return {name: value for name, value in said.items() if value}


class ProviderError(ServerError):
    """A model call failed. `model_call` tries to recover; otherwise the turn ends `failed`."""

    code = ErrorCode.PROVIDER_UNAVAILABLE
    vendor: VendorWords | None = None
    of_provider = False
    """It is so for all models of the provider: nobody is there, or the key is wrong."""

    def __str__(self) -> str:
        said = str(self.vendor or "")
        return f"{self.sentence}; it says: {said}" if said else self.sentence

    @property
    def sentence(self) -> str:
        """Our own words: what is wrong, and what can be done."""
        return super().__str__()


class ProviderUnavailable(ProviderError):
    """Transient; may be retried."""

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        before_first_token: bool = True,
        timed_out: bool = False,
        is_busy: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds to wait before the next request, if the provider names a time."""
        self.before_first_token = before_first_token
        self.timed_out = timed_out
        """The call used up its time. A retry would take as long, so there is none."""
        self.is_busy = is_busy
        """The provider works, but limits the rate of requests."""


class ProviderPaused(ProviderUnavailable):
    """The circuit breaker is open; no request was sent."""

    def __init__(self, *, retry_after: float, of_provider: bool = False, why: str = "") -> None:
        """`why`: how it failed the last time."""
        who = "the provider" if of_provider else "this model"
        super().__init__(
            f"{who} failed several times in a row and is not asked for {retry_after:.0f} s; "
            f"try again then, or choose another model{f' (the last time: {why})' if why else ''}",
            retry_after=retry_after,
        )
        self.of_provider = of_provider


class ProviderUnauthorized(ProviderError):
    """The key is invalid, may not do this, or its account has no credit. The operator must
    act."""


class ProviderRefused(ProviderError):
    """The request was refused; the same request would be refused again."""

    code = ErrorCode.PROVIDER_REFUSED

    def __init__(
        self,
        message: str,
        *,
        message_index: int | None = None,
        block_index: int | None = None,
        entry_seqs: tuple[int, ...] = (),
        content_refused: bool = False,
        reasoning_refused: bool = False,
    ) -> None:
        super().__init__(message)
        self.message_index = message_index
        """The message of the request that the provider named."""
        self.block_index = block_index
        """The content block of that message, if the provider named one."""
        self.entry_seqs = entry_seqs
        """The entries that are shown in that message."""
        self.content_refused = content_refused
        """The provider rejects the content of the request, not its address, options or outcome."""
        self.reasoning_refused = reasoning_refused
        """The provider rejects reasoning that the model sealed in an earlier answer."""
        self.wrong_api = False
        """There is no such API at this address, or the model is not served through it."""
        self.wrong_reasoning = False
        """The model's own reasoning must go back to it with its calls, or must not."""


class NoSuchModel(ProviderRefused):
    """404 for the model; a fallback may be tried."""


class RequestTooLarge(ProviderRefused):
    """The request exceeds the model's window; a shorter one may be accepted."""

    code = ErrorCode.TOO_LARGE

    def __init__(self, message: str, *, window_tokens: int | None = None) -> None:
        super().__init__(message)
        self.window_tokens = window_tokens
        """The window (context and output together), if the provider named it."""


class AnswerCut(ProviderUnavailable):
    """The stream ended without a stop reason. A partial answer is kept."""

    def __init__(self) -> None:
        super().__init__(
            "the provider broke off in the middle of the answer; ask again",
            before_first_token=False,
        )


class AnswerTooLong(ProviderError):
    """The answer exceeds a limit of this server."""

    code = ErrorCode.TOO_LARGE

    def __init__(self, answer_bytes_max: int) -> None:
        super().__init__(
            f"the answer is longer than {answer_bytes_max:,} bytes; ask for a shorter one"
        )


class AnswerMismatch(ProviderError):
    """The answer does not fit the schema that came with the prompt."""

    code = ErrorCode.SCHEMA_MISMATCH

    def __init__(self, fault: str, *, mended: bool) -> None:
        tries = ", and neither did the one before it" if mended else ""
        super().__init__(
            f"the model's answer does not fit the schema{tries}: {fault}; "
            "ask again, or choose another model"
        )


class TooManySteps(ProviderError):
    """The turn exceeds this server's limit on model calls. Not a refusal by the provider, but
    sent with the same code."""

    code = ErrorCode.PROVIDER_REFUSED

    def __init__(self, steps_max: int) -> None:
        super().__init__(
            f"the model called tools in {steps_max} steps without an answer; ask it to go on"
        )


class TurnTooLong(ProviderError):
    """The turn exceeds this server's time limit. Not a refusal by the provider, but sent with
    the same code."""

    code = ErrorCode.PROVIDER_REFUSED

    def __init__(self, seconds_max: float) -> None:
        super().__init__(
            f"the answer was not complete within {seconds_max:g} s; ask for less at a time"
        )


class WindowTooSmall(ProviderError):
    """The system instruction and the tools alone exceed the model's window."""

    code = ErrorCode.TOO_LARGE


_CODES: dict[type[StorageError], ErrorCode] = {
    ConversationNotFound: ErrorCode.NOT_FOUND,
    ConversationHeld: ErrorCode.UNAVAILABLE,
    ConversationReadOnly: ErrorCode.READ_ONLY,
    StorageUnavailable: ErrorCode.UNAVAILABLE,
    WrittenElsewhere: ErrorCode.UNAVAILABLE,
    BadEntry: ErrorCode.MALFORMED,
}


def as_request_error(error: Exception) -> RequestError | None:
    """The error to send for an exception; `None` for an unexpected one, which is a bug and is
    sent as `internal`."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ProviderError):
        return RequestError(error.code, str(error))
    if isinstance(error, ConversationDamaged):
        log.warning("the storage says no: %s", error)
        return _damaged(error)
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            if code in (ErrorCode.UNAVAILABLE, ErrorCode.READ_ONLY):
                log.warning("the storage says no: %s", error)
            return RequestError(code, str(error))
    return None


def _damaged(error: ConversationDamaged) -> RequestError:
    sentence = f"conversation {error.session_id!r} is damaged ({error.reason})"
    if error.can_be_repaired:
        command = repair_command(error.session_id)
        sentence += f" and can't be used before it is repaired. To repair it: {command}"
    return RequestError(ErrorCode.READ_ONLY, sentence)


def error_to_tell(error: Exception, log: logging.Logger, what: str) -> RequestError:
    """The error to send for any exception. A bug is logged, and sent without details."""
    known = as_request_error(error)
    if known is None:
        log.error("%s", what, exc_info=error)
        known = internal_error()
    return known


def internal_error() -> RequestError:
    return RequestError(
        ErrorCode.INTERNAL,
        "something went wrong in the server; its log says what (nplt server log)",
    )


def repair_command(session_id: str) -> str:
    return f"nplt repair {session_id}"


def no_such_conversation(session_id: str) -> RequestError:
    # The same error for a conversation of another user, so that ids can't be probed.

    return RequestError(
        ErrorCode.NOT_FOUND, f"there is no conversation {session_id!r}", field="session_id"
    )
