"""What fits a model is read out of the words with which its provider refused more."""

from __future__ import annotations

import pytest

from nplt_server.errors import RequestTooLarge
from nplt_server.providers import CallRoom, ModelFacts
from nplt_server.providers.failures import (
    VendorError,
    failure_of,
    sent_tokens_named,
    window_named,
)

SAYINGS = {
    "This model's maximum context length is 8192 tokens. However, your messages resulted in"
    " 9001 tokens. Please reduce the length of the messages.": 8_192,
    "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context"
    " length is 4096 tokens and your request has 40 input tokens (8192 > 4096 - 40).": 4_096,
    "This endpoint's maximum context length is 131,072 tokens.": 131_072,
    "request (5000 tokens) exceeds the available context size (2048 tokens), try increasing"
    " it": 2_048,
    "Prompt contains 40000 tokens, too large for model with 32768 maximum context length": 32_768,
    "prompt is too long: 210001 tokens > 200000 maximum": 200_000,
    "input length and `max_tokens` exceed context limit: 190000 + 16384 > 200000, decrease"
    " input length or `max_tokens` and try again": 200_000,
    "The input token count (1200000) exceeds the maximum number of tokens allowed"
    " (1048576).": 1_048_576,
    "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested"
    " 9000.": 6_000,
}


@pytest.mark.parametrize(("words", "tokens"), SAYINGS.items())
def test_what_fits_is_understood(words: str, tokens: int) -> None:
    assert window_named(words) == tokens


@pytest.mark.parametrize(
    "words",
    [
        "",
        "Your input exceeds the context window of this model.",
        "This model's maximum context length is 8 tokens.",
        "Request exceeds the maximum size",
    ],
)
def test_a_refusal_without_numbers_gives_no_window(words: str) -> None:
    assert window_named(words) is None


SENT = {
    "This model's maximum context length is 8192 tokens. However, your messages resulted in"
    " 9001 tokens. Please reduce the length of the messages.": 9_001,
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000"
    " in the messages, 1000 in the completion).": 4_000,
    "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context"
    " length is 4096 tokens and your request has 40 input tokens (8192 > 4096 - 40).": 40,
    "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000"
    " tokens (139000 of text input, 1000 in the output).": 139_000,
    "request (5000 tokens) exceeds the available context size (2048 tokens), try increasing"
    " it": 5_000,
    "Prompt contains 40000 tokens, too large for model with 32768 maximum context length": 40_000,
    "prompt is too long: 210001 tokens > 200000 maximum": 210_001,
    "input length and `max_tokens` exceed context limit: 190000 + 16384 > 200000, decrease"
    " input length or `max_tokens` and try again": 190_000,
    "The input token count (1,200,000) exceeds the maximum number of tokens allowed"
    " (1048576).": 1_200_000,
    "Your input exceeds the context window of this model.": None,
}


@pytest.mark.parametrize(("words", "tokens"), SENT.items())
def test_tokens_that_were_sent_are_read_from_the_words_of_a_refusal(
    words: str, tokens: int | None
) -> None:
    assert sent_tokens_named(words) == tokens


def test_a_refusal_carries_what_its_words_named() -> None:
    failure = failure_of(
        400, VendorError(message="This model's maximum context length is 8192 tokens.")
    )
    assert isinstance(failure, RequestTooLarge)
    assert failure.window_tokens == 8_192


@pytest.mark.parametrize("output_tokens", [None, 100, 8_192, 200_000])
def test_in_a_smaller_window_there_is_room_for_question_and_answer(
    output_tokens: int | None,
) -> None:
    facts = ModelFacts(context_tokens=128_000, output_tokens=output_tokens).within(8_192)
    assert facts.answer_tokens <= 2_048
    assert facts.answer_tokens + facts.budget_tokens <= 8_192
    assert facts.within(16_384) == facts


def test_a_room_is_never_shortened_to_nothing() -> None:
    room = CallRoom(context_tokens=40, answer_tokens=8_192)
    for _ in range(9):
        room = room.shortened(0.2)
    assert room == CallRoom(context_tokens=1_024, answer_tokens=256)
