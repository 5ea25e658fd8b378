"""Which models there are: what vendors list, what runs on this machine, and what nobody listed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.client.nplt_process import run_nplt
from tests.support.server_process import ServerProcess
from tests.support.server_thread import serving
from tests.vendors import emulator_in_thread
from tests.vendors.emulator import Limits
from tests.vendors.models import CLAUDE_MODELS, ClaudeModel
from tests.vendors.threads import HostedEmulator

from nplt_client import ProviderFailed, RequestRefused
from nplt_client.sync import Client, connect

SECONDS_MAX = 30.0
OFFLINE = {"type": "offline", "words_per_second": 0}


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_text("sk-emulated")
    path.chmod(0o600)
    return str(path)


def openai_at(vendors: HostedEmulator, key_file: str, **more: Any) -> dict[str, Any]:
    address = {"base_url": vendors.openai_url, "api_key_file": key_file}
    return {"id": "openai", "type": "openai", **address, **more}


def anthropic_at(vendors: HostedEmulator, key_file: str) -> dict[str, Any]:
    address = {"base_url": vendors.anthropic_url, "api_key_file": key_file}
    return {"id": "anthropic", "type": "anthropic", **address}


@contextmanager
def talking(data_dir: Path, settings: Mapping[str, object]) -> Iterator[Client]:
    with serving(data_dir, settings) as port, connect(f"nplt://127.0.0.1:{port}") as client:
        yield client


def lists(client: Client) -> dict[str, Any]:
    """As soon as nobody is asked any more."""
    stop_at = time.monotonic() + SECONDS_MAX
    while True:
        listed_models: dict[str, Any] = dict(client.models(listed=True).listed or {})
        if not any("asking" in one for one in listed_models.values()):
            return listed_models
        assert time.monotonic() < stop_at, f"still asking: {listed_models}"
        time.sleep(0.02)


def test_model_lists_of_vendors_are_fetched_page_by_page(tmp_path: Path, key_file: str) -> None:
    with emulator_in_thread() as vendors:
        vendors.page_lists(2)
        providers = [openai_at(vendors, key_file), anthropic_at(vendors, key_file), OFFLINE]
        with talking(tmp_path / "data", {"providers": providers}) as client:
            listed_models = lists(client)
            again = lists(client)
    names = [model.name for model in CLAUDE_MODELS]
    assert listed_models["anthropic"]["models"] == names
    assert "gpt-6.1-sol" in listed_models["openai"]["models"]
    assert listed_models["openai"]["at"].startswith("20")
    assert again == listed_models
    pages = [each.query.get("after_id") for each in vendors.asked_for_lists if each.query]
    assert pages == [None, *names[1:-1:2]]


def test_a_cached_model_list_survives_a_restart_while_the_vendor_is_unavailable(
    tmp_path: Path, key_file: str
) -> None:
    with emulator_in_thread() as vendors:
        settings = {"providers": [OFFLINE, openai_at(vendors, key_file)]}
        with talking(tmp_path / "data", settings) as client:
            before = lists(client)
        vendors.run(vendors.close())
        with talking(tmp_path / "data", settings) as client:
            assert lists(client) == before
        (tmp_path / "data" / "models.json").write_text("{broken")
        with talking(tmp_path / "data", settings) as client:
            assert lists(client) == {"openai": {}}


def test_an_unresponsive_vendor_does_not_delay_the_model_list(
    tmp_path: Path, key_file: str
) -> None:
    with emulator_in_thread() as vendors:
        vendors.lists_stall = True
        providers = [OFFLINE, openai_at(vendors, key_file)]
        with talking(tmp_path / "data", {"providers": providers}) as client:
            asked = client.models(listed=True)
            assert asked.listed == {"openai": {"asking": True}}
            assert client.ask_text("still there?") == "still there?"
            assert client.status().server.startswith("nplt/")
            assert client.models(listed=True).listed == {"openai": {"asking": True}}
            stop_at = time.monotonic() + SECONDS_MAX
            while not vendors.asked_for_lists:  # what stalls then is what is released
                assert time.monotonic() < stop_at
                time.sleep(0.01)
            vendors.release()
            assert "gpt-5.2" in lists(client)["openai"]["models"]


def test_a_model_that_only_the_vendor_lists_can_be_used(tmp_path: Path, key_file: str) -> None:
    new = ClaudeModel(
        name="claude-novel-7-20261101", window_tokens=500_000, output_tokens_max=128_000
    )
    with emulator_in_thread(limits=Limits(claude_models=(*CLAUDE_MODELS, new))) as vendors:
        providers = [OFFLINE, anthropic_at(vendors, key_file)]
        with talking(tmp_path / "data", {"providers": providers}) as client:
            name = f"anthropic/{new.name}"
            assert client.ask_text("hello", model=name)  # before anybody has seen a list
            lists(client)
            assert client.switch_model(name).model == name
            assert client.switch_model("anthropic/claude-novel-7").model.endswith("novel-7")
            with pytest.raises(RequestRefused, match="there is no model 'anthropic/claude-nvel'"):
                client.switch_model("anthropic/claude-nvel")
    assert [each.body["model"] for each in vendors.received] == [new.name]  # type: ignore[index]


def test_a_provider_with_configured_models_offers_no_others(tmp_path: Path, key_file: str) -> None:
    with emulator_in_thread() as vendors:
        providers = [OFFLINE, openai_at(vendors, key_file, models=["gpt-5.2"])]
        with (
            talking(tmp_path / "data", {"providers": providers}) as client,
            pytest.raises(RequestRefused, match=r"there is no model 'openai/gpt-5.4'"),
        ):
            client.switch_model("openai/gpt-5.4")


def test_the_models_command_shows_the_lists_of_vendors(tmp_path: Path, key_file: str) -> None:
    with emulator_in_thread() as vendors:
        settings = {"providers": [OFFLINE, anthropic_at(vendors, key_file)]}
        with serving(tmp_path / "data", settings) as port:
            with connect(f"nplt://127.0.0.1:{port}") as client:
                lists(client)
            shown = run_nplt("models", home=tmp_path, server=f"nplt://127.0.0.1:{port}")
            done = run_nplt("models", "--json", home=tmp_path, server=f"nplt://127.0.0.1:{port}")
    head, first, *rest = shown.stdout.splitlines()
    assert head.split() == ["model", "window", "$", "in/out", "tools", "pictures", "pdf", "from"]
    assert first.split()[:4] == ["*", "offline/echo", "16,000,000", "0/0"]
    assert rest[1].startswith("also listed by anthropic (")
    [opus] = [line for line in rest if line.startswith("  anthropic/claude-opus-5-5 ")]
    assert opus.split()[1:3] == ["400,000", "unknown"]
    assert opus.endswith("window, pictures: nplt's table")
    assert orjson.loads(done.stdout)["listed"]["anthropic"]["models"][0] == CLAUDE_MODELS[0].name


# Servers on this machine


def closed_port() -> int:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_a_local_model_server_is_discovered_and_answers_when_named(tmp_path: Path) -> None:
    with emulator_in_thread(key="none") as vendors:
        settings = {
            "providers": [OFFLINE],
            "local_servers": {"ollama": vendors.port, "lmstudio": closed_port()},
        }
        vendors.open_lists = True
        with talking(tmp_path / "data", settings) as client:
            listed_models = lists(client)
            assert list(listed_models) == ["ollama"]
            assert "gpt-4o-mini" in listed_models["ollama"]["models"]
            assert client.models().models == ("offline/echo",)
            assert client.ask_text("not unasked") == "not unasked"
            assert vendors.received == []
            assert client.ask_text("and by name", model="ollama/gpt-4o-mini")
            with pytest.raises(RequestRefused, match="there is no model 'gpt-4o-mini'"):
                client.ask_text("not by a bare name", model="gpt-4o-mini")
    assert len(vendors.received) == 1
    for asked in vendors.asked_for_lists:
        assert not {"authorization", "x-api-key"} & asked.headers.keys()


def test_a_chosen_local_model_server_has_no_fallback_to_another_model(
    tmp_path: Path,
) -> None:
    settings = {"providers": [OFFLINE], "local_servers": {"ollama": closed_port()}}
    with talking(tmp_path / "data", settings) as client:
        assert lists(client) == {}
        assert client.switch_model("ollama/llama3").model == "ollama/llama3"
        with pytest.raises(ProviderFailed, match="nothing listens at 127"):
            client.ask_text("a secret")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n<html>", b"SSH-2.0-x\r\n"])
def test_a_foreign_service_at_the_port_of_a_local_model_server_is_ignored(
    tmp_path: Path, answer: bytes
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        settings = {"providers": [OFFLINE], "local_servers": {"llamacpp": port}}
        with talking(tmp_path / "data", settings) as client:
            peer, _ = other.accept()
            if answer:
                peer.sendall(answer)
                peer.close()
            assert client.ask_text("hello") == "hello"
            assert lists(client) == {}
            peer.close()


def test_local_model_servers_are_not_discovered_if_providers_are_listed(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = start_server()
    with connect(f"nplt://127.0.0.1:{server.port}") as client:
        assert client.models(listed=True).listed == {}
