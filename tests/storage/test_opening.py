"""A store is named in a few words; a word that means nothing is an error that helps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.storage.conversations import ticking_clock
from tests.support.redis_server import RedisServer

from nplt_storage import (
    BadStoreConfig,
    ConversationStore,
    MemoryStore,
    StorageUnavailable,
    StoreConfig,
    StoreContext,
    open_store,
)
from nplt_storage.opening import check_config


async def opened(data_dir: Path, type: str, **options: object) -> ConversationStore:  # noqa: A002
    config = StoreConfig(type=type, options=options)
    return await open_store(config, data_dir=data_dir, clock=ticking_clock())


class OwnStore(MemoryStore):
    """What a user might write."""

    options: Mapping[str, Any]

    @classmethod
    async def open(cls, options: Mapping[str, Any], context: StoreContext) -> OwnStore:  # type: ignore[override]
        store = cls(context.clock)
        store.options = options
        return store


@pytest.mark.parametrize("type", ["json", "memory"])
async def test_a_store_is_opened_by_its_name(tmp_path: Path, type: str) -> None:  # noqa: A002
    store = await opened(tmp_path / "data", type, max_turns=5)
    assert store.description.backend == type
    await store.close()


async def test_files_are_kept_as_durably_as_asked_for(tmp_path: Path) -> None:
    store = await opened(tmp_path / "data", "json", durability="interval", interval_seconds=3)
    assert "3 s later" in store.description.promise
    await store.close()


async def test_redis_is_opened_by_its_url(redis_server: RedisServer, tmp_path: Path) -> None:
    store = await opened(tmp_path, "redis", url=redis_server.url, key_prefix="named:", ttl=60)
    await store.create("s1", user="ada")
    assert store.description.backend == "redis"
    await store.close()
    with redis_server.client() as client:
        assert 0 < client.pttl("named:{s1}:meta") <= 60_000


async def test_ones_own_class_is_named_by_its_path(tmp_path: Path) -> None:
    store = await opened(tmp_path, f"{__name__}:OwnStore", colour="green")
    assert isinstance(store, OwnStore)
    assert store.options == {"colour": "green"}


async def test_the_default_is_files(tmp_path: Path) -> None:
    store = await open_store(StoreConfig(), data_dir=tmp_path / "data", clock=ticking_clock())
    assert store.description.backend == "json"
    await store.close()


@pytest.mark.parametrize(
    ("type", "options", "says"),
    [
        ("jsno", {}, "no store of type 'jsno' (did you mean 'json'?)"),
        ("mongo", {}, "there are json, memory, redis, and package.module:Class"),
        ("redis", {}, "a redis store needs url"),
        ("redis", {"url": None}, "a redis store needs url"),
        ("redis", {"uri": "redis://h"}, "no option 'uri' (did you mean 'url'?)"),
        ("redis", {"url": "http://h"}, "url of a redis store begins with redis://"),
        ("redis", {"url": "redis://h:bar/0"}, "has a host or port that can't be read"),
        ("redis", {"url": "redis://h/0?foo=1"}, "has the option 'foo', which the Redis client"),
        ("redis", {"url": "redis://[::1/0"}, "has a host or port that can't be read"),
        ("redis", {"url": "redis://h/0?socket_timeout=x"}, "can't be read: Invalid value"),
        ("redis", {"url": "redis://h", "ttl": 0}, "ttl of a redis store is a whole number above 0"),
        ("redis", {"url": "redis://h", "ttl": True}, "ttl of a redis store is a whole number"),
        ("redis", {"url": "redis://h", "max_turns": "5"}, "max_turns of a redis store is a whole"),
        ("redis", {"url": "redis://h", "key_prefix": ""}, "key_prefix of a redis store is text"),
        ("json", {"max_turn": 3}, "did you mean 'max_turns'?"),
        ("json", {"durability": "often"}, "is always, interval or never"),
        ("json", {"interval_seconds": float("nan")}, "is a number of seconds above 0"),
        ("memory", {"url": "redis://h"}, "a memory store has no option 'url'; it has max_turns"),
        ("no.such.module:Store", {}, "can't be imported"),
        (":Store", {}, "not of the form package.module:Class"),
        ("nplt_storage.memory:MemoryStor", {}, "did you mean 'MemoryStore'?"),
        ("nplt_storage.opening:StoreConfig", {}, "lacks get_history and append_message and clear"),
    ],
)
async def test_what_can_not_be_meant_is_refused(
    tmp_path: Path,
    type: str,  # noqa: A002
    options: dict[str, object],
    says: str,
) -> None:
    with pytest.raises(BadStoreConfig) as refusal:
        await opened(tmp_path, type, **options)
    assert says in str(refusal.value)


async def test_without_the_redis_package_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("nplt_storage.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(BadStoreConfig, match=r"pip install 'nplt\[redis\]'"):
        await opened(tmp_path, "redis", url="redis://localhost")


async def test_an_unreachable_redis_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="can't be reached"):
        await opened(tmp_path, "redis", url=f"unix://{tmp_path}/nobody.sock")


def test_redis_is_not_imported_before_it_is_asked_for() -> None:
    program = "import sys, nplt_storage.opening; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("1 / 0", "can't be imported: ZeroDivisionError"),
        ("def (", "can't be imported: invalid syntax"),
        ("class Store:\n  async def open(): ...", "can't be opened: TypeError"),
        ("class Store:\n  def open(options, context): ...", "can't be opened: TypeError"),
        ("class Store:\n  async def open(options, context): {}['k']", "can't be opened: KeyError"),
    ],
)
async def test_whatever_is_wrong_with_ones_own_class_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_store_of_a_test", raising=False)
    (tmp_path / "own_store_of_a_test.py").write_text(source)
    with pytest.raises(BadStoreConfig) as refusal:
        await opened(tmp_path, "own_store_of_a_test:Store")
    assert says in str(refusal.value)
    sys.modules.pop("own_store_of_a_test", None)


@pytest.mark.parametrize("url", ["redis://h:bar/0", "redis://h/0?foo=1"])
def test_a_url_is_checked_without_opening_anything(url: str) -> None:
    with pytest.raises(BadStoreConfig, match="url of a redis store"):
        check_config(StoreConfig(type="redis", options={"url": url}))


def test_no_error_contains_part_of_a_password() -> None:
    config = StoreConfig(type="redis", options={"url": "redis://ada:secret/word@h:6379/0"})
    with pytest.raises(BadStoreConfig) as refusal:
        check_config(config)
    assert "secret" not in str(refusal.value)
