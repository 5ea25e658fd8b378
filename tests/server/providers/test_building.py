"""From settings to providers that answer, and nothing imported before it is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.vendors.emulator import Emulator, emulator
from tests.vendors.faults import Stall

from nplt_server.context.messages import ModelInputMessage
from nplt_server.errors import ConfigurationError, ProviderRefused, ProviderUnavailable
from nplt_server.providers import LlmRequest, Patience, TextPiece
from nplt_server.providers.build import ProviderBuilder
from nplt_server.providers.local_model import LocalProvider
from nplt_server.providers.router import ProviderRouter, build_router
from nplt_server.settings import LocalSettings, Settings

KEY = "sk-canary-0123456789"


@pytest.fixture
async def vendors() -> AsyncIterator[Emulator]:
    async with emulator(key=KEY) as each:
        yield each


@asynccontextmanager
async def routing(environ: Mapping[str, str], **settings: Any) -> AsyncIterator[ProviderRouter]:
    router = build_router(Settings.model_validate(settings), environ)
    try:
        yield router
    finally:
        await router.aclose()


async def answer(
    router: ProviderRouter, model: str, *, answer_tokens_max: int | None = None
) -> str:
    provider = router.route_of(model)
    invocation = provider.invocation
    asked = LlmRequest(
        invocation=invocation,
        context=(ModelInputMessage(content="hi", seq=1),),
        answer_tokens_max=answer_tokens_max,
    )
    async with provider.call_model(asked) as deltas:
        return "".join([each.text async for each in deltas if isinstance(each, TextPiece)])


async def test_keys_and_addresses_in_the_environment_are_enough(vendors: Emulator) -> None:
    environ = {
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": vendors.openai_url,
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": vendors.anthropic_url,
    }
    providers = [{"type": "openai", "models": ["gpt-4.1"]}, {"type": "anthropic"}]
    async with routing(environ, providers=providers) as router:
        assert await answer(router, "openai/gpt-4.1")
        assert await answer(router, "anthropic/claude-opus-5-5")
    assert [each.path for each in vendors.received] == ["/v1/chat/completions", "/v1/messages"]


async def test_a_server_of_ones_own_gets_its_own_key_and_headers(vendors: Emulator) -> None:
    azure = {
        "id": "azure",
        "type": "openai",
        "base_url": f"{vendors.url}/openai/v1",
        "api_key_env": "AZURE_KEY",
        "models": ["my-deployment"],
        "headers": {"X-Team": "us"},
    }
    async with routing({"AZURE_KEY": KEY, "OPENAI_API_KEY": "other"}, providers=[azure]) as router:
        with pytest.raises(ProviderRefused):  # the emulator has nothing there
            await answer(router, "azure/my-deployment")
    asked = vendors.received[0]
    assert asked.path == "/openai/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers["x-team"] == "us"


@pytest.mark.parametrize(
    ("kind", "model"), [("openai", "gpt-4.1"), ("anthropic", "claude-opus-4-5")]
)
async def test_headers_from_the_environment_go_to_their_vendor_only(
    vendors: Emulator, monkeypatch: pytest.MonkeyPatch, kind: str, model: str
) -> None:
    output = f"X-Secret: {KEY}\nAuthorization: Bearer {KEY}-of-a-vendor"
    for name in ("CUSTOM_HEADERS", "AUTH_TOKEN", "ORG_ID", "PROJECT_ID", "API_KEY"):
        monkeypatch.setenv(f"{kind.upper()}_{name}", output if "HEADERS" in name else "not-yours")
    url = vendors.openai_url if kind == "openai" else vendors.anthropic_url
    provider = {"type": kind, "base_url": url, "models": [model], "api_key_env": "K"}
    async with routing({"K": KEY}, providers=[provider]) as router:
        assert await answer(router, f"{kind}/{model}")
    (asked,) = vendors.received
    assert "x-secret" not in asked.headers
    assert not {"not-yours", f"Bearer {KEY}-of-a-vendor"} & {*asked.headers.values()}


async def test_a_server_on_this_machine_is_not_looked_for_behind_a_proxy(
    vendors: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    providers = [
        {"type": "openai", "base_url": vendors.openai_url, "models": ["gpt-4.1"]},
        {"type": "anthropic", "base_url": vendors.anthropic_url, "models": ["claude-opus-4-5"]},
    ]
    providers = [{**each, "api_key_env": "K"} for each in providers]
    async with routing({"K": KEY}, providers=providers) as router:
        assert await answer(router, "openai/gpt-4.1")
        assert await answer(router, "anthropic/claude-opus-4-5")


@pytest.mark.parametrize(
    ("output", "specification"),
    [
        ({}, "openai-responses"),
        ({"api": "chat"}, "openai-chat"),
        ({"base_url": "http://x/v1", "models": ["m"]}, "openai-chat"),
        ({"base_url": "http://x/v1", "models": ["m"], "api": "responses"}, "openai-responses"),
    ],
)
def test_the_api_is_the_one_a_server_is_likely_to_speak(
    output: dict[str, Any], specification: str
) -> None:
    settings = Settings.model_validate({"providers": [{"type": "openai", **output}]})
    router = build_router(settings, {"OPENAI_API_KEY": KEY})
    assert router.route_of(router.default_model).invocation.specification == specification


async def test_a_server_that_differs_is_spoken_to_as_it_wants(vendors: Emulator) -> None:
    provider = {
        "type": "openai",
        "base_url": vendors.openai_url,
        "api_key_env": "K",
        "models": ["gpt-4.1"],
        "tokens_field": "max_tokens",
    }
    async with routing({"K": KEY}, providers=[provider]) as router:
        assert await answer(router, "openai/gpt-4.1", answer_tokens_max=100)
    (asked,) = vendors.received
    assert isinstance(asked.body, dict)
    assert asked.body["max_tokens"] == 100
    assert "max_completion_tokens" not in asked.body


async def test_reasoning_is_summarized_where_the_settings_say_so(vendors: Emulator) -> None:
    provider = {
        "type": "openai",
        "base_url": vendors.openai_url,
        "api_key_env": "K",
        "api": "responses",
        "models": ["gpt-5.2"],
        "summarizes_reasoning": True,
    }
    async with routing({"K": KEY}, providers=[provider]) as router:
        assert await answer(router, "openai/gpt-5.2")
    (asked,) = vendors.received
    assert isinstance(asked.body, dict)
    assert asked.body["reasoning"] == {"summary": "auto"}


def test_the_local_model_has_the_window_and_the_time_of_the_settings() -> None:
    settings = Settings.model_validate({"models": {"local/smollm2": {"context_tokens": 8192}}})
    patience = Patience(first_token_seconds=7)
    builder = ProviderBuilder(environ={}, models=settings.models, patience=patience)
    local = builder.build(LocalSettings())
    assert isinstance(local, LocalProvider)
    assert local.window_tokens == 8192
    assert local.patience == patience


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_providers_time_is_the_one_of_the_settings(vendors: Emulator, kind: str) -> None:
    url = vendors.openai_url if kind == "openai" else vendors.anthropic_url
    model = "gpt-4.1" if kind == "openai" else "claude-opus-4-5"
    provider = {"type": kind, "base_url": url, "api_key_env": "K", "models": [model]}
    vendors.fail_next(Stall(after=0))
    limits = {"first_token_seconds_max": 0.05}
    async with routing({"K": KEY}, providers=[provider], limits=limits) as router:
        with pytest.raises(ProviderUnavailable) as caught:
            await answer(router, f"{kind}/{model}")
    assert caught.value.timed_out
    vendors.release()


def test_a_key_that_went_away_is_a_mistake_without_the_key() -> None:
    settings = Settings.model_validate({"providers": [{"type": "openai"}]})
    with pytest.raises(ConfigurationError, match="providers, openai, api_key_env: there is no"):
        build_router(settings, {})


@pytest.mark.parametrize(
    ("base_url", "warnings"),
    [("http://192.0.2.1/v1", 1), ("https://192.0.2.1/v1", 0), ("http://[::1]:8000/v1", 0)],
)
def test_an_api_key_over_plain_http_is_a_warning(
    caplog: pytest.LogCaptureFixture, base_url: str, warnings: int
) -> None:
    box = {"id": "box", "type": "openai", "base_url": base_url, "models": ["m"]}
    settings = Settings.model_validate({"providers": [{**box, "api_key_env": "K"}, {**box}]})
    build_router(settings, {"K": KEY})
    assert len(caplog.records) == warnings
    assert KEY not in caplog.text


def test_the_settings_retries_are_the_routers() -> None:
    router = build_router(Settings.model_validate({"limits": {"retries_max": 7}}), {})
    assert router.retries.retries_max == 7
    assert router.models == ("offline/echo",)


def test_no_optional_package_is_imported_before_it_is_needed() -> None:
    program = (
        "import sys; from pathlib import Path; import nplt_server.app;"
        "from nplt_server.settings_loader import load_settings;"
        "from nplt_server.app import build_parts;"
        "keys = {'OPENAI_API_KEY': 'x', 'ANTHROPIC_API_KEY': 'y'};"
        "settings = load_settings({}, config_file=Path('/dev/null'), environ=keys);"
        "build_parts(settings, keys);"
        "print({'openai', 'anthropic', 'httpx2', 'xllamacpp', 'mcp', 'redis'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


async def test_a_local_server_that_is_found_gets_a_breaker_and_a_route(vendors: Emulator) -> None:
    vendors.open_lists = True
    async with routing({}, local_servers={"ollama": vendors.port}) as router:
        assert list(router.breakers) == ["offline"]
        await router.find_local_servers()
        assert list(router.breakers) == ["offline", "ollama"]
        assert router.route_of("ollama/gpt-4o-mini").provider_breaker is router.breakers["ollama"]


def test_the_default_model_can_not_be_one_of_a_local_server() -> None:
    settings = {"local_servers": {"ollama": 11434}, "default_model": "ollama/llama3"}
    with pytest.raises(ConfigurationError, match="there is no model 'ollama/llama3'"):
        build_router(Settings.model_validate(settings), {})
