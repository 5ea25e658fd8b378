"""What a provider's failure means: who acts next.

Whatever went wrong comes in as plain values (a status, the fields of an error body, an
exception of the HTTP library) and leaves as one of our own errors with a sentence of our
own. The provider's words are only looked into: they may quote a prompt or a key.
"""

from __future__ import annotations

import re
import time
from datetime import UTC
from email.utils import parsedate_to_datetime

from nplt_server.errors import (
    NoSuchModel,
    ProviderError,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
)
from nplt_server.providers.window_words import window_named

_RETRY_AFTER_SECONDS_MAX = 3600.0
_INDEX_DIGITS_MAX = 6
# `messages[3].content`, `messages.[3].role`, `messages.3.content.0`, `input[3]`
_INDEX = rf"\.?\[?(\d{{1,{_INDEX_DIGITS_MAX}}})\b"
_NAMED_MESSAGE = re.compile(rf"\b(?:messages|input){_INDEX}(?:\]?\.content{_INDEX})?")
_TOO_LARGE = re.compile(
    r"context.length|context.window|context.size|prompt is too long|too many tokens"
    r"|exceed.context|request_too_large|maximum context",
    re.IGNORECASE,
)
# An account without money is told as 429, or as 400; waiting does not fill it.
_NO_MONEY = ("insufficient_quota", "billing_hard_limit_reached", "billing_error")
_SAYS_NO_MONEY = re.compile(r"credit balance is too low|insufficient (?:balance|credit)", re.I)
# More in one request than the account may send in a minute: waiting does not help either.
_TOO_LARGE_FOR_A_MINUTE = re.compile(r"request too large", re.IGNORECASE)
_THOUGHTS = re.compile(
    r"invalid_encrypted_content|encrypted content|invalid .?signature.? in"
    r"|thinking.? (?:or .{0,3}redacted_thinking.? )?blocks?\b",
    re.IGNORECASE,
)
_OF_CONTENT = ("messages", "input", "prompt")
# How Anthropic begins: `tools.0.custom.name: …`
_FIELD = re.compile(r"[a-z_]+")
_OTHER_FIELD = re.compile(
    r"(?:max_tokens|metadata|model|stop_sequences|system|temperature|thinking|tool_choice|tools"
    r"|top_[kp])\b\S*:\s"
)
_NOT_THE_ADDRESS = (301, 302, 303, 307, 308, 405)
_STATUS_OF_KIND = {
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 529,
    "authentication_error": 401,
    "permission_error": 403,
    "invalid_api_key": 401,
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "not_found_error": 404,
    "request_too_large": 413,
}


def failure_of(
    status: int,
    *,
    kind: str = "",
    code: str = "",
    param: str = "",
    message: str = "",
    retry_after: str | None = None,
) -> ProviderError:
    """Of an answer with an error status; `kind`, `code`, `param` and `message` are the
    fields of its body, `retry_after` is the header as it came."""
    if status in (401, 403):
        return ProviderUnauthorized(f"the provider does not accept the key ({status})")
    if status == 402 or {code, kind} & {*_NO_MONEY} or _SAYS_NO_MONEY.search(message):
        return ProviderUnauthorized(f"the account at the provider has no credit left ({status})")
    if status == 429 and not _TOO_LARGE_FOR_A_MINUTE.search(message):
        return ProviderUnavailable(
            "the provider asks for fewer requests (429)",
            retry_after=seconds_of(retry_after),
            is_busy=True,
        )
    if status in (408, 409, 425) or status >= 500:
        return ProviderUnavailable(
            f"the provider is in trouble ({status})", retry_after=seconds_of(retry_after)
        )
    if status in (413, 429) or _TOO_LARGE.search(f"{kind} {code} {message}"):
        return RequestTooLarge(
            f"the request is larger than the provider takes ({status})",
            window_tokens=window_named(message),
        )
    if status == 404:
        return NoSuchModel("the provider does not know this model or address (404)")
    if status in _NOT_THE_ADDRESS:
        return ProviderRefused(f"the provider's address is not the right one ({status})")
    return _refusal(status, code=code, param=param, message=message)


def _refusal(status: int, *, code: str, param: str, message: str) -> ProviderRefused:
    says = f"the provider refused the request ({status})"
    if status not in (400, 422):
        return ProviderRefused(says)
    message_index, block_index = named_place(param, message)
    return ProviderRefused(
        says,
        message_index=message_index,
        block_index=block_index,
        is_of_request=message_index is not None or _is_of_content(param, message),
        is_of_thoughts=_THOUGHTS.search(f"{code} {message}") is not None,
    )


def _is_of_content(param: str, message: str) -> bool:
    """Unless it names a field of the request that holds something else."""
    field = _FIELD.match(param)
    return (field is None or field[0] in _OF_CONTENT) and not _OTHER_FIELD.match(message)


def failure_in_stream(
    *,
    before_first_token: bool,
    kind: str = "",
    code: str = "",
    message: str = "",
    status: int | None = None,
) -> ProviderError:
    """Of an error that came as an event, after the provider had said 200."""
    if status is None or not 400 <= status < 600:
        status = _STATUS_OF_KIND.get(kind) or _STATUS_OF_KIND.get(code) or 500
    failure = failure_of(status, kind=kind, code=code, message=message)
    if isinstance(failure, ProviderUnavailable):
        return ProviderUnavailable(
            "the provider broke off with an error", before_first_token=before_first_token
        )
    return failure


def failure_of_transport(error: Exception, *, before_first_token: bool) -> ProviderError:
    """Of an exception of `httpx2`, or of an SDK that has one as its cause."""
    import httpx2  # whoever has such an error has it imported

    is_its_own = isinstance(error, httpx2.HTTPError | httpx2.InvalidURL)
    cause = error if is_its_own else error.__cause__
    if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return ProviderUnavailable("the provider can't be reached")
    if isinstance(cause, httpx2.TimeoutException):
        return too_slow(before_first_token=before_first_token)
    if isinstance(cause, httpx2.UnsupportedProtocol | httpx2.InvalidURL):
        return ProviderRefused("the provider's address is not one that can be called")
    return ProviderUnavailable(
        "the connection to the provider broke", before_first_token=before_first_token
    )


def too_slow(*, before_first_token: bool) -> ProviderUnavailable:
    what = "did not begin to answer" if before_first_token else "fell silent in its answer"
    return ProviderUnavailable(
        f"the provider {what}", before_first_token=before_first_token, timed_out=True
    )


def unreadable(*, before_first_token: bool) -> ProviderUnavailable:
    return ProviderUnavailable(
        "the provider sent something that can't be read", before_first_token=before_first_token
    )


def named_place(param: str, message: str) -> tuple[int | None, int | None]:
    """Of the message a refusal names, in the list that was sent, and of its block."""
    found = _NAMED_MESSAGE.search(param) or _NAMED_MESSAGE.search(message)
    if found is None:
        return None, None
    return int(found[1]), int(found[2]) if found[2] else None


def seconds_of(retry_after: str | None) -> float | None:
    """The header's value: seconds, or a date. Bounded, never negative."""
    if not retry_after:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            moment = parsedate_to_datetime(retry_after)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = moment.timestamp() - time.time()
    if seconds != seconds:
        return None
    return min(max(seconds, 0.0), _RETRY_AFTER_SECONDS_MAX)
