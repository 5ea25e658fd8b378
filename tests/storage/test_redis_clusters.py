"""Redis Cluster, Sentinel, TLS and passwords: the same store, on real servers of each kind."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis
from redis.crc import key_slot
from tests.storage.store_makers import MemoryMaker, RedisMaker
from tests.support.ports import free_port
from tests.support.redis_server import (
    RedisClusterServers,
    RedisServer,
    SentinelServers,
    wait_until,
)

from nplt_storage import RedisStore, StorageUnavailable, WrittenElsewhere
from nplt_storage.testing import Ability, StoreConformance, StoreMaker
from nplt_storage.testing.rules import (
    Writer,
    entries_of,
    ids_of,
    prompt,
    row_of,
    ticking_clock,
)

pytestmark = pytest.mark.slow

MAKE = MemoryMaker()
"""Only for its clock."""


async def opened(url: str, **options: float) -> RedisStore:
    return await RedisStore.open_url(
        url,
        clock=ticking_clock(),
        key_prefix="p:",
        timeout_seconds=options.get("timeout_seconds", 5.0),
        lease_seconds=options.get("lease_seconds", 15.0),
    )


async def written_again(writer: Writer, turn_id: str) -> None:
    """Once Redis is back; what it refuses meanwhile is refused as unavailable."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            await writer.write(prompt(turn_id))
            return
        except StorageUnavailable:
            await asyncio.sleep(0.01)
    raise AssertionError("it never came back")


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisClusterServers]:
    """It has all slots, and refuses what would not be in one of them, as any cluster does."""
    servers = RedisClusterServers(tmp_path_factory.mktemp("node"), primaries=1).start()
    yield servers
    servers.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisClusterServers]:
    servers = RedisClusterServers(tmp_path_factory.mktemp("cluster")).start()
    yield servers
    servers.kill()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[RedisClusterServers]:
    servers = RedisClusterServers(tmp_path, replicas=1)
    try:
        yield servers.start()
    finally:
        servers.kill()


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[SentinelServers]:
    servers = SentinelServers(tmp_path, password="open/sesame")
    try:
        yield servers.start()
    finally:
        servers.kill()


class LastingNode(RedisMaker):
    """A node of a cluster takes seconds to start again: those rules are among the slow tests."""

    can: ClassVar[frozenset[Ability]] = frozenset({"last", "share", "trim", "expire"})


class TestOneNode(StoreConformance):
    @pytest.fixture
    def maker(self, one_node: RedisClusterServers) -> StoreMaker:
        return LastingNode(one_node)


@pytest.mark.slow
class TestThreeNodes(StoreConformance):
    @pytest.fixture
    def maker(self, cluster: RedisClusterServers) -> StoreMaker:
        return RedisMaker(cluster)


async def test_all_keys_of_a_conversation_are_in_one_slot(one_node: RedisClusterServers) -> None:
    store = await RedisStore.open_url(one_node.url, clock=ticking_clock(), key_prefix="slot:")
    for session_id in ("s1", "s2"):
        writer = await Writer.create(MAKE, store, session_id)
        await writer.record.keep_blob(b"beside")
        await writer.turns(1, 1)
        await writer.write(prompt("t2"))
        assert await writer.journal("t2", 0, "text", "so far")
    with one_node.nodes[0].client() as client:
        keys: Any = client.keys("slot:{s1}:*")
    assert len(keys) == 5
    assert len({key_slot(key) for key in keys}) == 1
    await store.close()


async def test_a_node_of_a_cluster_is_not_taken_for_a_redis_alone(
    one_node: RedisClusterServers,
) -> None:
    with pytest.raises(StorageUnavailable, match=r"redis\+cluster://"):
        await opened(one_node.nodes[0].url)


async def test_an_unreachable_redis_cluster_is_reported() -> None:
    with pytest.raises(StorageUnavailable, match="can't be reached"):
        await opened(f"redis+cluster://127.0.0.1:{free_port()}")


@pytest.mark.slow
async def test_nothing_is_lost_while_slots_are_moved(own_cluster: RedisClusterServers) -> None:
    store = await opened(own_cluster.url)
    writers = [await Writer.create(MAKE, store, f"s{number}") for number in range(12)]
    one, two, three = own_cluster.primaries
    for number, (source, target) in enumerate(((one, two), (two, three), (three, one)), 1):
        here = [key_slot(f"{{s{each}}}".encode()) for each in range(12)]
        owned = [slot for slot in here if source.call("CLUSTER", "COUNTKEYSINSLOT", slot)]
        own_cluster.move_slots(owned, source, target)
        for writer in writers:
            await writer.turns(number, number)
            store._leases.renew()
    for place, writer in enumerate(writers):
        assert await entries_of(store, f"s{place}") == list(writer.history.entries)
    assert await store.count("ada") == 12
    await store.close()


@pytest.mark.slow
async def test_while_a_slot_is_half_moved_its_conversations_are_unavailable_and_then_go_on(
    cluster: RedisClusterServers,
) -> None:
    store = await RedisStore.open_url(cluster.url, clock=ticking_clock(), key_prefix="half:")
    writer = await Writer.create(MAKE, store)
    await writer.turns(1, 1)
    slot = key_slot(b"{s1}")
    source, target = sorted(
        cluster.primaries[:2] if slot < 10_000 else cluster.primaries[1:],
        key=lambda node: not node.call("CLUSTER", "COUNTKEYSINSLOT", slot),
    )
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
    where = ("127.0.0.1", target.port, "", 0, 5000)
    source.call("MIGRATE", *where, "KEYS", "half:{s1}:log")
    with pytest.raises(StorageUnavailable, match="moving it to another node"):
        await writer.write(prompt("t2"))
    cluster.move_slots([slot], source, target)
    await writer.turns(2, 2)
    assert await entries_of(store) == list(writer.history.entries)
    await store.close()


