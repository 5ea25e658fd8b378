"""Over the wire: a role chooses who answers, and STATUS says what became of the calls; what
`nplt ask` is told of a prompt reaches the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt
from tests.support.raw_client import ENTRY, ERROR, PROMPT, STATUS, TURN_FINISHED, RawClient
from tests.support.server_process import ServerProcess
from tests.support.server_thread import serving
from tests.vendors import emulator_in_thread

SETTINGS: dict[str, object] = {
    "providers": [
        {"id": name, "type": "offline", "words_per_second": 0} for name in ("first", "second")
    ],
    "roles": {"planner": "second/echo"},
    "models": {"second/echo": {"price_in": 1_000_000, "price_out": 0}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory: Path = tmp_path_factory.mktemp("roles")
    running = ServerProcess(directory / "data", settings=SETTINGS).start()
    yield running
    running.kill()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[RawClient]:
    with RawClient(server.port) as connected:
        connected.hello()
        yield connected


def answered_by(client: RawClient, **how: str) -> str:
    client.request(PROMPT, {"text": "two words", **how})
    answerers: list[str] = []
    for event in client.events():
        if event.type == TURN_FINISHED:
            break
        if event.type == ENTRY and "invocation" in event.json["entry"]:
            answerers.append(event.json["entry"]["invocation"]["provider"])
    (answerer,) = answerers
    return answerer


def test_a_role_selects_the_model_and_status_counts_its_calls(client: RawClient) -> None:
    assert answered_by(client) == "first"
    assert answered_by(client, role="planner") == "second"
    providers = client.request(STATUS).json["providers"]
    assert {name: each["breaker"] for name, each in providers.items()} == {
        "first": "closed",
        "second": "closed",
    }
    metrics = providers["second"]["models"]["second/echo"]
    assert (metrics["calls"], metrics["failures"]) == (1, {})
    assert metrics["cost"] == str(metrics["input_tokens"])


def test_an_unknown_role_is_refused_and_the_error_names_the_known_ones(client: RawClient) -> None:
    refused = client.request(PROMPT, {"text": "x", "role": "reviewer"})
    assert refused.type == ERROR
    assert (refused.json["code"], refused.json["field"]) == ("not_found", "role")
    assert refused.json["candidates"] == ["planner"]


def test_the_prompt_options_of_ask_reach_the_model_of_the_role(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a-key")
    (tmp_path / "key").chmod(0o600)
    with emulator_in_thread(key="a-key") as vendors:
        box = {"id": "box", "type": "openai", "base_url": vendors.openai_url}
        models = ["gpt-4o-mini", "gpt-4.1"]
        settings = {
            "providers": [{**box, "api_key_file": str(tmp_path / "key"), "models": models}],
            "default_model": "box/gpt-4o-mini",
            "roles": {"reviewer": "box/gpt-4.1"},
            "models": {"box/gpt-4.1": {"temperature": 1, "output_tokens": 4_000}},
        }
        asked = ("--role", "reviewer", "--temperature", "0.25", "--output-tokens", "50")
        with serving(tmp_path / "data", settings) as port:
            server = f"nplt://127.0.0.1:{port}"
            for arguments in (asked, asked[:2], ()):
                done = run_nplt("ask", *arguments, "hello", home=tmp_path, server=server)
                assert (done.stdout, done.returncode) == ("hello\n", 0)
            done = run_nplt("ask", "--role", "nobody", "x", home=tmp_path, server=server)
            assert (done.stdout, done.returncode) == ("", 2)
            assert "reviewer" in done.stderr
    reported = [
        (body["model"], body.get("temperature"), body["max_completion_tokens"])
        for body in (each.body for each in vendors.received)
        if isinstance(body, dict)
    ]
    assert reported[:2] == [("gpt-4.1", 0.25, 50), ("gpt-4.1", 1, 4_000)]
    assert reported[2][:2] == ("gpt-4o-mini", None)
