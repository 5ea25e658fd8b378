"""A provider's failures as the server's own errors: statuses, events, transport errors.

The provider's text is only searched, never quoted: it may contain a prompt or a key.
"""

from __future__ import annotations

import re
import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from nplt_server.errors import (
    NoSuchModel,
    ProviderError,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
)

# ------------------------------------------------------------------------------
# The window's size, read from the text of a refusal
#
# Nothing else of that text is used. Limits of tokens per minute count as windows too: a
# larger request is never accepted.

WINDOW_TOKENS_MIN: Final = 256
"""Less is no window but a misreading."""
_TOKENS: Final = r"(\d{1,3}(?:,\d{3})+|\d+)"
_SAYINGS: Final = tuple(
    re.compile(saying.replace("N", _TOKENS), re.IGNORECASE)
    for saying in (
        # OpenAI, vLLM, SGLang, OpenRouter; llama.cpp; Mistral
        r"maximum context length (?:is|of) N\b",
        r"context (?:size|window|length) (?:is |of )?\(?N\b",
        r"with N maximum context length",
        # Anthropic: the prompt alone, or with the room for the answer
        r"\d+ tokens > N maximum",
        r"exceed context limit: \d+ \+ \d+ > N\b",
        # Gemini
        r"maximum number of tokens allowed \(?N\b",
        # OpenAI and Groq, of an account
        r"tokens per min\w* \(TPM\): limit:? N\b",
    )
)


def window_named(words: str) -> int | None:
    """The tokens of the question and the room for the answer, together."""
    for saying in _SAYINGS:
        found = saying.search(words)
        if found is not None:
            tokens = int(found[1].replace(",", "")[:12])
            return tokens if tokens >= WINDOW_TOKENS_MIN else None
    return None


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
        return ProviderUnauthorized(
            f"the provider does not accept the API key ({status}); check the server's settings"
        )
    if status == 402 or {code, kind} & {*_NO_MONEY} or _SAYS_NO_MONEY.search(message):
        return ProviderUnauthorized(
            f"the account at the provider has no credit left ({status}); choose another model"
        )
    if status == 429 and not _TOO_LARGE_FOR_A_MINUTE.search(message):
        return ProviderUnavailable(
            "the provider gets too many requests (429); try again later",
            retry_after=seconds_of(retry_after),
            is_busy=True,
        )
    if status in (408, 409, 425) or status >= 500:
        return ProviderUnavailable(
            f"the provider has a problem of its own ({status}); try again later",
            retry_after=seconds_of(retry_after),
        )
    if status in (413, 429) or _TOO_LARGE.search(f"{kind} {code} {message}"):
        return RequestTooLarge(
            f"this is too long for the model ({status}); compact or clear the conversation",
            window_tokens=window_named(message),
        )
    if status == 404:
        return NoSuchModel(
            "the provider does not know this model or address (404); check the model and base_url"
        )
    if status in _NOT_THE_ADDRESS:
        return ProviderRefused(
            f"the provider's address is not the right one ({status}); check base_url"
        )
    return _refusal(status, code=code, param=param, message=message)


def _refusal(status: int, *, code: str, param: str, message: str) -> ProviderRefused:
    says = f"the provider refused the request ({status})"
    if status not in (400, 422):
        return ProviderRefused(says)
    found = _NAMED_MESSAGE.search(param) or _NAMED_MESSAGE.search(message)
    # Unless it names a field of the request that holds something else.
    field = _FIELD.match(param)
    is_content = (field is None or field[0] in _OF_CONTENT) and not _OTHER_FIELD.match(message)
    return ProviderRefused(
        says,
        message_index=int(found[1]) if found else None,
        block_index=int(found[2]) if found and found[2] else None,
        content_refused=found is not None or is_content,
        reasoning_refused=_THOUGHTS.search(f"{code} {message}") is not None,
    )


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
            "the provider broke off with an error; ask again", before_first_token=before_first_token
        )
    return failure


def failure_of_transport(error: Exception, *, before_first_token: bool) -> ProviderError:
    """Of an exception of `httpx2`, or of an SDK that has one as its cause."""
    import httpx2  # whoever has such an error has it imported

    is_its_own = isinstance(error, httpx2.HTTPError | httpx2.InvalidURL)
    cause = error if is_its_own else error.__cause__
    if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return ProviderUnavailable("the provider can't be reached; check the network and base_url")
    if isinstance(cause, httpx2.TimeoutException):
        return too_slow(before_first_token=before_first_token)
    if isinstance(cause, httpx2.UnsupportedProtocol | httpx2.InvalidURL):
        return ProviderRefused(
            "the provider's address is not one that can be called; check base_url"
        )
    return ProviderUnavailable(
        "the connection to the provider broke; ask again", before_first_token=before_first_token
    )


def too_slow(*, before_first_token: bool) -> ProviderUnavailable:
    what = (
        "did not begin to answer in time"
        if before_first_token
        else "stopped in the middle of the answer"
    )
    return ProviderUnavailable(
        f"the provider {what}", before_first_token=before_first_token, timed_out=True
    )


def unreadable(*, before_first_token: bool) -> ProviderUnavailable:
    return ProviderUnavailable(
        "the provider sent something that can't be read; ask again, or check base_url",
        before_first_token=before_first_token,
    )


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
