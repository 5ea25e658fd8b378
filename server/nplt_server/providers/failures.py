"""A provider's failures as the server's own errors: statuses, events, transport errors.

Each says what a person can do, and carries what the provider said about it (`vendor_errors`).
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from nplt_server.errors import (
    NoSuchModel,
    ProviderError,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
)
from nplt_server.providers.refusal_rules import (
    is_about_content,
    is_about_form,
    is_about_shape,
    refused_part,
)
from nplt_server.providers.vendor_errors import VendorError, sent_tokens_named, window_named

if TYPE_CHECKING:
    from nplt_server.providers.http_client import HttpFailure


_RETRY_AFTER_SECONDS_MAX = 7 * 86_400.0
_SECONDS_NAMED_MIN = 30.0
_MINUTES_SHOWN_MAX = 120
"""A shorter wait is not worth a time of day."""
_INDEX_DIGITS_MAX = 6
# `messages[3].content`, `messages.[3].role`, `messages.3.content.0`, `input[3]`
_INDEX = rf"\.?\[?(\d{{1,{_INDEX_DIGITS_MAX}}})\b"
_NAMED_MESSAGE = re.compile(rf"\b(?:messages|input){_INDEX}(?:\]?\.content{_INDEX})?")
_TOO_LARGE = re.compile(
    r"(?i)context.length|context.window|context.size|prompt is too long|too many tokens"
    r"|exceed.context|request_too_large|maximum context"
)
# The sentences of vendors that these and the patterns above match, with their addresses, are in
# tests/server/providers/test_context_overflow_words.py.
#
# An account without money is told as 429, or as 400; waiting does not fill it.
_NO_MONEY = re.compile(
    r"(?i)insufficient_quota|billing_hard_limit_reached|billing_error|credit balance is too low"
    r"|insufficient (?:balance|credit|funds)|budget has been exceeded|exceeded.?budget"
)
# OpenAI and Groq; Anthropic; OpenRouter; Mistral; DeepSeek; LiteLLM; Azure; Gemini; Ollama
_NO_SUCH_MODEL = re.compile(
    r"(?i)model_not_found|\bmodel: [\w.:/-]+$|not a valid model|invalid_model|invalid model\b"
    r"|model not exist|DeploymentNotFound|models/\S+ is not found|unknown.model"
    r"|\bmodel [`'\"]?[\w.:/-]+[`'\"]? (?:does not exist|(?:is |was )?not found)"
    r"|does not have access to model"
)
# Gemini, xAI and LiteLLM answer 400 for a wrong key. LiteLLM without a database knows one key
# only: "No connected db." with the type no_db_connection is what it says to all others
# (github.com/BerriAI/litellm/pull/20837: "the actual issue is authentication failure").
_NO_KEY = re.compile(
    r"(?i)invalid_api_key|API_KEY_INVALID|authentication_?error|incorrect api key"
    r"|api.key.{0,20}(?:not valid|invalid|not found|expired)|invalid (?:x-api-key|api.?key|token)"
    r"|invalid proxy server token|unauthenticated|no_db_connection|no connected db"
)
# More in one request than the account may send in a minute: waiting does not help either.
_TOO_LARGE_FOR_A_MINUTE = re.compile(r"request too large", re.IGNORECASE)
# OpenAI, of tools with GPT-5.4 and later, and of models that only the one API has
_OTHER_API = re.compile(r"(?i)(?:use|in|with) (?:the )?(?:/?v1/)?(?:responses|chat/completions)\b")
_THOUGHTS = re.compile(
    r"(?i)invalid_encrypted_content|encrypted content|invalid .?signature.? in"
    r"|thinking.? (?:or .{0,3}redacted_thinking.? )?blocks?\b"
)
_OF_CONTENT = ("messages", "input", "prompt")
# How Anthropic begins: `tools.0.custom.name: …`
_FIELD = re.compile(r"[a-z_]+")
_OTHER_FIELD = re.compile(
    r"(?:max_tokens|metadata|model|stop_sequences|system|temperature|thinking|tool_choice|tools"
    r"|top_[kp])\b\S*:\s"
)
_NO_DATABASE = re.compile(r"(?i)no_db_connection|no connected db")
# Anthropic says overloaded_error; 503 and 529 say it without words.
_OVERLOADED = re.compile(r"(?i)overloaded|at capacity|server is busy|no capacity")
# llama.cpp while it starts (github.com/ggml-org/llama.cpp tools/server/README.md): 503
# {"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}
_STARTING = re.compile(r"(?i)loading model|model is loading|still loading")
# A server of TLS that is spoken to without. github.com/golang/go src/net/http/server.go: "Client
# sent an HTTP request to an HTTPS server."; github.com/nginx/nginx
# src/http/ngx_http_special_response.c: "The plain HTTP request was sent to HTTPS port".
_NEEDS_TLS = re.compile(r"(?i)http request (?:was sent )?to (?:an )?https (?:server|port)")
_TRANSIENT = (408, 409, 425)
_NOT_THE_ADDRESS = (301, 302, 303, 307, 308, 405)
_MEANT_AS_THEY_ARE = (*_TRANSIENT, 429, *_NOT_THE_ADDRESS)
"""Statuses that say enough, also with a web page."""
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


def failure_of(status: int, body: VendorError, *, retry_after: str | None = None) -> ProviderError:
    """The error for a response with an error status; `retry_after` is the header as it came."""
    failure = replace(_failure(status, body, retry_after), vendor=body.words())
    if not isinstance(failure, ProviderRefused):
        return failure
    words = f"{body.kind} {body.code} {body.message}"
    is_elsewhere = (
        status in (404, 405, 501)
        and not is_about_form(words)
        and not _NO_SUCH_MODEL.search(f"{body.code} {body.message}")
    )
    return replace(
        failure,
        wrong_api=is_elsewhere or _OTHER_API.search(body.message) is not None,
        wrong_reasoning=status in (400, 422) and "reasoning_content" in body.message,
    )


def _failure(status: int, body: VendorError, retry_after: str | None) -> ProviderError:
    all_words = f"{body.kind} {body.code} {body.message}"
    is_refused = 400 <= status < 500
    if (wrong := _wrong_server(status, body)) is not None:
        return wrong
    if status >= 400 and status not in (401, 403, 429) and is_about_form(all_words):
        return _refusal(400, status, body)  # also if it says 404 or 500
    # A gateway may have one status for all that its vendors say: words come first.
    if is_refused and _NO_SUCH_MODEL.search(all_words):
        return NoSuchModel(
            f"the provider does not know this model, or not for this key ({status}); "
            "`nplt models` lists what there is, `models` of the provider in the settings names it"
        )
    if status == 402 or (is_refused and _NO_MONEY.search(all_words)):
        return ProviderUnauthorized(
            f"the account at the provider has no credit left ({status}); "
            "add credit there, or choose another model",
            reason="no_credit",
        )
    if status == 401 or (is_refused and _NO_KEY.search(all_words)):
        return ProviderUnauthorized(
            f"the provider does not accept the API key ({status})"
            + _OF_NO_DATABASE * (_NO_DATABASE.search(all_words) is not None),
            of_provider=True,
        )
    if status == 403:
        return ProviderUnauthorized(
            "the provider does not allow this to the account of the API key (403); "
            "ask whoever owns it, or choose another model"
        )
    if status == 429 and not _TOO_LARGE_FOR_A_MINUTE.search(body.message):
        seconds = seconds_of(retry_after)
        return ProviderUnavailable(
            f"the provider gets too many requests (429); try again {_when(seconds)}",
            retry_after=seconds,
            reason="rate_limited",
        )
    if status in _TRANSIENT or status >= 500:
        seconds = seconds_of(retry_after)
        is_overloaded = status in (503, 529) or _OVERLOADED.search(all_words) is not None
        is_starting = status == 503 and _STARTING.search(all_words) is not None
        page = f" ({body.page})" if body.page else ""
        what = "loads its model" if is_starting else f"has a problem of its own ({status}){page}"
        return ProviderUnavailable(
            f"the provider {what}; try again {_when(seconds)}",
            retry_after=seconds,
            reason="overloaded" if is_overloaded else "unavailable",
            is_starting=is_starting,
        )
    window_tokens = window_named(body.message)
    if status in (413, 429) or window_tokens is not None or _TOO_LARGE.search(all_words):
        return RequestTooLarge(
            f"this is too long for the model ({status}); compact or clear the conversation",
            window_tokens=window_tokens,
            sent_tokens=sent_tokens_named(body.message),
        )
    if status == 404:
        return NoSuchModel(
            "the provider does not know this model or address (404); check the model and base_url"
        )
    if status in _NOT_THE_ADDRESS:
        return ProviderRefused(
            f"the provider's address is not the right one ({status}); check base_url"
        )
    return _refusal(status, status, body)


_OF_NO_DATABASE = " (LiteLLM without a database says this of every key that is not its master key)"


def _wrong_server(status: int, body: VendorError) -> ProviderRefused | None:
    """The failure if the reply is not a provider's, because base_url leads elsewhere."""
    if _NEEDS_TLS.search(f"{body.message} {body.page or ''}"):
        return ProviderRefused(
            "the provider wants TLS: base_url must begin with https:// instead of http://"
        )
    if body.page is not None and 400 <= status < 500 and status not in _MEANT_AS_THEY_ARE:
        return failure_of_page(status, body.page)
    return None


