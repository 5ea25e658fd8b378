"""What can go wrong in the server, and the one map from it to the wire.

    ServerError
        ConfigurationError      the operator must mend the settings: exit 78
        CannotServe             port or data directory is taken: exit 1
        ProviderError           a model could not answer; the turn ends `failed`
            ProviderUnavailable     later may be better
                ProviderPaused          it failed too often of late: it was not asked
            ProviderUnauthorized    the operator must mend the key
            ProviderRefused         the same prompt will be refused again
                NoSuchModel             another one may be there
                RequestTooLarge         less of the context may be taken
            AnswerCut               the stream ended without saying so
            AnswerTooLong           over the limit; what there is is kept
            TooManySteps            the model went on calling tools
            TurnTooLong             all its calls and tools took too long
            WindowTooSmall          not even the instruction and the tools fit

Requests that can't be granted are `nplt_protocol.RequestError`; error frames
carry a code and a short sentence, never another library's text.
"""

from __future__ import annotations

import logging

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_storage.errors import (
    BadEntry,
    ConversationDamaged,
    ConversationNotFound,
    ConversationReadOnly,
    StorageError,
    StorageUnavailable,
    WrittenElsewhere,
)

log = logging.getLogger(__name__)


class ServerError(Exception):
    pass


class ConfigurationError(ServerError):
    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class CannotServe(ServerError):
    pass


class ProviderError(ServerError):
    code = ErrorCode.PROVIDER_UNAVAILABLE


class ProviderUnavailable(ProviderError):
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
        """Seconds the provider asks to be left alone."""
        self.before_first_token = before_first_token
        self.timed_out = timed_out
        """It had its time: asking the same again would take as long."""
        self.is_busy = is_busy
        """It is in good health, and asks for fewer requests."""


class ProviderPaused(ProviderUnavailable):
    def __init__(self, *, retry_after: float) -> None:
        super().__init__(
            "the provider failed several times in a row and is left alone for a while",
            retry_after=retry_after,
        )


class ProviderUnauthorized(ProviderError):
    pass


class ProviderRefused(ProviderError):
    code = ErrorCode.PROVIDER_REFUSED

    def __init__(
        self,
        message: str,
        *,
        message_index: int | None = None,
        block_index: int | None = None,
        entry_seqs: tuple[int, ...] = (),
        is_of_request: bool = False,
        is_of_thoughts: bool = False,
    ) -> None:
        super().__init__(message)
        self.message_index = message_index
        """The message of the request that the provider named."""
        self.block_index = block_index
        """And the block of that message, if it named one."""
        self.entry_seqs = entry_seqs
        """The entries that are shown there."""
        self.is_of_request = is_of_request
        """What was said is what it does not take, rather than where, how, or what came of it."""
        self.is_of_thoughts = is_of_thoughts
        """What the model had thought, which it sealed itself, is what it does not take."""


class NoSuchModel(ProviderRefused):
    pass


class RequestTooLarge(ProviderRefused):
    code = ErrorCode.TOO_LARGE

    def __init__(self, message: str, *, window_tokens: int | None = None) -> None:
        super().__init__(message)
        self.window_tokens = window_tokens
        """What fits, question and answer together, if the provider said so."""


class AnswerCut(ProviderError):
    def __init__(self) -> None:
        super().__init__("the provider's stream ended in the middle of the answer")


class AnswerTooLong(ProviderError):
    code = ErrorCode.TOO_LARGE

    def __init__(self, answer_bytes_max: int) -> None:
        super().__init__(f"the answer is longer than {answer_bytes_max} bytes")


class TooManySteps(ProviderError):
    code = ErrorCode.PROVIDER_REFUSED

    def __init__(self, steps_max: int) -> None:
        super().__init__(f"the model still wanted tools after {steps_max} steps")


class TurnTooLong(ProviderError):
    code = ErrorCode.PROVIDER_REFUSED

    def __init__(self, seconds_max: float) -> None:
        super().__init__(f"the turn was not finished within {seconds_max:g} s")


class WindowTooSmall(ProviderError):
    code = ErrorCode.TOO_LARGE


_CODES: dict[type[StorageError], ErrorCode] = {
    ConversationNotFound: ErrorCode.NOT_FOUND,
    ConversationDamaged: ErrorCode.READ_ONLY,
    ConversationReadOnly: ErrorCode.READ_ONLY,
    StorageUnavailable: ErrorCode.UNAVAILABLE,
    WrittenElsewhere: ErrorCode.CONFLICT,
    BadEntry: ErrorCode.MALFORMED,
}


def as_request_error(error: Exception) -> RequestError | None:
    """`None`: nobody foresaw this one; it is a bug and answers `internal`."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ProviderError):
        return RequestError(error.code, str(error))
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            if code in (ErrorCode.UNAVAILABLE, ErrorCode.READ_ONLY):
                log.warning("the storage says no: %s", error)
            return RequestError(code, str(error))
    return None


def internal_error() -> RequestError:
    return RequestError(ErrorCode.INTERNAL, "something went wrong here; the server's log says what")


def no_such_conversation(session_id: str) -> RequestError:
    # "Not yours" and "not there" are the same answer on purpose.
    return RequestError(
        ErrorCode.NOT_FOUND, f"there is no conversation {session_id!r}", field="session_id"
    )
