"""Over the wire: a role chooses who answers, and STATUS says what became of the calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.raw_client import ENTRY, ERROR, PROMPT, STATUS, TURN_FINISHED, RawClient
from tests.support.server_process import ServerProcess

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


def test_a_role_chooses_who_answers_and_status_counts_it(client: RawClient) -> None:
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


def test_a_role_nobody_plays_is_refused_with_those_that_are(client: RawClient) -> None:
    refused = client.request(PROMPT, {"text": "x", "role": "reviewer"})
    assert refused.type == ERROR
    assert (refused.json["code"], refused.json["field"]) == ("not_found", "role")
    assert refused.json["candidates"] == ["planner"]