@pytest.mark.slow
async def test_a_node_that_is_down_or_hangs_lets_no_lease_on_another_lapse(
    cluster: RedisClusterServers,
) -> None:
    store = await RedisStore.open_url(
        cluster.url, clock=ticking_clock(), key_prefix="down:", timeout_seconds=0.5
    )
    owned = [(await Writer.create(MAKE, store, f"s{number}")).record for number in range(12)]
    hanging, *_ = cluster.primaries
    here = {f"s{number}" for number in range(12) if key_slot(f"{{s{number}}}".encode()) < 5462}
    assert 0 < len(here) < 12
    for record in owned:
        record.owned.until = 0.0  # type: ignore[attr-defined]
    hanging.freeze()
    try:
        with pytest.raises(redis.RedisError):
            store._leases.renew()
    finally:
        hanging.thaw()
    renewed = {each.session_id for each in owned if each.owned.until > 0}  # type: ignore[attr-defined]
    assert renewed == {f"s{number}" for number in range(12)} - here
    await store.close()


@pytest.mark.slow
async def test_a_node_that_dies_takes_only_its_own_conversations_along_until_its_replica_steps_in(
    own_cluster: RedisClusterServers,
) -> None:
    store = await opened(own_cluster.url, timeout_seconds=1.0, lease_seconds=60.0)
    dead, *_ = own_cluster.primaries
    writers = {f"s{number}": await Writer.create(MAKE, store, f"s{number}") for number in range(12)}
    for writer in writers.values():
        await writer.turns(1, 1)
    on_it = {id_ for id_ in writers if key_slot(f"{{{id_}}}".encode()) <= 16384 // 3}
    assert 0 < len(on_it) < 12
    for node in own_cluster.primaries:
        wait_until(lambda: node.call("WAIT", 1, 1000) == 1, "an acknowledging replica")  # noqa: B023
    dead.kill()
    for id_, writer in writers.items():
        await written_again(writer, "t2")
        assert await entries_of(store, id_) == list(writer.history.entries)
    assert sorted(await ids_of(store)) == sorted(writers)
    await store.close()


@pytest.mark.slow
async def test_sentinel_says_who_the_primary_is_and_all_goes_on_after_a_failover(
    sentinel: SentinelServers,
) -> None:
    store = await opened(sentinel.url, timeout_seconds=1.0, lease_seconds=60.0)
    assert "a failover may take" in store.description.promise
    writer = await Writer.create(MAKE, store)
    await writer.turns(1, 3)
    wait_until(lambda: sentinel.is_copied(), "a replica that has it all")
    sentinel.fail_over()
    await written_again(writer, "t4")
    assert await entries_of(store) == list(writer.history.entries)
    assert await ids_of(store) == ["s1"]
    await store.close()


@pytest.mark.slow
async def test_after_a_failover_that_lost_entries_the_owner_is_refused_and_opens_it_again(
    sentinel: SentinelServers,
) -> None:
    store = await opened(sentinel.url, timeout_seconds=1.0, lease_seconds=60.0)
    writer = await Writer.create(MAKE, store)
    await writer.turns(1, 2)
    wait_until(lambda: sentinel.is_copied(), "a replica that has it all")
    kept = await entries_of(store)
    sentinel.stop_copying()
    await writer.turns(3, 3)
    sentinel.fail_over()
    with pytest.raises(WrittenElsewhere):
        await written_again(writer, "t4")
    await writer.record.close()
    again = Writer.of(MAKE, await store.open("s1"))
    assert await entries_of(store) == kept
    await again.turns(5, 5)
    assert (await row_of(store)).head_seq == again.history.head_seq
    await store.close()


@pytest.fixture
def secure_server(tmp_path: Path) -> Iterator[RedisServer]:
    program, openssl = shutil.which("redis-server"), shutil.which("openssl")
    if program is None or openssl is None:
        pytest.skip("needs the openssl command and the system's redis-server, which has TLS")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    ask = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    ask += "-subj /CN=r -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [openssl, *ask.split(), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    port = free_port()
    options = ["--tls-port", str(port), "--tls-cert-file", str(certificate)]
    options += ["--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate)]
    options += ["--tls-auth-clients", "no", "--requirepass", "sesame"]
    server = RedisServer(tmp_path / "redis", program=program, options=options)
    server.port = 0
    yield server.start()
    server.kill()


async def test_the_redis_url_sets_tls_and_password(
    secure_server: RedisServer, tmp_path: Path
) -> None:
    port = secure_server.options[1]
    address = f"127.0.0.1:{port}/0?ssl_ca_certs={tmp_path}/cert.pem"
    store = await opened(f"rediss://:sesame@{address}")
    await (await Writer.create(MAKE, store)).turns(1, 1)
    assert await ids_of(store) == ["s1"]
    await store.close()
    with pytest.raises(StorageUnavailable, match="credentials"):
        await opened(f"rediss://:wrong@{address}")
