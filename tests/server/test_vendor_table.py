"""The table of vendors and models: presets by name, windows, prices, and what wins over it."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from nplt_server.providers.build import discover_providers
from nplt_server.providers.credentials import read_key
from nplt_server.providers.models import KnownModels, known_of, models_of
from nplt_server.settings import OpenAISettings, Settings, known_vendors

PRESETS = [
    "azure",
    "deepseek",
    "gemini",
    "groq",
    "mistral",
    "ollama",
    "openrouter",
    "together",
    "xai",
]
OWN = {"azure": {"base_url": "https://me.openai.azure.com/openai/v1", "models": ["mine"]}}


def settings_of(*providers: dict[str, Any], **more: Any) -> Settings:
    return Settings.model_validate({"providers": providers, **more})


@pytest.mark.parametrize("name", PRESETS)
def test_a_vendor_is_configured_by_its_name(name: str) -> None:
    (provider,) = settings_of({"type": name, **OWN.get(name, {})}).providers
    assert isinstance(provider, OpenAISettings)
    assert provider.id == provider.type == name
    assert provider.base_url is not None
    variable = known_vendors()["vendors"][name].get("key")
    assert provider.api_key_env == variable
    environ = {variable: "sk-1"} if variable else {}
    assert read_key(provider, environ).get_secret_value() == ("sk-1" if variable else "")
    assert models_of(provider) or name == "ollama"


def test_what_is_given_wins_over_the_preset() -> None:
    given = {"type": "deepseek", "id": "ds", "tokens_field": "max_completion_tokens"}
    (provider,) = settings_of({**given, "api_key_file": "~/k", "models": ["m"]}).providers
    assert isinstance(provider, OpenAISettings)
    assert (provider.id, provider.models, provider.api_key_env) == ("ds", ("m",), None)
    assert provider.tokens_field == "max_completion_tokens"
    assert provider.returns_reasoning is True


def test_the_key_of_a_vendor_goes_to_that_vendor_only() -> None:
    (provider,) = settings_of({"type": "groq", "base_url": "https://elsewhere/v1"}).providers
    assert isinstance(provider, OpenAISettings)
    assert provider.api_key_env is None
    assert models_of(provider) == ()


def test_a_deployment_has_an_address_of_its_own() -> None:
    with pytest.raises(ValidationError, match=r"needs base_url: https://NAME\.openai\.azure\.com"):
        settings_of({"type": "azure"})


def test_the_table_has_a_date_and_a_source_for_every_vendor() -> None:
    table = known_vendors()
    assert table["as_of"].year >= 2026
    for row in table["models"]:
        assert row.keys() <= {
            "vendor",
            "name",
            "context_tokens",
            "output_tokens",
            "images",
            "prices",
        }
        re.compile(row["name"])
        assert ("prices" in row) <= ("vendor" in row)


def test_the_default_models_are_known_with_window_longest_answer_and_prices() -> None:
    settings = Settings(
        providers=discover_providers({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"})
    )
    facts = KnownModels(settings)
    for name in ("openai/gpt-6.1-sol", "anthropic/claude-opus-5-5", "anthropic/claude-haiku-5-5"):
        assert facts[name].output_tokens_max == 128_000
        assert facts[name].prices is not None
    # Input of more than 100,000 tokens would cost five times as much.
    assert facts["anthropic/claude-haiku-5-5"].budget_tokens < 100_000


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("gpt-6.1-sol", 2),
        ("gpt-6.1-sol-2026-09-29", 2),
        ("gpt-6.1-sol-fast", None),
        ("gpt-5.4", 2.5),
        ("gpt-5.4-mini", 0.75),
        ("gpt-5.4-nano", None),
        ("llama3", None),
    ],
)
def test_a_price_is_that_of_one_model(model: str, price: float | None) -> None:
    prices = known_of(model, "openai").get("prices")
    assert (prices and prices["in"]) == price


def test_prices_are_those_of_the_vendor_itself_and_unknown_elsewhere() -> None:
    settings = settings_of(
        {"type": "openai"},
        {"id": "gateway", "type": "openai", "base_url": "https://g/v1", "models": ["gpt-6.1-sol"]},
        {"type": "openrouter"},
    )
    facts = KnownModels(settings)
    assert facts["openai/gpt-6.1-sol"].prices is not None
    assert facts["gateway/gpt-6.1-sol"].prices is None
    assert facts["openrouter/openai/gpt-6.1-sol"].prices is None
    assert facts["openrouter/openai/gpt-6.1-sol"].context_tokens == 272_000


def test_the_settings_win_over_the_table() -> None:
    described = {"price_in": 7, "price_out": 8, "price_cache_write": 9, "context_tokens": 9_000}
    settings = settings_of({"type": "openai"}, models={"openai/gpt-6.1-sol": described})
    facts = KnownModels(settings)["openai/gpt-6.1-sol"]
    assert facts.context_tokens == 9_000
    assert facts.prices is not None
    assert facts.prices.price_cache_write == 9


def test_what_is_read_from_a_cache_and_written_to_it_has_a_price_of_its_own() -> None:
    settings = Settings(providers=discover_providers({"ANTHROPIC_API_KEY": "k"}))
    prices = KnownModels(settings)["anthropic/claude-opus-5-5"].prices
    assert prices is not None
    cost = prices.cost(
        input_tokens=1_000_000,
        output_tokens=100_000,
        cached_tokens=600_000,
        cache_write_tokens=300_000,
    )
    # 100,000 at 4, 600,000 at 0.20, 300,000 at 5, and 100,000 of output at 20.
    assert cost == Decimal("0.4") + Decimal("0.12") + Decimal("1.5") + Decimal("2")


def test_an_unlisted_model_is_known_by_its_name_prefix() -> None:
    facts = KnownModels(settings_of({"type": "openai"}))
    assert "openai/gpt-6-sol" not in facts
    assert facts["openai/gpt-6-sol"].context_tokens == 272_000
    assert facts["openai/gpt-6-sol"].prices is not None
