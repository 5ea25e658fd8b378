"""The server's exceptions, and the one map from exceptions to wire codes.

Each class says who acts next. A request that can't be granted raises
`nplt_protocol.RequestError`. Error frames carry a code and a short sentence, never the text
of another library's exception.
"""

from __future__ import annotations

import logging
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from msgspec import Struct

from nplt_protocol import ErrorCode, JsonObject, RequestError
from nplt_server.request_form import RequestForm
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


EXIT_CONFIGURATION = 78
"""The exit code of a server whose settings have mistakes."""


class ConfigurationError(Exception):
    """The operator must correct the settings: exit 78."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class CannotServe(Exception):
    """Another process uses the port or the data directory: exit 1."""


class VendorWords(Struct, frozen=True, kw_only=True):
    """A vendor's own error message, without keys and without text of the prompt."""

    code: str = ""
    param: str = ""
    message: str = ""

    def __str__(self) -> str:
        named = (("code", self.code), ("param", self.param))
        names = ", ".join(f"{name} {value}" for name, value in named if value)
        return f"{self.message} ({names})" if self.message and names else self.message or names

    def as_json(self) -> JsonObject:
        fields = {"code": self.code, "param": self.param, "message": self.message}
        return {name: value for name, value in fields.items() if value}


@dataclass(eq=False, repr=False)
class ProviderError(Exception):
    """A model call failed. The caller tries to recover; otherwise the turn ends `failed`.

    Code that knows more about a failure makes a new error (`dataclasses.replace`); an error is
    never changed."""

    code = ErrorCode.PROVIDER_UNAVAILABLE
    reason = "failed"
    """The kind of failure in one word; `fallback_on` in the settings names some of them."""

    sentence: str
    """The server's own description: what is wrong, and what can be done."""
    _: KW_ONLY
    vendor: VendorWords | None = None
    of_provider: bool = False
    """All models of the provider fail like this: it can't be reached, or the key is wrong."""

    def __str__(self) -> str:
        vendor = str(self.vendor or "")
        return f"{self.sentence}; the provider says: {vendor}" if vendor else self.sentence


@dataclass(eq=False, repr=False)
class ProviderUnavailable(ProviderError):
    """The failure is transient; the call may be retried."""

    _: KW_ONLY
    retry_after: float | None = None
    """Seconds to wait before the next request, if the provider names a time."""
    before_first_token: bool = True
    timed_out: bool = False
    """The call used up its time. A retry would take as long, so there is none."""
    reason: str = "unavailable"
    is_starting: bool = False
    """The server is there and loads its model: neither a success nor a failure."""


class ProviderPaused(ProviderUnavailable):
    """The circuit breaker is open; no request was sent."""

    def __init__(
        self,
        *,
        retry_after: float,
        of_provider: bool = False,
        why: str = "",
        reason: str = "unavailable",
    ) -> None:
        """`why`, `reason`: how the last call failed."""
        who = "the provider" if of_provider else "this model"
        paused = f"is not asked for {retry_after:.0f} s"
        if reason == "rate_limited":  # the time to try again is in `why`
            sentence = f"{who} {paused}; choose another model, or wait: {why}"
        else:
            last = f" (the last time: {why})" if why else ""
            sentence = (
                f"{who} failed several times in a row and {paused}; "
                f"try again then, or choose another model{last}"
            )
        super().__init__(
            sentence,
            retry_after=retry_after,
            of_provider=of_provider,
            reason=reason,
        )


@dataclass(eq=False, repr=False)
class ProviderUnauthorized(ProviderError):
    """The key is invalid, may not do this, or its account has no credit. The operator must
    act."""

    _: KW_ONLY
    reason: Literal["unauthorized", "no_credit"] = "unauthorized"


