"""Responses at several servers over one Redis: a stream is resumed at any of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from tests.gateway.http_client import begin_and_leave, request
from tests.support.redis_server import RedisServer
from tests.support.server_cluster import Cluster
from tests.support.server_process import ServerProcess

TEXT = " ".join(f"word{number}" for number in range(40))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    redis = RedisServer(tmp_path / "redis", appendfsync="always").start()
    cluster = Cluster(tmp_path, redis)
    yield cluster
    cluster.end()
    redis.kill()


def client_of(server: ServerProcess) -> OpenAI:
    return OpenAI(base_url=f"{server.http_url}v1", api_key="any", max_retries=0, timeout=60)


def begin(server: ServerProcess, prompt: str = TEXT) -> tuple[list[Any], str]:
    """The first events of a stream that is then cut, up to the first piece of text or reasoning."""
    events: list[Any] = []
    with client_of(server) as client:
        stream = client.responses.create(model="slow/echo", input=prompt, stream=True)
        for event in stream:
            events.append(event)
            if event.type.endswith("text.delta"):
                break
        stream.close()
    return events, events[0].response.id


def resume(server: ServerProcess, response_id: str, events: list[Any]) -> list[Any]:
    with (
        client_of(server) as client,
        client.responses.retrieve(
            response_id, stream=True, starting_after=events[-1].sequence_number
        ) as stream,
    ):
        return [*events, *stream]


def text_of(events: list[Any]) -> str:
    return "".join(each.delta for each in events if each.type == "response.output_text.delta")


def test_a_running_response_is_resumed_at_another_server(cluster: Cluster) -> None:
    owner, other = cluster.start("one"), cluster.start("two")
    begun, response_id = begin(owner)
    events = resume(other, response_id, begun)
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert (events[-1].type, text_of(events)) == ("response.completed", TEXT)
    with client_of(other) as client:
        assert client.responses.retrieve(response_id).output_text == TEXT


def test_a_response_is_resumed_at_another_server_after_its_owner_was_killed(
    cluster: Cluster,
) -> None:
    owner, other = cluster.start("one"), cluster.start("two")
    begun, response_id = begin(owner)
    owner.kill()
    events = resume(other, response_id, begun)
    shown = text_of(events)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == shown
    assert TEXT.startswith(shown)


def test_reasoning_is_resumed_at_another_server_after_its_owner_was_killed(
    cluster: Cluster,
) -> None:
    owner, other = cluster.start("one"), cluster.start("two")
    begun, response_id = begin(owner, f"!think {TEXT}")
    owner.kill()
    events = resume(other, response_id, begun)
    shown = "".join(each.delta for each in events if each.type.endswith("_text.delta"))
    (item,) = events[-1].response.output
    assert (item.type, item.status, item.summary[0].text) == ("reasoning", "incomplete", shown)
    assert TEXT.startswith(shown)


def test_a_request_repeated_at_another_server_joins_the_turn_that_runs(cluster: Cluster) -> None:
    owner, other = cluster.start("one"), cluster.start("two")
    begin_and_leave(owner.http_url, "repeated", f"!slow 3 {TEXT}", {})
    place = f"{other.http_url}c/repeated/v1/chat/completions"
    body = {"stream": True, "messages": [{"role": "user", "content": f"!slow 3 {TEXT}"}]}
    again = request(place, "POST", body=body, headers={"x-stainless-retry-count": "1"})
    chunks = [line[6:] for line in again.body.splitlines() if line.startswith(b"data: {")]
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == TEXT
    conversation_id = f"conv_{again.headers['x-nplt-conversation']}"
    with client_of(other) as client:
        items = list(client.conversations.items.list(conversation_id, order="asc"))
    assert [item.type for item in items] == ["message", "message"]
