"""The tool `search_history` in a conversation: what it finds, and in which order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.server_thread import serving

from nplt_client.sync import Client, connect


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    settings = {"providers": [{"type": "offline", "words_per_second": 0}]}
    with (
        serving(tmp_path / "data", settings) as port,
        connect(f"nplt://127.0.0.1:{port}") as client,
    ):
        yield client


def search(client: Client, **arguments: object) -> str:
    return client.ask_text(f"!tool search_history {json.dumps(arguments)}")


def test_search_history_finds_all_words_then_some_and_here_first(client: Client) -> None:
    client.ask_text("the harbour of Porto in winter")
    client.new()
    client.ask_text("a lighthouse near the harbour")
    said = search(client, query="harbour porto")
    lines = [line for line in said.splitlines() if "#" in line]
    assert "Porto in winter" in lines[0], "it has all of the words"
    assert "lighthouse" in lines[2], "this conversation comes before others"
    assert "this conversation" in lines[2]
    assert not any("search_history" in line for line in lines), "not the search itself"


def test_search_history_reads_around_a_hit_of_another_conversation(client: Client) -> None:
    client.ask_text("before it")
    client.ask_text("the needle is here")
    client.ask_text("after it")
    client.new()
    hit = re.search(r"[0-9a-f-]{8,}#\d+", search(client, query="needle"))
    assert hit is not None
    said = search(client, around=hit[0], limit=5)
    assert "before it" in said
    assert "the needle is here" in said
    assert "after it" in said


def test_search_history_gives_a_hint_when_nothing_matches(client: Client) -> None:
    assert "try other words" in search(client, query="zeppelin")
    assert "there is no conversation" in search(client, around="00000000#3")
