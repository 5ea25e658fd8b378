"""Settings: where they come from, and mistakes told by file, key and nearest name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import platformdirs
import pytest
import yaml

from nplt_server.errors import ConfigurationError
from nplt_server.settings import Settings, user_dir
from nplt_server.settings_loader import load_settings

SAMPLE = Path(__file__).parents[2] / "config" / "server.yaml"


def load(
    tmp_path: Path,
    text: str = "",
    *,
    flags: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
) -> Settings:
    path = tmp_path / "server.yaml"
    path.write_text(text)
    return load_settings(flags or {}, config_file=path, environ=environ or {})


def mistakes(tmp_path: Path, text: str = "", **sources: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text, **sources)
    return caught.value.mistakes


def test_the_sample_equals_the_defaults() -> None:
    shown = Settings.model_validate(yaml.safe_load(SAMPLE.read_text()))
    assert shown.model_copy(update={"data_dir": Settings().data_dir}) == Settings()
    assert shown.data_dir == Path("~/.local/share/nplt").expanduser()


def test_the_sample_shows_every_key() -> None:
    shown = SAMPLE.read_text()
    for name in (
        *Settings.model_fields,
        *Settings().limits.model_fields_set,
        "tls",
        "token_sha256",
    ):
        assert f"{name}:" in shown, name
    assert set(yaml.safe_load(shown)["limits"]) == set(type(Settings().limits).model_fields)


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    text = "listen: {host: 127.0.0.2, port: 1}\nlog_level: error\n"
    environ = {"NPLT_LISTEN__PORT": "2", "NPLT_LOG_LEVEL": "warning"}
    settings = load(tmp_path, text, environ=environ, flags={"listen": {"port": 3}})
    assert (settings.listen.host, settings.listen.port) == ("127.0.0.2", 3)
    assert settings.log_level == "warning"
    assert settings.limits == Settings().limits


def test_lists_in_the_environment_are_json(tmp_path: Path) -> None:
    settings = load(tmp_path, environ={"NPLT_PROVIDERS": '[{"id": "x", "type": "offline"}]'})
    assert [provider.id for provider in settings.providers] == ["x"]


def test_an_unknown_key_names_the_file_and_the_nearest_known_one(tmp_path: Path) -> None:
    (mistake,) = mistakes(tmp_path, "listen: {prot: 1}")
    assert str(tmp_path / "server.yaml") in mistake
    assert "listen.prot" in mistake
    assert "did you mean port?" in mistake


def test_every_mistake_gets_its_own_sentence(tmp_path: Path) -> None:
    found = mistakes(tmp_path, "listen: {port: 99999}\nlimits: {turns_max: 0, trns_max: 1}\n")
    assert len(found) == 3


def test_a_mistake_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    (mistake,) = mistakes(tmp_path, environ={"NPLT_LISTEN__PORT": "many"})
    assert "NPLT_LISTEN__PORT" in mistake


@pytest.mark.parametrize("environ", [{}, {"NPLT_LIMITS__STEPS_MAX": "3"}])
def test_the_older_key_steps_max_sets_calls_max_with_a_warning(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    text = "" if environ else "limits: {steps_max: 3}\n"
    assert load(tmp_path, text, environ=environ).limits.calls_max == 3
    place = next(iter(environ), f"{tmp_path / 'server.yaml'}, limits.steps_max")
    assert [message for message in caplog.messages if place in message]
    assert "calls_max" in caplog.text


def test_a_mistake_on_the_command_line_names_the_flag(tmp_path: Path) -> None:
    (mistake,) = mistakes(tmp_path, flags={"listen": {"port": 70_000}})
    assert "--port" in mistake


@pytest.mark.parametrize(
    "text", ["listen: [", "- a list", "a: &x 1\nb: *x", "listen: {port: 1}\n\tx: 2"]
)
def test_a_file_that_is_not_plain_yaml_is_a_sentence(tmp_path: Path, text: str) -> None:
    (mistake,) = mistakes(tmp_path, text)
    assert "server.yaml" in mistake


def test_a_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"can't read .*nowhere\.yaml"):
        load_settings({}, config_file=tmp_path / "nowhere.yaml", environ={})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_listening_beyond_loopback_needs_tokens_and_tls_or_insecure(
    tmp_path: Path, host: str
) -> None:
    text = f"listen: {{host: '{host}'}}"
    assert "--insecure" in mistakes(tmp_path, text)[0]
    assert load(tmp_path, text, flags={"insecure": True}).listen.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_listening_on_loopback_needs_no_tokens(tmp_path: Path, host: str) -> None:
    assert load(tmp_path, f"listen: {{host: '{host}'}}").listen.host == host


def test_duplicate_names_are_a_mistake(tmp_path: Path) -> None:
    user = "{name: ada, token_sha256: " + "0" * 64 + "}"
    found = mistakes(
        tmp_path,
        f"providers: [{{type: offline}}, {{type: offline}}]\nusers: [{user}, {user}]\n",
    )
    assert len(found) == 2


def test_unknown_nplt_variables_are_ignored(tmp_path: Path) -> None:
    environ = {"NPLT_SERVER": "nplt://elsewhere", "NPLT_TOKEN": "secret", "NPLT_OTHER": "x"}
    assert load(tmp_path, environ=environ) == load(tmp_path)


@pytest.mark.parametrize("root", ["data", "data/history", ".", "link"])
def test_tool_roots_can_not_contain_the_data_directory(tmp_path: Path, root: str) -> None:
    (tmp_path / "data" / "history").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data" / "history")
    flags = {"data_dir": str(tmp_path / "data"), "tool_roots": [str(tmp_path / root)]}
    with pytest.raises(ConfigurationError, match=r"tool_roots: .* everybody's conversations"):
        load_settings(flags, environ={})


def test_tool_roots_may_be_next_to_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    flags = {"data_dir": str(tmp_path / "data"), "tool_roots": [str(tmp_path / "notes")]}
    assert load_settings(flags, environ={}).tool_roots == (tmp_path / "notes",)


@pytest.mark.parametrize("kind", ["config", "data", "state"])
@pytest.mark.parametrize("named", [None, "", "relative", "/srv/elsewhere"])
def test_the_users_folders_follow_xdg(
    kind: Literal["config", "data", "state"], named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"XDG_{kind.upper()}_HOME"
    monkeypatch.delenv(variable, raising=False)
    if named is not None:
        monkeypatch.setenv(variable, named)
    expected = getattr(platformdirs, f"user_{kind}_dir")("nplt", appauthor=False)
    assert user_dir(kind) == Path(expected)


def test_what_the_server_needs_to_listen_is_loaded_without_the_rest() -> None:
    code = "import nplt_server.start, nplt_server.settings_loader, sys; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "nplt_storage.opening" in loaded
    assert not loaded & {
        *("platformdirs", "difflib", "openai", "anthropic", "httpx2", "nplt_server.app"),
        *("nplt_protocol.messages", "nplt_protocol.codec", "nplt_protocol.server_connection"),
    }


@pytest.mark.parametrize(
    ("listen", "advertised"),
    [
        ({"host": "10.0.0.1", "port": 7000}, "10.0.0.1:7000"),
        ({"host": "box.example"}, "box.example:9999"),
        ({"host": "0.0.0.0"}, None),
        ({"host": "::"}, None),
        ({"port": 0}, None),
    ],
)
def test_a_server_of_a_cluster_advertises_where_it_listens_unless_that_is_no_address(
    listen: dict[str, object], advertised: str | None
) -> None:
    settings = Settings.model_validate({"listen": listen, "cluster": {"secret_file": "/secret"}})
    assert settings.advertised == advertised
    refused = any("needs cluster.advertise" in each for each in settings.mistakes())
    assert refused is (advertised is None)
