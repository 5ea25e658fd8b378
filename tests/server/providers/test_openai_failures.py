"""What went wrong at a provider says who acts next."""

from __future__ import annotations

import orjson
import pytest

from nplt_server.errors import (
    NoSuchModel,
    ProviderError,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
    VendorWords,
)
from nplt_server.providers.failures import failure_in_stream, failure_of, seconds_of
from nplt_server.providers.vendor_errors import VendorError, without_prompt


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ProviderRefused),
        (401, ProviderUnauthorized),
        (402, ProviderUnauthorized),
        (403, ProviderUnauthorized),
        (404, NoSuchModel),
        (408, ProviderUnavailable),
        (413, RequestTooLarge),
        (422, ProviderRefused),
        (429, ProviderUnavailable),
        (500, ProviderUnavailable),
        (503, ProviderUnavailable),
        (529, ProviderUnavailable),
    ],
)
def test_an_http_status_decides_the_kind_of_provider_error(
    status: int, kind: type[ProviderError]
) -> None:
    assert type(failure_of(status, VendorError())) is kind


def test_a_429_for_want_of_money_is_the_operators() -> None:
    assert isinstance(failure_of(429, VendorError(code="insufficient_quota")), ProviderUnauthorized)


def test_anthropics_400_for_a_low_credit_balance_is_unauthorized() -> None:
    words = "Your credit balance is too low to access the Anthropic API."
    assert isinstance(failure_of(400, VendorError(message=words)), ProviderUnauthorized)


def test_a_429_for_one_request_that_is_too_large_is_not_waited_for() -> None:
    words = "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 52123."
    assert isinstance(failure_of(429, VendorError(kind="tokens", message=words)), RequestTooLarge)


@pytest.mark.parametrize(
    ("status", "param", "message", "cause_unclear"),
    [
        (400, "", "Bad request.", True),
        (422, "", "", True),
        (400, "messages", "", True),
        (400, "", "messages.3.content: no", True),
        (400, "tools[0].function.parameters", "Invalid schema for function 'x'", False),
        (400, "reasoning_effort", "Invalid value: 'max'", False),
        (400, "", "tools.0.custom.input_schema: no", False),
        (400, "", "max_tokens: 9 > 8", False),
        (301, "", "", False),
        (405, "", "", False),
        (418, "messages[3]", "", False),
    ],
)
def test_only_an_unclear_refusal_of_messages_may_be_about_content(
    status: int, param: str, message: str, cause_unclear: bool
) -> None:
    failure = failure_of(status, VendorError(param=param, message=message))
    assert isinstance(failure, ProviderRefused)
    assert (failure.cause_unclear, failure.content_refused) == (cause_unclear, False)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("invalid_encrypted_content", "The encrypted content gAAA could not be verified."),
        ("", "messages.1.content.0: Invalid `signature` in `thinking` block"),
        ("", "messages.1.content.0: `thinking` or `redacted_thinking` blocks cannot be modified."),
    ],
)
def test_sealed_thoughts_that_are_not_taken_are_known_by_their_words(
    code: str, message: str
) -> None:
    failure = failure_of(400, VendorError(code=code, message=message))
    assert isinstance(failure, ProviderRefused)
    assert failure.reasoning_refused


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("context_length_exceeded", ""),
        ("", "This model's maximum context length is 8192 tokens."),
        ("", "prompt is too long: 210000 tokens > 200000 maximum"),
        ("", "the request exceeds the available context size"),
        ("", "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
    ],
)
def test_a_context_that_does_not_fit_is_known_by_its_words(code: str, message: str) -> None:
    assert isinstance(failure_of(400, VendorError(code=code, message=message)), RequestTooLarge)


def test_a_refusal_says_what_the_provider_says_and_what_can_be_done() -> None:
    failure = failure_of(
        400,
        VendorError(
            kind="invalid_request_error",
            code="unsupported_value",
            param="temperature",
            message="Unsupported value: 'temperature' does not support 0.2 with this model.",
        ),
    )
    assert str(failure) == (
        "the provider refused the request (400); change what it names, or choose another model; "
        "the provider says: Unsupported value: 'temperature' does not support 0.2 with this model. "
        "(code unsupported_value, param temperature)"
    )


@pytest.mark.parametrize(
    "key",
    [
        "sk-1234",
        "sk-proj-abc_def-123",
        "Bearer abcdef",
        "AIzaSyD-123",
        "xai-123abc",
        "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b",
    ],
)
def test_a_key_is_in_no_sentence(key: str) -> None:
    failure = failure_of(
        401, VendorError(message=f"Incorrect API key provided: {key}. See the dashboard.")
    )
    assert key not in str(failure)
    assert "Incorrect API key provided: …" in str(failure)


BODY = {
    "model": "gpt-6-luna",
    "temperature": 0.2,
    "tools": [{"function": {"name": "look"}}],
    "messages": [
        {"role": "user", "content": "hunter2 is my temperature, and the name of my first dog"}
    ],
}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Invalid value: 'hunter2'.", "Invalid value: '…'."),
        ("can't read is my temperature, and the name here", "can't read … here"),
        ("Unsupported value: 'temperature'.", "Unsupported value: 'temperature'."),
        ("'look' and `gpt-6-luna` do not match", "'look' and `gpt-6-luna` do not match"),
        ("key own-key-of-a-box is wrong", "key … is wrong"),
    ],
)
def test_text_of_the_prompt_is_hidden_and_names_of_the_request_are_not(
    message: str, shown: str
) -> None:
    words = without_prompt(VendorWords(message=message), BODY, "own-key-of-a-box")
    assert words.message == shown