@dataclass(eq=False, repr=False)
class ProviderRefused(ProviderError):
    """The request was refused; the same request in the same form would be refused again."""

    code = ErrorCode.PROVIDER_REFUSED
    reason = "refused"

    _: KW_ONLY
    message_index: int | None = None
    """The message of the request that the provider named."""
    block_index: int | None = None
    """The content block of that message, if the provider named one."""
    entry_seqs: tuple[int, ...] = ()
    """The entries that are shown in that message."""
    content_refused: bool = False
    """The provider rejects the content of the request, not its address, options or outcome."""
    reasoning_refused: bool = False
    """The provider rejects reasoning that the model sealed in an earlier answer."""
    wrong_api: bool = False
    """There is no such API at this address, or the model is not served through it."""
    wrong_reasoning: bool = False
    """The model's own reasoning must go back to it with its calls, or must not."""
    change: RequestForm | None = None
    """The one change of form that the vendor's words ask for. `instead` has the whole form."""
    cause_unclear: bool = False
    """It names a message, or nothing, in words that are neither known to be about the form of the
    request nor about its content."""
    refused_part: Literal["", "pictures"] = ""
    """The part of the message that is refused; empty for all of it."""
    instead: RequestForm | None = None
    """The form in which the same request may be accepted. The caller repeats the request in it
    at once (`LlmRequest.form`); this attempt does not count as a failed call."""

    @property
    def is_about_content(self) -> bool:
        """Whether the provider rejects content without naming the message that holds it."""
        is_named = self.message_index is not None or bool(self.entry_seqs)
        return (self.content_refused or self.cause_unclear) and not is_named


class NoSuchModel(ProviderRefused):
    """The provider does not have the model (404)."""

    reason = "no_such_model"


@dataclass(eq=False, repr=False)
class RequestTooLarge(ProviderRefused):
    """The request exceeds the model's window; a shorter one may be accepted."""

    code = ErrorCode.TOO_LARGE
    reason = "too_large"

    _: KW_ONLY
    window_tokens: int | None = None
    """The window (context and output together), if the provider named it."""
    sent_tokens: int | None = None
    """The tokens of the context that was sent, if the provider named them."""


class AnswerCut(ProviderUnavailable):
    """The stream ended without a stop reason. A partial answer is kept."""

    def __init__(self) -> None:
        super().__init__(
            "the provider broke off in the middle of the answer; ask again",
            before_first_token=False,
        )


class AnswerRejected(ProviderError):
    """This server, not the provider, ends the turn: the turn exceeds a limit, or its answer does
    not match the schema of the prompt."""

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(eq=False, repr=False)
class WindowTooSmall(ProviderError):
    """The system instruction and the tools alone exceed the model's window. The user has to
    choose a model with a larger window, or offer fewer tools."""

    code = ErrorCode.TOO_LARGE
    reason = "too_large"

    needed_tokens: int = 0


_CODES: dict[type[StorageError], ErrorCode] = {
    ConversationNotFound: ErrorCode.NOT_FOUND,
    ConversationHeld: ErrorCode.UNAVAILABLE,
    ConversationReadOnly: ErrorCode.READ_ONLY,
    StorageUnavailable: ErrorCode.UNAVAILABLE,
    WrittenElsewhere: ErrorCode.UNAVAILABLE,
    BadEntry: ErrorCode.MALFORMED,
}


def as_request_error(error: Exception) -> RequestError | None:
    """Returns the error to send for an exception; `None` for an unexpected one, which is a bug and
    is sent as `internal`."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ProviderError):
        return RequestError(error.code, str(error))
    if isinstance(error, ConversationDamaged):
        log.warning("the storage says no: %s", error)
        sentence = f"conversation {error.session_id!r} is damaged ({error.reason})"
        if error.can_be_repaired:
            command = repair_command(error.session_id)
            sentence += f" and can't be used before it is repaired. To repair it: {command}"
        return RequestError(ErrorCode.READ_ONLY, sentence)
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            if code in (ErrorCode.UNAVAILABLE, ErrorCode.READ_ONLY):
                log.warning("the storage says no: %s", error)
            return RequestError(code, str(error))
    return None


def error_to_tell(error: Exception, log: logging.Logger, what: str) -> RequestError:
    """Returns the error to send for any exception. A bug is logged, and sent without details."""
    known = as_request_error(error)
    if known is None:
        log.error("%s", what, exc_info=error)
        known = RequestError(
            ErrorCode.INTERNAL,
            "something went wrong in the server; its log says what (nplt server log)",
        )
    return known


def repair_command(session_id: str) -> str:
    return f"nplt repair {session_id}"


def no_such_conversation(session_id: str) -> RequestError:
    # The same error for a conversation of another user, so that ids can't be probed.
    return RequestError(
        ErrorCode.NOT_FOUND, f"there is no conversation {session_id!r}", field="session_id"
    )
