"""The three methods of a history backend on each built-in store: the same rules for all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path

import pytest
from tests.support.redis_server import RedisServer

from nplt_storage import BadEntry, BadStoreConfig, StoreBackend, create_history_backend

prefixes = count()
Maker = Callable[..., StoreBackend]


@pytest.fixture(params=["memory", "json", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    config: dict[str, object] = {"type": request.param}
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        config |= {"url": server.url, "key_prefix": f"backend{next(prefixes)}:"}

    def make_it(**options: object) -> StoreBackend:
        return create_history_backend({**config, **options}, data_dir=tmp_path)

    return make_it


@pytest.fixture
async def backend(make: Maker) -> AsyncIterator[StoreBackend]:
    backend = make()
    yield backend
    await backend.aclose()


async def say(backend: StoreBackend, session_id: str, *texts: str) -> None:
    for place, text in enumerate(texts):
        await backend.append_message(session_id, "assistant" if place % 2 else "user", text)


async def contents(backend: StoreBackend, session_id: str) -> list[str]:
    return [message["content"] for message in await backend.get_history(session_id)]


async def test_a_session_that_has_no_message_is_empty(backend: StoreBackend) -> None:
    assert await backend.get_history("session_123") == []
    await backend.clear_history("session_123")


async def test_messages_come_back_in_order_with_their_roles(backend: StoreBackend) -> None:
    await say(backend, "session_123", "Hello", "Hi", "And you?")
    assert await backend.get_history("session_123") == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "And you?"},
    ]


async def test_sessions_are_apart(backend: StoreBackend) -> None:
    await say(backend, "one", "a", "b")
    await say(backend, "two", "c")
    assert (await contents(backend, "one"), await contents(backend, "two")) == (["a", "b"], ["c"])


async def test_a_cleared_session_is_empty_and_goes_on(backend: StoreBackend) -> None:
    await say(backend, "one", "a", "b", "no answer yet")
    await backend.clear_history("one")
    assert await contents(backend, "one") == []
    await say(backend, "one", "c", "d")
    assert await contents(backend, "one") == ["c", "d"]


async def test_several_answers_to_a_prompt_and_unknown_roles_are_refused(
    backend: StoreBackend,
) -> None:
    await say(backend, "one", "a", "b")
    for role in ("assistant", "tool"):
        with pytest.raises(BadEntry):
            await backend.append_message("one", role, "again")
    assert await contents(backend, "one") == ["a", "b"]


async def test_a_system_message_is_no_part_of_the_history(backend: StoreBackend) -> None:
    await backend.append_message("one", "system", "Be brief.")
    await say(backend, "one", "a")
    assert await contents(backend, "one") == ["a"]


async def test_max_turns_limits_what_is_given(make: Maker) -> None:
    backend = make(max_turns=2)
    await say(backend, "one", *"abcdef")
    assert await contents(backend, "one") == [*"cdef"]
    await backend.aclose()


async def test_another_backend_finds_the_messages(make: Maker) -> None:
    first, again = make(), make()
    await say(first, "one", "a", "b")
    await first.aclose()
    kept = await contents(again, "one")
    assert kept in ([], ["a", "b"]), "a store in memory ends with its backend"
    await say(again, "one", "c")
    assert await contents(again, "one") == [*kept, "c"]
    await again.aclose()


def test_a_mistake_in_the_configuration_is_found_at_once() -> None:
    with pytest.raises(BadStoreConfig, match="max_turns"):
        create_history_backend({"type": "memory", "max_turn": 20})