def failure_of_page(status: int, title: str) -> ProviderRefused:
    """A web page came instead of an answer."""
    named = f" {title!r}" if title else ""
    return ProviderRefused(
        f"a web page{named} came instead of an answer ({status}): base_url names another server, "
        "or a proxy or firewall is in between; check base_url and HTTPS_PROXY"
    )


def _when(seconds: float | None) -> str:
    """Says when to try again, which may be hours from now."""
    if seconds is None or seconds <= _SECONDS_NAMED_MIN:
        return "later"
    now = datetime.now(UTC)
    moment = now + timedelta(seconds=seconds)
    day = "" if moment.date() == now.date() else f"{moment:%Y-%m-%d} "
    minutes = -int(-seconds // 60)
    left = f"{minutes} min" if minutes < _MINUTES_SHOWN_MAX else f"{seconds / 3600:.0f} h"
    return f"after {day}{moment:%H:%M} UTC (in {left})"


def _refusal(fitting_status: int, status: int, body: VendorError) -> ProviderRefused:
    """`fitting_status`: the status that fits the refusal; some servers send another one."""
    says = (
        f"the provider refused the request ({status}); change what it names, "
        "or choose another model"
    )
    if fitting_status not in (400, 422):
        return ProviderRefused(says)
    param, message = body.param, body.message
    found = _NAMED_MESSAGE.search(param) or _NAMED_MESSAGE.search(message)
    # Unless it names a field of the request that holds something else.
    field = _FIELD.match(param)
    may_be_content = (field is None or field[0] in _OF_CONTENT) and not _OTHER_FIELD.match(message)
    all_words = f"{body.kind} {body.code} {message}"
    is_content = is_about_content(all_words)
    is_unclear = (found is not None or may_be_content) and not is_about_shape(all_words)
    return ProviderRefused(
        says,
        message_index=int(found[1]) if found else None,
        block_index=int(found[2]) if found and found[2] else None,
        content_refused=is_content,
        cause_unclear=is_unclear and not is_content,
        refused_part=refused_part(message),
        reasoning_refused=_THOUGHTS.search(f"{body.code} {message}") is not None,
    )


def failure_in_stream(body: VendorError, *, before_first_token: bool) -> ProviderError:
    """The error for an error event, which came after a response with status 200."""
    status = body.status
    if status is None or not 400 <= status < 600:
        status = _STATUS_OF_KIND.get(body.kind) or _STATUS_OF_KIND.get(body.code) or 500
    failure = failure_of(status, body)
    if isinstance(failure, ProviderUnavailable):
        return ProviderUnavailable(
            "the provider broke off with an error; ask again",
            before_first_token=before_first_token,
            vendor=failure.vendor,
            reason=failure.reason,
        )
    return failure


def failure_of_transport(
    failure: HttpFailure | TimeoutError, *, before_first_token: bool, address: str = ""
) -> ProviderError:
    """`address`: the `base_url` that was called."""
    from nplt_server.providers.http_client import BodyTooLarge, NoConnection, UnusableAddress

    match failure:
        case TimeoutError():
            return too_slow(before_first_token=before_first_token)
        case NoConnection():
            return ProviderUnavailable(_why_no_connection(failure, address), of_provider=True)
        case BodyTooLarge():
            return ProviderRefused("the provider sent an answer that is too large to be read")
        case UnusableAddress():
            return ProviderRefused(
                "the provider's address is not one that can be called; check base_url"
            )
        case _:
            return ProviderUnavailable(
                "the connection to the provider broke; ask again",
                before_first_token=before_first_token,
            )


def _why_no_connection(error: Exception, address: str) -> str:
    """Says what went wrong before there was a connection, and which setting to look at."""
    parts = urlsplit(address)
    host, url = parts.hostname or "the provider", f" ({address})" if address else ""
    for cause in _causes(error):
        match cause:
            case ConnectionRefusedError():
                port = parts.port or (443 if parts.scheme == "https" else 80)
                return (
                    f"nothing listens at {host}:{port}: start that server, or correct base_url{url}"
                )
            case socket.gaierror():
                return f"there is no host {host!r}: correct base_url{url}, or check the network"
            case ssl.SSLCertVerificationError():
                return (
                    f"the certificate of {host} is not one to trust ({cause.verify_message}): "
                    f"check base_url{url}, or SSL_CERT_FILE"
                )
            case ssl.SSLError():
                return (
                    f"{host} does not speak TLS at this port: base_url{url} must probably begin "
                    "with http:// instead of https://"
                )
            case TimeoutError() | socket.timeout():
                return f"{host} does not answer: check the network and base_url{url}"
            case _:
                pass
    return f"the provider can't be reached; check the network and base_url{url}"


_CAUSES_MAX: Final = 8


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, and those that led to it, as deep as the libraries wrap them."""
    pending = [error]
    for _ in range(_CAUSES_MAX):
        cause = pending.pop(0) if pending else None
        if cause is None:
            return
        yield cause
        pending += getattr(cause, "exceptions", ()) or ()
        if (before := cause.__cause__ or cause.__context__) is not None:
            pending.append(before)


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
