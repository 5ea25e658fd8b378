"""A conversation's past, page by page and part by part, as whoever asks wants it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.raw_client import (
    HISTORY_REQUEST,
    ROLLBACK,
    SESSION_UPDATE,
    RawClient,
)
from tests.support.server_process import ServerProcess


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


def page(client: RawClient, **asked: Any) -> Any:
    reply = client.request(HISTORY_REQUEST, asked)
    assert len(reply.payload) <= max(4_096, asked.get("max_bytes", 65_535))
    return reply.json


def seqs(answer: Any) -> list[int]:
    return [message["seq"] for message in answer["messages"]]


def test_a_page_around_an_entry_has_cursors_in_both_directions(client: RawClient) -> None:
    for number in range(5):
        client.ask(f"message {number}")
    answer = page(client, around=5, limit=4)
    assert seqs(answer) == [3, 4, 5, 6]
    assert answer["page"] == {
        "has_more_before": True,
        "has_more_after": True,
        "before": 3,
        "after": 6,
    }
    assert seqs(page(client, before=3)) == [1, 2]
    assert seqs(page(client, after=6, limit=2)) == [7, 8]
    nothing = page(client, after=10)
    assert (nothing["messages"], nothing["page"]["after"]) == ([], 10)
    both = client.request(HISTORY_REQUEST, {"before": 3, "after": 1}).json
    assert (both["code"], both["field"]) == ("malformed", "after")


def test_system_messages_are_in_a_history_page_on_request(client: RawClient) -> None:
    client.request(SESSION_UPDATE, {"system": "Be brief."})
    client.ask("hello")
    assert [message["role"] for message in page(client)["messages"]] == ["user", "assistant"]
    asked = page(client, roles=["system"])["messages"]
    assert [message["content"] for message in asked] == ["Be brief."]


def test_the_entries_view_shows_rolled_back_entries_and_facts(client: RawClient) -> None:
    client.ask("one")
    client.request(SESSION_UPDATE, {"name": "named"})
    client.request(ROLLBACK, {"to_seq": 0})
    assert page(client)["messages"] == []
    kinds = [entry["kind"] for entry in page(client, view="entries")["messages"]]
    assert kinds == ["model_input", "model_output", "renamed", "rollback"]


def test_summary_and_gist_of_a_history_page_are_shorter(client: RawClient) -> None:
    client.ask("The ants live in the garden.\n" + "They work all day long. " * 300)
    sizes = {
        detail: len(page(client, detail=detail)["messages"][0]["content"])
        for detail in ("live", "summary", "gist")
    }
    assert sizes["live"] > sizes["summary"] > sizes["gist"] > 0


def test_a_message_range_is_exactly_the_requested_characters(client: RawClient) -> None:
    text = "äöü🐜 and other ants"
    client.ask(text)

    def part(**asked: int) -> Any:
        return client.request(HISTORY_REQUEST, {"seq": 1, **asked}).json

    assert part(offset=3, length=5)["content"] == text[3:8]
    assert part(length=0)["content"] == ""
    assert (part(offset=10**9)["content"], part()["size"]) == ("", len(text))


def test_a_history_page_never_exceeds_the_requested_size(client: RawClient) -> None:
    client.ask("word " * 2_000)
    for max_bytes in (0, 4_096, 10_000):
        assert page(client, max_bytes=max_bytes)["messages"][-1]["truncated"]
