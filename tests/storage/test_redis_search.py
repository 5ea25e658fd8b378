"""Search in Redis: an index that each server keeps, fed by the channel of changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import anyio
import pytest
import redis
from tests.storage.store_makers import MemoryMaker
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer

from nplt_storage import RedisStore, SearchQuery
from nplt_storage.errors import StorageAway
from nplt_storage.redis import changes, search_index
from nplt_storage.redis.streams import StreamSource
from nplt_storage.testing.rules import Writer, answer, prompt, ticking_clock

MAKE = MemoryMaker()
"""Only for its clock."""
prefixes = count()


@pytest.fixture
def prefix() -> str:
    return f"search{next(prefixes)}:"


async def opened(server: RedisServer, prefix: str, **options: object) -> RedisStore:
    return await RedisStore.open_url(
        server.url,
        clock=ticking_clock(),
        key_prefix=prefix,
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture
async def here(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    store = await opened(redis_server, prefix)
    yield store
    await store.close()


@pytest.fixture
async def there(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    """Another server's store of the same Redis."""
    store = await opened(redis_server, prefix)
    yield store
    await store.close()


async def found(store: RedisStore, text: str) -> list[tuple[str, int]]:
    page = await store.search("ada", SearchQuery(text=text))
    assert not page.incomplete
    return [(hit.session_id, hit.seq) for hit in page.hits]