def test_a_long_sentence_is_cut_and_its_lines_joined() -> None:
    words = VendorError(message="one\n\ttwo\x1b[31m " + "word " * 500).words()
    assert words is not None
    assert words.message.startswith("one two")
    assert len(words.message) <= 301
    assert "\x1b" not in words.message


# Each as its gateway answers it: all of them with 400.
@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        # Gemini, OpenAI compatibility: a list, and 400 for a wrong key
        (
            [{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.",
                        "status": "INVALID_ARGUMENT"}}],
            ProviderUnauthorized,
            "does not accept the API key",
        ),
        # xAI: "code" and "error" as texts
        (
            {"code": "Client specified an invalid argument",
             "error": "Incorrect API key provided: xa***yz. You can obtain an API key at x.ai."},
            ProviderUnauthorized,
            "does not accept the API key",
        ),
        # LiteLLM proxy
        (
            {"error": {"message": "Authentication Error, Invalid proxy server token passed.",
                       "type": "auth_error", "param": "None", "code": "400"}},
            ProviderUnauthorized,
            "does not accept the API key",
        ),
        (
            {"error": {"message": "Budget has been exceeded! Current cost: 3, Max budget: 2",
                       "type": "budget_exceeded", "param": None, "code": "400"}},
            ProviderUnauthorized,
            "add credit",
        ),
        (
            {"error": {"message": "Invalid model name passed in model=x. Call `/v1/models`",
                       "type": "None", "param": "None", "code": "400"}},
            NoSuchModel,
            "nplt models",
        ),
        # OpenRouter, DeepSeek, Mistral
        (
            {"error": {"message": "acme/x is not a valid model ID", "code": 400}},
            NoSuchModel,
            "nplt models",
        ),
        ({"error": {"message": "Model Not Exist", "type": "invalid_request_error"}}, NoSuchModel,
         "nplt models"),
        (
            {"object": "error", "message": "Invalid model: x", "type": "invalid_model",
             "param": None, "code": "1500"},
            NoSuchModel,
            "nplt models",
        ),
        # FastAPI
        ({"detail": "field required"}, ProviderRefused, "change what it names"),
        ("<html>", ProviderRefused, "change what it names"),
    ],
)  # fmt: skip
def test_a_gateway_with_one_status_for_all_is_understood_by_its_words(
    body: object, kind: type[ProviderError], says: str
) -> None:
    error = VendorError.of_body(orjson.dumps(body))
    failure = failure_of(400, error)
    assert type(failure) is kind
    assert says in str(failure)


def test_a_web_page_is_known_by_its_title_and_plain_text_by_its_words() -> None:
    page = b"\xef\xbb\xbf<!doctype html><html><head><title>502 Bad\n Gateway</title>"
    assert VendorError.of_body(page) == VendorError(page="502 Bad Gateway")
    assert VendorError.of_body(b"<html>") == VendorError(page="")
    assert VendorError.of_body(b"404 page not found\n").message == "404 page not found\n"


@pytest.mark.parametrize(
    ("param", "message", "index"),
    [
        ("messages[3].content", "", 3),
        ("messages.[12].role", "", 12),
        ("input[4].id", "", 4),
        ("", "messages.5.content.0: text content blocks must be non-empty", 5),
        ("", "Invalid 'messages[2].tool_calls[7].id': string too long", 2),
        ("tools[1].function", "", None),
        ("messages", "", None),
    ],
)
def test_a_refusal_names_a_message(param: str, message: str, index: int | None) -> None:
    failure = failure_of(400, VendorError(param=param, message=message))
    assert isinstance(failure, ProviderRefused)
    assert failure.message_index == index


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("9999999", 604_800.0),
        ("nan", None),
        ("soon", None),
        ("", None),
        (None, None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ],
)
def test_a_wait_is_bounded(header: str | None, seconds: float | None) -> None:
    assert seconds_of(header) == seconds


def test_retry_after_may_be_a_date() -> None:
    assert seconds_of("Fri, 01 Jan 2100 00:00:00 GMT") == 604_800.0
    assert seconds_of("Fri, 01 Jan 2100 00:00:00 -0000") == 604_800.0


@pytest.mark.parametrize(
    ("kind", "code", "status", "expected"),
    [
        ("server_error", "", None, ProviderUnavailable),
        ("overloaded_error", "", None, ProviderUnavailable),
        ("", "rate_limit_exceeded", None, ProviderUnavailable),
        ("", "", 502, ProviderUnavailable),
        ("invalid_request_error", "", None, ProviderRefused),
        ("authentication_error", "", None, ProviderUnauthorized),
        ("", "", 3, ProviderUnavailable),
    ],
)
def test_an_error_in_the_stream_is_as_its_status_would_be(
    kind: str, code: str, status: int | None, expected: type[ProviderError]
) -> None:
    failure = failure_in_stream(
        VendorError(kind=kind, code=code, status=status), before_first_token=False
    )
    assert type(failure) is expected
    if isinstance(failure, ProviderUnavailable):
        assert not failure.before_first_token
