"""A Redis that is set up wrongly is refused at the start of a server, or warned of."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.storage.store_makers import MemoryMaker
from tests.support.certificates import make_certificate
from tests.support.ports import free_port
from tests.support.redis_server import RedisClusterServers, RedisServer

from nplt_storage import (
    ConversationDamaged,
    PageQuery,
    RedisStore,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.errors import StorageAway
from nplt_storage.store import MemberNote
from nplt_storage.testing.rules import Writer, entries_of, ticking_clock

MAKE = MemoryMaker()
"""Only for its clock."""
Start = Callable[..., RedisServer]


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[RedisStore]:
    chosen: dict[str, object] = {"clock": ticking_clock(), "is_server": True, **options}
    store = await RedisStore.open_url(url, **chosen)  # type: ignore[arg-type]
    try:
        yield store
    finally:
        await store.close()


async def refusal(url: str, **options: object) -> str:
    with pytest.raises(StorageUnavailable) as refused:
        async with opened(url, **options):
            pass
    return str(refused.value)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
async def test_a_redis_that_may_evict_conversations_is_refused(
    start_redis: Start, policy: str
) -> None:
    server = start_redis(options=("--maxmemory-policy", policy))
    assert f"may evict conversations (maxmemory-policy {policy})" in await refusal(server.url)
    async with opened(server.url, is_server=False) as store:  # to copy from it, say
        assert any("may evict" in each for each in store.view.problems)


async def test_a_policy_that_evicts_expiring_keys_is_refused_only_if_conversations_expire(
    start_redis: Start,
) -> None:
    server = start_redis(options=("--maxmemory-policy", "volatile-lru"))
    assert "because they have a ttl" in await refusal(server.url, ttl_seconds=100)
    async with opened(server.url) as store:
        assert any("may evict leases" in each for each in store.view.problems)


async def test_a_replica_is_refused_and_the_message_names_its_primary(start_redis: Start) -> None:
    server = start_redis()
    port = free_port()
    server.call("REPLICAOF", "127.0.0.1", port)
    assert f"read-only replica of 127.0.0.1:{port}" in await refusal(server.url)


async def test_a_redis_without_persistence_is_warned_of(start_redis: Start) -> None:
    async with opened(start_redis().url) as store:
        assert any("keeps nothing when it stops" in each for each in store.view.problems)
        assert "lost when it stops" in store.description.promise
    async with opened(start_redis(appendfsync="everysec").url) as store:
        assert store.view.problems == ()


async def test_settings_that_change_while_a_server_runs_are_noticed(start_redis: Start) -> None:
    server = start_redis(appendfsync="everysec")
    async with opened(server.url, lease_seconds=0.5) as store:
        await store.join(MemberNote())
        server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
        server.call("CONFIG", "SET", "appendfsync", "no")
        with anyio.fail_after(30):
            while not any("may evict" in each for each in store.view.problems):
                await anyio.sleep(0.01)
        assert "appendfsync no" in store.description.promise


async def test_a_missing_permission_is_named(start_redis: Start) -> None:
    server = start_redis(port=free_port())
    server.call("ACL", "SETUSER", "nplt", "on", ">secret", "~*", "+@all", "-xadd")
    message = await refusal(f"redis://nplt:secret@127.0.0.1:{server.port}")
    assert "lacks a permission" in message
    assert "xadd" in message.lower()


async def test_keys_outside_the_permitted_pattern_are_named(start_redis: Start) -> None:
    server = start_redis(port=free_port())
    server.call("ACL", "SETUSER", "nplt", "on", ">secret", "~other:*", "+@all")
    message = await refusal(f"redis://nplt:secret@127.0.0.1:{server.port}")
    assert "lacks a permission" in message


async def test_credentials_that_redis_does_not_accept_are_named(start_redis: Start) -> None:
    server = start_redis(port=free_port())
    message = await refusal(f"redis://nplt:wrong@127.0.0.1:{server.port}")
    assert message == "Redis does not accept these credentials"


async def test_a_certificate_that_is_not_trusted_is_named(tmp_path: Path) -> None:
    program = shutil.which("redis-server")  # the one of the wheel has no TLS
    if program is None:
        pytest.skip("there is no redis-server with TLS")
    made, port = make_certificate(tmp_path), free_port()
    options: tuple[str, ...] = ("--tls-port", str(port), "--tls-auth-clients", "no")
    options += ("--tls-cert-file", made["cert"])
    options += ("--tls-key-file", made["key"], "--tls-ca-cert-file", made["cert"])
    server = RedisServer(tmp_path / "redis", options=options, program=program).start()
    try:
        message = await refusal(f"rediss://127.0.0.1:{port}", wait_seconds=30.0)
        assert "a certificate that is not trusted" in message
        url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={made['cert']}"
        async with opened(url):
            pass
    finally:
        server.kill()


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}"


async def test_a_redis_that_never_answers_is_reported_after_the_deadline_of_a_command() -> None:
    with black_hole() as url, anyio.fail_after(10):  # the deadline is 2 s
        assert await refusal(url) == "Redis does not answer"


async def test_requests_fail_at_once_while_redis_does_not_answer(start_redis: Start) -> None:
    server = start_redis()
    async with opened(server.url) as store:
        server.freeze()
        try:
            with pytest.raises(StorageAway):
                await store.row("s1")
            began = time.monotonic()
            failed = 0
            while time.monotonic() - began < 4:
                with pytest.raises(StorageAway, match="does not answer"):
                    await store.row("s1")
                failed += 1
        finally:
            server.thaw()
        assert failed > 20, "each of them waited"
        with anyio.fail_after(30):
            while store.read_only_reason is not None:
                try:
                    await store.row("s1")
                except StorageAway:
                    await anyio.sleep(0.01)
        assert store.counts.outages == 1
        assert store.counts.outage_seconds > 4


async def test_a_redis_that_is_away_at_the_start_is_waited_for(
    start_redis: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis()
    server.kill()
    async with anyio.create_task_group() as tasks:

        async def start_when_announced() -> None:
            while "waiting for it up to 60 s" not in caplog.text:
                await anyio.sleep(0.01)
            await anyio.to_thread.run_sync(server.start)

        tasks.start_soon(start_when_announced)
        async with opened(server.url, wait_seconds=60.0) as store:
            assert store.read_only_reason is None


async def test_a_second_server_with_the_same_address_is_refused(start_redis: Start) -> None:
    server = start_redis()
    async with opened(server.url, advertise="10.0.0.1:9999", lease_seconds=0.6) as store:
        await store.join(MemberNote())
        message = await refusal(server.url, advertise="10.0.0.1:9999", lease_seconds=0.6)
        assert "has the address 10.0.0.1:9999 too" in message
        async with opened(server.url, advertise="10.0.0.2:9999"):
            pass


async def test_the_address_of_a_killed_server_can_be_used_again(start_redis: Start) -> None:
    server = start_redis()
    async with opened(server.url, advertise="10.0.0.1:9999", lease_seconds=0.6) as store:
        store._membership.refresh(announces=True)  # and never again
        async with opened(server.url, advertise="10.0.0.1:9999", lease_seconds=0.6):
            pass


async def test_members_with_another_secret_or_clock_are_reported(start_redis: Start) -> None:
    server = start_redis(appendfsync="everysec")
    async with (
        opened(server.url, advertise="a:1") as one,
        opened(server.url, advertise="b:2") as two,
    ):
        await one.join(MemberNote(secret="first"))
        await two.join(MemberNote(secret="second"))
        assert ["another cluster secret" in each for each in two.view.problems] == [True]
        with server.client() as client:
            noted: Any = client.hget("nplt:@members", one.server_id)
            until, _, described = bytes(noted).partition(b" ")
            later = json.dumps({**json.loads(described), "skew": 60.0, "secret": "first"})
            client.hset("nplt:@members", one.server_id, until + b" " + later.encode())
        await two.compare(MemberNote(secret="first"))
        (problem,) = two.view.problems
        assert "60.0 s ahead of this one's" in problem


async def test_lines_that_redis_has_evicted_are_damage_and_not_an_empty_conversation(
    start_redis: Start,
) -> None:
    server = start_redis()
    async with opened(server.url) as store:
        writer = await Writer.create(MAKE, store)
        await writer.turns(1, 3)
        server.call("DEL", "nplt:{s1}:log")
        for query in (PageQuery(), PageQuery(before=5), PageQuery(after=1), PageQuery(around=3)):
            with pytest.raises(ConversationDamaged, match="is missing"):
                await store.page("s1", query)
        with pytest.raises(ConversationDamaged):
            await entries_of(store)


async def test_the_newest_lines_that_are_missing_are_damage(start_redis: Start) -> None:
    server = start_redis()
    async with opened(server.url) as store:
        writer = await Writer.create(MAKE, store)
        await writer.turns(1, 3)
        server.call("XDEL", "nplt:{s1}:log", f"{writer.history.head_seq}-0")
        for query in (PageQuery(), PageQuery(after=1)):
            with pytest.raises(ConversationDamaged, match="is missing"):
                await store.page("s1", query)


async def test_a_trimmed_conversation_is_read_without_complaint(start_redis: Start) -> None:
    async with opened(start_redis().url, max_turns=2) as store:
        writer = await Writer.create(MAKE, store)
        await writer.turns(1, 9)
        page = await store.page("s1", PageQuery(limit=100))
        assert page.messages
        assert len(await entries_of(store)) > 1


@pytest.mark.slow
async def test_a_cluster_that_stops_as_a_whole_is_warned_of(tmp_path: Path) -> None:
    servers = RedisClusterServers(tmp_path, primaries=3).start()
    try:
        async with opened(servers.url) as store:
            assert any("cluster-require-full-coverage" in each for each in store.view.problems)
    finally:
        servers.kill()


async def test_what_refuses_is_a_storage_error_that_names_no_password(start_redis: Start) -> None:
    server = start_redis(port=free_port())
    with pytest.raises(StorageError) as refused:
        async with opened(f"redis://nplt:sesame@127.0.0.1:{server.port}"):
            pass
    assert "sesame" not in str(refused.value)
