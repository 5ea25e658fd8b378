"""Who can answer, from settings and environment; where keys come from, and where they are
not to be written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nplt_server import settings_loader
from nplt_server.app import banner
from nplt_server.cli import main
from nplt_server.errors import ConfigurationError
from nplt_server.providers import build
from nplt_server.providers.credentials import read_key
from nplt_server.providers.models import KnownModels, known_of, models_of
from nplt_server.settings import (
    PROVIDER_KINDS,
    AnthropicSettings,
    OfflineSettings,
    OpenAISettings,
    Settings,
)
from nplt_server.settings_loader import load_settings

ROOT = Path(__file__).parents[2]
KEY = "sk-canary-0123456789"
KEYS = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
BOX = "{id: box, type: openai, base_url: 'http://127.0.0.1:1/v1', models: ['llama3:8b', org/m]}"


@pytest.fixture(autouse=True)
def no_local_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "local_is_installed", lambda: False)


def load(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None) -> Settings:
    path = tmp_path / "server.yaml"
    path.write_text(text)
    return load_settings({}, config_file=path, environ=environ or {})


def mistakes(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text, environ)
    assert not any(KEY in mistake for mistake in caught.value.mistakes)
    return caught.value.mistakes


def providers(*each: str) -> str:
    return "providers:\n" + "".join(f"  - {one}\n" for one in each)


def key_file(tmp_path: Path, text: str = f"{KEY}\n", *, mode: int = 0o600) -> Path:
    path = tmp_path / "vendor.key"
    path.write_text(text)
    path.chmod(mode)
    return path


# Whom the environment brings


@pytest.mark.parametrize(
    ("variables", "ids"),
    [
        ((), ["offline"]),
        (("OPENAI_API_KEY",), ["openai", "offline"]),
        (("ANTHROPIC_API_KEY",), ["anthropic", "offline"]),
        (("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), ["openai", "anthropic", "offline"]),
    ],
)
def test_a_key_in_the_environment_is_enough(
    tmp_path: Path, variables: tuple[str, ...], ids: list[str]
) -> None:
    settings = load(tmp_path, environ=dict.fromkeys(variables, KEY))
    assert [provider.id for provider in settings.providers] == ids


def test_the_local_model_comes_before_the_echo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for looking in (build, settings_loader):
        monkeypatch.setattr(looking, "local_is_installed", lambda: True)
    settings = load(tmp_path, environ={"OPENAI_API_KEY": KEY})
    assert [provider.id for provider in settings.providers] == ["openai", "local", "offline"]


def test_only_listed_providers_exist_if_any_is_listed(tmp_path: Path) -> None:
    settings = load(tmp_path, providers(BOX), KEYS)
    assert [provider.id for provider in settings.providers] == ["box"]


def test_local_servers_are_discovered_in_addition_to_listed_providers_unless_discover_is_false(
    tmp_path: Path,
) -> None:
    assert "ollama" in (load(tmp_path, providers(BOX)).local_servers or {})
    assert load(tmp_path, providers(BOX) + "discover: false\n").local_servers == {}
    assert load(tmp_path, "discover: false\n").local_servers == {}


def test_an_empty_api_key_variable_counts_as_unset(tmp_path: Path) -> None:
    settings = load(tmp_path, environ={"OPENAI_API_KEY": " "})
    assert [provider.id for provider in settings.providers] == ["offline"]


# Keys


def test_a_key_is_read_from_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    provider = AnthropicSettings(api_key_file=key_file(tmp_path))
    key = read_key(provider, {})
    assert key.get_secret_value() == KEY
    assert KEY not in repr(key) + str(key) + repr(provider)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_an_api_key_file_that_others_can_read_is_a_mistake_with_its_place(
    tmp_path: Path, mode: int
) -> None:
    path = key_file(tmp_path, mode=mode)
    (mistake,) = mistakes(tmp_path, providers(f"{{type: openai, api_key_file: {path}}}"))
    assert mistake.startswith(f"{tmp_path / 'server.yaml'}, providers.0.api_key_file: {path} ")
    assert f"{mode:04o}" in mistake


@pytest.mark.parametrize("text", ["", "\n", f"{KEY} {KEY}", f"{KEY}\x00", "schlüssel"])
def test_a_malformed_api_key_is_refused(tmp_path: Path, text: str) -> None:
    path = key_file(tmp_path, text)
    (mistake,) = mistakes(tmp_path, providers(f"{{type: openai, api_key_file: {path}}}"))
    assert "providers.0.api_key_file" in mistake


def test_a_variable_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path, providers("{type: openai, api_key_env: MY_KEY}", "{type: anthropic}")
    )
    assert "providers.0.api_key_env: there is no MY_KEY in the environment" in found[0]
    assert "providers.1.api_key_env: there is no ANTHROPIC_API_KEY in the environment" in found[1]


def test_a_vendors_api_key_is_not_sent_to_another_base_url(tmp_path: Path) -> None:
    (box,) = load(tmp_path, providers(BOX), KEYS).providers
    assert isinstance(box, OpenAISettings)
    assert read_key(box, KEYS).get_secret_value() == ""


@pytest.mark.parametrize(
    "written",
    [
        f"api_key: {KEY}",
        f"base_url: 'https://me:{KEY}@x/v1', models: [m]",
        f"base_url: 'https://x/v1?api-key={KEY}', models: [m]",
        f"base_url: 'https://x/v1', models: [m], headers: {{Api-Key: {KEY}}}",
        f"base_url: 'https://x/v1', models: [m], headers: {{X-Goog-Token: {KEY}}}",
        f"base_url: 'https://x/v1', models: [m], headers: {{X-Other: {KEY}}}",
        "api_key_env: gsk_canary0123456789",
        "api_key_env: canary0123456789abcdefghijk",
        f"api_key_file: {KEY}",
    ],
)
def test_an_api_key_in_the_settings_is_refused_with_the_place_where_it_belongs(
    tmp_path: Path, written: str
) -> None:
    (mistake,) = mistakes(tmp_path, providers(f"{{type: openai, {written}}}"), KEYS)
    assert "api_key_env" in mistake
    assert "api_key_file" in mistake
    assert "canary" not in mistake


def test_headers_that_hold_no_key_are_sent(tmp_path: Path) -> None:
    headers = "{OpenAI-Organization: org-0a1b2c3d4e5f6g7h8i9j0k1l, X-Portkey-Provider: openai}"
    (provider,) = load(tmp_path, providers(f"{{type: openai, headers: {headers}}}"), KEYS).providers
    assert isinstance(provider, OpenAISettings)
    assert provider.headers["X-Portkey-Provider"] == "openai"


def test_the_name_of_a_missing_api_key_variable_is_not_repeated_in_the_error(
    tmp_path: Path,
) -> None:
    (mistake,) = mistakes(tmp_path, providers("{type: openai, api_key_env: canary}"))
    assert "there is no variable of that name in the environment" in mistake
    assert "canary" not in mistake


def test_checking_never_shows_a_key(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    path = key_file(tmp_path, mode=0o644)
    config.write_text(
        providers(f"{{type: openai, api_key: {KEY}}}", f"{{type: opnai, api_key: {KEY}}}")
    )
    printed = CliRunner().invoke(main, ["--config", str(config), "--check"])
    config.write_text(providers(f"{{type: openai, api_key_file: {path}}}"))
    also = CliRunner().invoke(main, ["--config", str(config), "--check"])
    assert printed.exit_code == also.exit_code == 78
    assert KEY not in printed.output + also.output


# Mistakes, each with its place


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (providers("{type: openai, base_ulr: x}"), "providers.0.base_ulr: unknown key; did you"),
        (
            providers("{type: opnai}"),
            "providers.0.type: there is no such type; did you mean openai",
        ),
        (providers("{id: x}"), "providers.0: needs a type"),
        (providers("{type: openai, base_url: 'http://x/v1'}"), "needs models"),
        (providers("{type: openai, base_url: x, models: [m]}"), "providers.0.base_url: expected"),
        (
            providers("{type: openai, base_url: 'https://h:notaport/v1', models: [m]}"),
            "providers.0.base_url: expected an address with a host, and a number for its port",
        ),
        (providers("{type: openai, base_url: 'https://[::1/v1', models: [m]}"), "an address"),
        (providers("{type: openai, api_key_env: A, api_key_file: b}"), "not both"),
        (
            f"{providers(BOX)}fallback: [box/lama3]",
            "fallback.0: there is no model 'box/lama3'; did",
        ),
        (f"{providers(BOX)}roles: {{planner: x/y}}", "roles.planner: there is no model 'x/y'"),
        (f"{providers(BOX)}default_model: box/org", "default_model: there is no model 'box/org'"),
    ],
)
def test_a_mistake_in_the_settings_is_reported_with_file_and_key(
    tmp_path: Path, text: str, printed: str
) -> None:
    (mistake,) = mistakes(tmp_path, text, KEYS)
    assert mistake.startswith(f"{tmp_path / 'server.yaml'}, ")
    assert printed in mistake


def test_the_local_model_has_no_larger_window_than_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_loader, "local_is_installed", lambda: True)
    text = f"{providers('{type: local}')}models: {{local/smollm2: {{context_tokens: %d}}}}"
    assert load(tmp_path, text % 8192).models["local/smollm2"].context_tokens == 8192
    (mistake,) = mistakes(tmp_path, text % 8193)
    assert "models.local/smollm2.context_tokens: the model has a window of 8,192" in mistake


def test_a_malformed_base_url_in_the_environment_is_reported_by_its_variable(
    tmp_path: Path,
) -> None:
    (mistake,) = mistakes(tmp_path, "", {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "nowhere"})
    assert "OPENAI_BASE_URL" in mistake


def test_an_mcp_server_may_be_called_like_a_vendor(tmp_path: Path) -> None:
    (mistake,) = mistakes(tmp_path, "mcp_servers: {openai: {comand: [x]}}")
    assert "mcp_servers.openai.comand: unknown key; did you mean command?" in mistake


# Which models there are, and what is known of them


def test_an_unknown_model_is_available_once_the_settings_describe_it(tmp_path: Path) -> None:
    text = "default_model: openai/gpt-9\nmodels: {openai/gpt-9: {context_tokens: 50000}}"
    settings = load(tmp_path, text, KEYS)
    facts = KnownModels(settings)
    assert facts["openai/gpt-9"].context_tokens == 50_000
    assert {"openai/gpt-5.2", "anthropic/claude-opus-4-5", "offline/echo"} < facts.keys()


def test_only_listed_models_are_taken_where_a_provider_lists_them(tmp_path: Path) -> None:
    text = f"{providers(BOX)}default_model: box/x\nmodels: {{box/x: {{price_in: 1}}}}"
    (mistake,) = mistakes(tmp_path, text)
    assert "there is no model 'box/x'" in mistake
    assert models_of(OpenAISettings(models=("a",)), ["openai/b"]) == ("a",)


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("gpt-5.2", 272_000),
        ("gpt-5.2-chat-latest", 128_000),
        ("openai/gpt-6.1-sol", 272_000),
        ("claude-opus-5-5", 400_000),
        ("claude-fable-5-1", 400_000),
        ("claude-haiku-4-5-20251001", 200_000),
        ("claude-3-7-sonnet-latest", 200_000),
        ("llama3:8b", None),
    ],
)
def test_the_context_window_is_known_by_the_model_name(model: str, tokens: int | None) -> None:
    assert known_of(model).get("context_tokens") == tokens


@pytest.mark.parametrize(
    ("printed", "answer_tokens"),
    [
        ({}, 8_192),
        ({"context_tokens": 8_192}, 2_048),
        ({"context_tokens": 400_000}, 16_384),
        ({"context_tokens": 400_000, "output_tokens": 1_000}, 1_000),
    ],
)
def test_an_answer_has_room_to_think_in_a_large_window(
    tmp_path: Path, printed: dict[str, Any], answer_tokens: int
) -> None:
    settings = load(tmp_path, f"{providers(BOX)}models: {{'box/llama3:8b': {printed}}}")
    assert KnownModels(settings)["box/llama3:8b"].answer_tokens == answer_tokens


# What documents show


def test_every_provider_the_sample_shows_is_one(tmp_path: Path) -> None:
    shown = re.findall(r"^#   (- \{id: .*\})", (ROOT / "config" / "server.yaml").read_text(), re.M)
    settings = Settings.model_validate({"providers": yaml.safe_load("\n".join(shown))})
    kinds = [provider.type for provider in settings.providers]
    assert {*kinds} == {*PROVIDER_KINDS}


def test_the_providers_the_document_shows_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config" / "nplt").mkdir(parents=True)
    key_file(tmp_path).rename(tmp_path / ".config" / "nplt" / "anthropic.key")
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "providers.md").read_text(), re.S)
    shown = next(block for block in blocks if block.startswith("providers:"))
    settings = load(tmp_path, shown, KEYS)
    assert [provider.id for provider in settings.providers] == ["openai", "anthropic", "ollama"]


# What people are told first


def test_the_greeting_says_who_answers() -> None:
    text = banner("openai/gpt-5.2", [OpenAISettings(), OfflineSettings()])
    assert text.endswith(": openai/gpt-5.2 answers.")


def test_the_greeting_says_how_to_get_more_where_there_is_only_an_echo() -> None:
    text = banner("offline/echo", [OfflineSettings()])
    assert "echoes" in text
    assert "ANTHROPIC_API_KEY" in text
