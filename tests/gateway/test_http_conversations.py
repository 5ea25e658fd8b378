"""`/v1/conversations` with OpenAI's own library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.conftest import Connect
from tests.support.server_process import ServerProcess

ECHO = "offline/echo"


@pytest.fixture(scope="module")
def client(shared_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{shared_server.http_url}v1", api_key="any", max_retries=0) as client:
        yield client


def contents(items: Any) -> list[str]:
    return [item.content[0].text for item in items]


def test_a_conversation_is_made_found_used_and_deleted(client: OpenAI) -> None:
    made = client.conversations.create()
    assert client.conversations.retrieve(made.id) == made
    client.responses.create(model=ECHO, input="hello", conversation=made.id)
    items = client.conversations.items.list(made.id, order="asc")
    assert contents(items) == ["hello", "hello"]
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)


def test_a_conversation_of_a_terminal_is_one_too(
    client: OpenAI, shared_server: ServerProcess, connect: Connect
) -> None:
    terminal = connect(shared_server)
    session_id = terminal.hello()["session_id"]
    terminal.ask("typed")
    assert contents(client.conversations.items.list(f"conv_{session_id}")) == ["typed", "typed"]


def test_a_conversation_begins_with_messages(client: OpenAI) -> None:
    items: list[Any] = [
        {"type": "message", "role": "user", "content": "before"},
        {"type": "message", "role": "assistant", "content": "and after"},
    ]
    made = client.conversations.create(items=items)
    assert contents(client.conversations.items.list(made.id, order="asc")) == [
        "before",
        "and after",
    ]


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 3, 4, 100])
def test_pages_of_items_give_each_item_once(client: OpenAI, order: Any, limit: int) -> None:
    made = client.conversations.create()
    expected = []
    for text in ("one", "two", "three"):
        client.responses.create(model=ECHO, input=text, conversation=made.id)
        expected += [text, text]
    pages = client.conversations.items.list(made.id, order=order, limit=limit)
    listed = list(pages)
    assert contents(listed) == (expected if order == "asc" else expected[::-1])
    assert len({item.id for item in listed}) == len(listed)


def test_items_have_the_ids_that_they_have_in_the_response(client: OpenAI) -> None:
    made = client.responses.create(model=ECHO, input="hello")
    assert made.conversation is not None
    listed = client.conversations.items.list(made.conversation.id)
    assert made.output[-1].id in [item.id for item in listed]


@pytest.mark.parametrize("wanted", ["conv_none", "my notes", "conv_../x"])
def test_an_unknown_conversation_is_not_found(client: OpenAI, wanted: str) -> None:
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(wanted)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.list(wanted)


def test_metadata_of_a_conversation_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.conversations.create(metadata={"a": "b"})
    assert refused.value.param == "metadata"