@pytest.fixture
def first_lines_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The entries from which conversations were read for the index."""
    read: list[int] = []
    command_of = StreamSource.first_command_after

    def noted(source: StreamSource, seq: int) -> tuple[bytes | str | int, ...]:
        read.append(seq)
        return command_of(source, seq)

    monkeypatch.setattr(StreamSource, "first_command_after", noted)
    return read


async def test_a_second_search_reads_only_what_was_added_since_the_first(
    here: RedisStore, there: RedisStore, first_lines_read: list[int]
) -> None:
    writers = [await Writer.create(MAKE, here, f"s{number}") for number in range(5)]
    for writer in writers:
        await writer.write(prompt("t1", "needle"))
    assert len(await found(there, "needle")) == 5
    assert first_lines_read == [0] * 5
    await writers[3].write(answer("t1", "another needle"))
    assert (await found(there, "needle"))[0] == ("s3", 2)
    assert first_lines_read[5:] == [1]


async def test_each_message_is_found_at_another_server_as_soon_as_it_is_stored(
    here: RedisStore, there: RedisStore
) -> None:
    writer = await Writer.create(MAKE, here)
    for number in range(1, 30):
        await writer.write(prompt(f"t{number}", f"word{number}"))
        assert await found(there, f"word{number}") == [("s1", number)]


async def test_a_redacted_message_is_not_found_at_another_server_which_indexed_it(
    here: RedisStore, there: RedisStore
) -> None:
    writer = await Writer.create(MAKE, here)
    await writer.write(prompt("t1", "secret"), answer("t1", "kept"))
    assert await found(there, "secret") == [("s1", 1)]
    await writer.redact(1)
    await writer.write(prompt("t2", "more"))
    assert await found(there, "secret") == []
    assert await found(there, "kept") == [("s1", 2)]


@pytest.mark.parametrize("is_settled", [False, True])
async def test_an_entry_that_failed_is_not_found_once_another_has_its_place(
    here: RedisStore, there: RedisStore, monkeypatch: pytest.MonkeyPatch, *, is_settled: bool
) -> None:
    writer = await Writer.create(MAKE, here)
    await writer.write(prompt("t1", "before"))
    run = here._connection.run

    def late(script: str, keys: Sequence[str], *arguments: bytes) -> object:
        run(script, keys, *arguments)
        raise redis.TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(here._connection, "run", late)
        with pytest.raises(StorageAway):
            await writer.write(answer("t1", "doubtful"))
    assert await found(there, "doubtful") == [("s1", 2)]
    if is_settled:
        assert await here.prompt_by_message_id("s1", "m") is None
        assert await found(there, "doubtful") == []
    await writer.write(answer("t1", "instead"))
    assert await found(there, "doubtful") == []
    assert await found(there, "instead") == [("s1", 2)]


async def test_a_conversation_with_the_id_of_a_deleted_one_is_indexed_anew(
    here: RedisStore, there: RedisStore
) -> None:
    writer = await Writer.create(MAKE, here)
    await writer.write(prompt("t1", "old"))
    assert await found(there, "old") == [("s1", 1)]
    await here.delete("s1")
    writer = await Writer.create(MAKE, here)
    await writer.write(prompt("t1", "young"), answer("t1", "younger"))
    assert await found(there, "old") == []
    assert await found(there, "young") == [("s1", 2), ("s1", 1)]


async def test_a_conversation_that_was_restored_is_found_again(
    here: RedisStore, there: RedisStore
) -> None:
    await (await Writer.create(MAKE, here)).write(prompt("t1", "needle"))
    assert await found(there, "needle") == [("s1", 1)]
    await here.delete("s1")
    assert await found(there, "needle") == []
    await here.undelete("s1")
    assert await found(there, "needle") == [("s1", 1)]


async def test_the_index_is_built_again_when_changes_may_have_been_missed(
    here: RedisStore, there: RedisStore, redis_server: RedisServer
) -> None:
    writer = await Writer.create(MAKE, here)
    await writer.write(prompt("t1", "before"))
    assert await found(there, "before") == [("s1", 1)]
    redis_server.call("CLIENT", "KILL", "TYPE", "pubsub")
    await writer.write(answer("t1", "meanwhile"))
    with anyio.fail_after(30):
        while True:
            with suppress(StorageAway):  # until it has connected again
                assert await found(there, "meanwhile") == [("s1", 2)]
                break
            await anyio.sleep(0.01)


async def test_an_expired_conversation_is_not_found(redis_server: RedisServer, prefix: str) -> None:
    store = await opened(redis_server, prefix, ttl_seconds=1000)
    await (await Writer.create(MAKE, store)).write(prompt("t1", "needle"))
    assert await found(store, "needle") == [("s1", 1)]
    redis_server.pass_time(1000, prefix=f"{prefix}{{s1}}")
    assert await found(store, "needle") == []
    await store.close()


async def test_trimmed_messages_are_not_found(redis_server: RedisServer, prefix: str) -> None:
    store = await opened(redis_server, prefix, max_turns=2)
    writer = await Writer.create(MAKE, store)
    await writer.turns(1, 2)
    assert len(await found(store, "ask")) == 2
    await writer.turns(3, 4)
    assert len(await found(store, "ask")) == 2
    await store.close()


async def test_a_search_out_of_time_gives_what_was_read_and_the_next_goes_on(
    here: RedisStore, monkeypatch: pytest.MonkeyPatch, first_lines_read: list[int]
) -> None:
    monkeypatch.setattr(search_index, "_CONVERSATIONS_AT_ONCE", 2)
    for number in range(5):
        await (await Writer.create(MAKE, here, f"s{number}")).write(prompt("t1", "needle"))
    page = await here.search("ada", SearchQuery(text="needle", seconds_max=1e-9))
    assert page.incomplete
    assert [hit.session_id for hit in page.hits] == ["s4", "s3"]
    assert len(await found(here, "needle")) == 5
    assert first_lines_read == [0] * 5


async def test_a_long_conversation_is_read_in_pieces(
    here: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "_ENTRIES_AT_ONCE", 3)
    await (await Writer.create(MAKE, here)).turns(1, 7)
    assert len(await found(here, "ask")) == 7


async def test_a_damaged_conversation_leaves_the_others_searchable(
    here: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    for session_id in ("s1", "s2"):
        writer = await Writer.create(MAKE, here, session_id)
        await writer.write(prompt("t1", "needle"), answer("t1", "needle"))
    redis_server.call("XDEL", f"{prefix}{{s2}}:log", "2-0")
    assert await found(here, "needle") == [("s2", 1), ("s1", 2), ("s1", 1)]


async def test_a_redis_user_who_may_not_publish_still_searches_and_is_warned(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(port=free_port())
    server.call("ACL", "SETUSER", "nplt", "on", ">secret", "~*", "+@all", "resetchannels")
    url = f"redis://nplt:secret@127.0.0.1:{server.port}"
    store = await RedisStore.open_url(url, clock=ticking_clock())
    assert any("may not publish" in problem for problem in store.view.problems)
    writer = await Writer.create(MAKE, store)
    await writer.write(prompt("t1", "needle"))
    assert await found(store, "needle") == [("s1", 1)]
    await writer.write(answer("t1", "needle"))
    assert await found(store, "needle") == [("s1", 2), ("s1", 1)]
    await store.close()


async def test_users_who_searched_long_ago_lose_their_index(
    here: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "_USERS_MAX", 2)
    for user in ("ada", "bob", "eve"):
        writer = await Writer.create(MAKE, here, f"of_{user}", user)
        await writer.write(prompt("t1", "needle"))
        await here.search(user, SearchQuery(text="needle"))
    assert list(here._search_index._users) == ["bob", "eve"]
    assert await found(here, "needle") == [("of_ada", 1)]


async def test_a_store_that_was_searched_closes_without_waiting_for_the_channel(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "_PING_SECONDS", 1000.0)
    store = await opened(redis_server, prefix)
    await (await Writer.create(MAKE, store)).write(prompt("t1", "needle"))
    assert await found(store, "needle") == [("s1", 1)]
    with anyio.fail_after(30):
        await store.close()


async def test_the_index_leaves_no_file(
    redis_server: RedisServer, prefix: str, tmp_path: Path
) -> None:
    store = await opened(redis_server, prefix, scratch=tmp_path)
    await (await Writer.create(MAKE, store)).write(prompt("t1", "needle"))
    assert await found(store, "needle") == [("s1", 1)]
    assert list(tmp_path.iterdir()) == []
    await store.close()
