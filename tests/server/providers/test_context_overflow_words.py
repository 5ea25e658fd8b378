"""What a refusal is about is read out of the words of vendors, each with its address."""

from __future__ import annotations

import re

import pytest

from nplt_server.errors import (
    NoSuchModel,
    ProviderError,
    ProviderUnauthorized,
    RequestTooLarge,
)
from nplt_server.providers import CallRoom, ModelFacts
from nplt_server.providers.failures import failure_of
from nplt_server.providers.vendor_errors import (
    SENT_SAYINGS,
    WINDOW_SAYINGS,
    VendorError,
    sent_tokens_named,
    window_named,
)

TOO_LONG: tuple[tuple[str, str, int, int | None], ...] = (
    # The address, the sentence, the window and the tokens that were sent.
    (
        "https://github.com/orhanerday/ChatGPT/issues/17",
        "This model's maximum context length is 4097 tokens. However, your messages resulted in "
        "192871 tokens. Please reduce the length of the messages.",
        4_097,
        192_871,
    ),
    (
        "https://github.com/ogx-ai/ogx/issues/4534",
        "This model's maximum context length is 6048 tokens. However, you requested 6616 tokens "
        "(568 in the messages, 6048 in the completion). Please reduce the length of the messages "
        "or completion.",
        6_048,
        568,
    ),
    (
        "https://github.com/vllm-project/vllm/pull/33425",
        "This model's maximum context length is 2048 tokens. However, your request has 8 input "
        "tokens plus 2045 'max_tokens'. Please reduce one or the other.",
        2_048,
        8,
    ),
    (
        "https://github.com/Aider-AI/aider/issues/3721",
        "This endpoint's maximum context length is 131072 tokens. However, you requested about "
        "141607 tokens (10535 of text input, 131072 in the output).",
        131_072,
        10_535,
    ),
    (
        "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/server-context.cpp",
        "request (5000 tokens) exceeds the available context size (2048 tokens), try increasing it",
        2_048,
        5_000,
    ),
    (
        "https://docs.mistral.ai/resources/known-limitations",
        "Prompt contains 321774 tokens and 0 draft tokens, too large for model with 262144 maximum "
        "context length",
        262_144,
        321_774,
    ),
    (
        "https://github.com/anthropics/claude-code/issues/12186",
        "prompt is too long: 208310 tokens > 200000 maximum",
        200_000,
        208_310,
    ),
    (
        "https://github.com/continuedev/continue/issues/6080",
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease "
        "input length or `max_tokens` and try again",
        200_000,
        199_759,
    ),
    (
        "https://github.com/google-gemini/gemini-cli/issues/6678",
        "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
        1_048_576,
        1_200_293,
    ),
    (
        "https://github.com/assafelovic/gpt-researcher/issues/985",
        "Request too large for model `llama-3.1-70b-versatile` in organization `x` on tokens per "
        "minute (TPM): Limit 6000, Requested 14368, please reduce your message size and try again.",
        6_000,
        None,
    ),
)


@pytest.mark.parametrize(("address", "words", "window", "sent"), TOO_LONG)
def test_a_refusal_for_its_length_names_the_window_and_what_was_sent(
    address: str, words: str, window: int, sent: int | None
) -> None:
    assert address.startswith("https://")
    assert (window_named(words), sent_tokens_named(words)) == (window, sent)
    assert isinstance(failure_of(400, VendorError(message=words)), RequestTooLarge)


@pytest.mark.parametrize("saying", [*WINDOW_SAYINGS, *SENT_SAYINGS], ids=lambda each: each.pattern)
def test_each_pattern_matches_a_sentence_with_an_address(saying: re.Pattern[str]) -> None:
    assert any(saying.search(words) for _, words, _, _ in TOO_LONG)


REFUSED: tuple[tuple[str, int, str, type[ProviderError]], ...] = (
    # The address, the status, the code or sentence, what it is.
    (
        "https://github.com/anthropics/claude-quickstarts/issues/229",
        400,
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing "
        "to upgrade or purchase credits.",
        ProviderUnauthorized,
    ),
    (
        "https://github.com/dirk1983/deepseek/issues/79",
        429,
        "insufficient_quota: You exceeded your current quota, please check your plan and billing "
        "details.",
        ProviderUnauthorized,
    ),
    (
        "https://github.com/continuedev/continue/issues/9942",
        402,
        "Insufficient Balance",
        ProviderUnauthorized,
    ),
    (
        "https://github.com/BerriAI/litellm/issues/22726",
        400,
        "Budget has been exceeded! Current cost: 26.075, Max budget: 0.25",
        ProviderUnauthorized,
    ),
    (
        "https://github.com/OWASP/OpenCRE/pull/1102",
        400,
        "ExceededBudget: End User=ishaan3 over budget. Spend=0.0008869999999999999, Budget=0.0001",
        ProviderUnauthorized,
    ),
    (
        "https://github.com/openai/openai-agents-python/issues/458",
        404,
        "The model `computer-use-preview-2025-03-11` does not exist or you do not have access to "
        "it.",
        NoSuchModel,
    ),
    (
        "https://github.com/continuedev/continue/issues/10758",
        400,
        "deepseek/deepseek-coder is not a valid model ID",
        NoSuchModel,
    ),
    (
        "https://github.com/deepwn/addi/issues/13",
        400,
        "Model Not Exist",
        NoSuchModel,
    ),
    (
        "https://github.com/tmc/langchaingo/issues/1233",
        400,
        "Invalid model: x",
        NoSuchModel,
    ),
    (
        "https://github.com/BerriAI/litellm/issues/9663",
        400,
        "/chat/completions: Invalid model name passed in model=None. Call `/v1/models` to view "
        "available models for your key.",
        NoSuchModel,
    ),
    (
        "https://github.com/wwardaww/gnome-gemini-ai/issues/21",
        404,
        "models/gemini-1.0-pro is not found for API version v1beta, or is not supported for "
        "generateContent. Call ListModels to see the list of available models and their supported "
        "methods.",
        NoSuchModel,
    ),
    (
        "https://github.com/can1357/oh-my-pi/issues/449",
        400,
        "API key not valid. Please pass a valid API key.",
        ProviderUnauthorized,
    ),
    (
        "https://github.com/google-gemini/gemini-cli/issues/25198",
        400,
        "API Key not found. Please pass a valid API key.",
        ProviderUnauthorized,
    ),
    (
        "https://github.com/aliasrobotics/cai/issues/281",
        400,
        "Authentication Error, Invalid proxy server token passed. key=1234567890 not found in db.",
        ProviderUnauthorized,
    ),
    (
        "https://github.com/BerriAI/litellm/issues/12273",
        400,
        "No connected db.",
        ProviderUnauthorized,
    ),
)


@pytest.mark.parametrize(("address", "status", "words", "kind"), REFUSED)
def test_a_refusal_of_a_key_an_account_or_a_model_is_no_refusal_of_the_request(
    address: str, status: int, words: str, kind: type[ProviderError]
) -> None:
    assert address.startswith("https://")
    assert type(failure_of(status, VendorError(message=words))) is kind


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
