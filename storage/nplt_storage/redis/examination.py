"""Finds out how a Redis is set up: what it promises, and what would lose conversations.

A Redis that evicts conversations, or a read-only replica, can't be used by a server (`refuses`).
Everything else that an operator should change is a warning. Settings that Redis keeps to itself
are taken from INFO where it has them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import redis
from msgspec import Struct

from nplt_storage.durations import boot_time
from nplt_storage.errors import StorageUnavailable
from nplt_storage.ids import new_entry_id
from nplt_storage.redis import scripts
from nplt_storage.redis.changes import are_published
from nplt_storage.redis.clock import Reading
from nplt_storage.redis.connection import RedisConnection, configured
from nplt_storage.redis.scripts import TRIAL

OLDEST_VERSION: Final = (6, 2)
SKEW_SECONDS_MAX: Final = 2.0


class Problem(Struct, frozen=True):
    says: str
    refuses: bool = False
    """Whether a server must not use this Redis."""


class Examined(Struct, frozen=True, kw_only=True):
    promise: str
    """A sentence about what an acknowledged entry survives."""
    problems: tuple[Problem, ...]
    skew: float
    """The number of seconds by which the clock of this machine is ahead of Redis's."""
    reading: Reading
    """The time by Redis's clock; in a cluster, by that of one node."""


def examine(connection: RedisConnection, *, expires: bool) -> Examined:
    """`expires`: whether conversations expire (`ttl`). Raises `StorageUnavailable` if this is not a
    Redis that can be used at all."""
    found: dict[Problem, None] = {}
    promises: list[tuple[int, str]] = []
    readings: list[Reading] = []
    skew = 0.0
    failure: redis.RedisError | None = None
    for node in connection.nodes(redis.RedisCluster.get_primaries):
        try:
            info: Mapping[str, Any] = node.info("all")
            known = _settings_of(node)
            readings.append(_read_clock(node))
        except (redis.ConnectionError, redis.TimeoutError) as error:
            failure = error
            continue
        skew = time.time() - readings[-1].at(boot_time())
        _check_version(connection, info)
        found |= dict.fromkeys(_problems(connection, info, known, expires=expires))
        promises.append(_promise(info, known))
    if failure is not None:
        if not promises:
            raise failure
        found[Problem(f"a node of the Redis cluster can't be examined: {failure}")] = None
    if not are_published(connection):
        found[
            Problem(
                "this user of Redis may not publish (its ACL needs &<key_prefix>*): watchers miss "
                "the changes that other servers make, and every search reads all conversations"
            )
        ] = None
    if abs(skew) > SKEW_SECONDS_MAX:
        way = "ahead of" if skew > 0 else "behind"
        found[Problem(f"the clock of this machine is {abs(skew):.1f} s {way} Redis's")] = None
    return Examined(
        promise=min(promises)[1],
        problems=tuple(found),
        skew=round(skew, 3),
        reading=readings[0],
    )


def _read_clock(node: redis.Redis) -> Reading:
    asked_at = boot_time()
    seconds, microseconds = node.time()
    return Reading(seconds=seconds + microseconds / 1e6, asked_at=asked_at, answered_at=boot_time())


def try_commands(connection: RedisConnection) -> None:
    """Runs each command that scripts need on keys made for that. A user of Redis who may not run
    one of them (ACL) is noticed now, and not in the middle of a conversation."""
    keys = connection.keyspace.of(new_entry_id(), TRIAL)
    connection.run(scripts.TRY_COMMANDS, keys)


def _check_version(connection: RedisConnection, info: Mapping[str, Any]) -> None:
    version = str(info.get("redis_version", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_VERSION:
        raise StorageUnavailable(f"Redis 6.2 or later is needed; this is {version}")
    if info.get("cluster_enabled") and not connection.is_cluster:
        raise StorageUnavailable("this Redis is a cluster: its address is redis+cluster://…")


def _settings_of(node: redis.Redis) -> Mapping[str, str] | None:
    """The settings that matter here; `None` if Redis does not tell them."""
    known: dict[str, str] = {}
    try:
        for names in ("append*", "save", "min-replicas-*", "cluster-require-full-coverage"):
            known |= configured(node, names)
    except redis.ResponseError:
        return None
    return known


def _problems(
    connection: RedisConnection,
    info: Mapping[str, Any],
    known: Mapping[str, str] | None,
    *,
    expires: bool,
) -> Iterator[Problem]:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys-") or (expires and policy.startswith("volatile-")):
        why = "" if policy.startswith("allkeys-") else ", because they have a ttl"
        yield Problem(
            f"this Redis may evict conversations{why} (maxmemory-policy {policy}); "
            "set it to noeviction",
            refuses=True,
        )
    elif policy.startswith("volatile-"):
        yield Problem(
            f"this Redis may evict leases and deleted conversations (maxmemory-policy {policy}); "
            "set it to noeviction"
        )
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        yield Problem(
            f"this Redis is a read-only replica of {primary}; give the address of the primary",
            refuses=True,
        )
    if known is None:
        if not info.get("aof_enabled"):
            yield Problem("this Redis has no append-only file (appendonly no)")
        return
    if known.get("appendonly") != "yes":
        saves = "only what it has saved" if known.get("save") else "nothing"
        yield Problem(
            f"this Redis keeps {saves} when it stops (appendonly no); set appendonly to yes"
        )
    if connection.is_cluster and known.get("cluster-require-full-coverage") == "yes":
        yield Problem(
            "if one node of this Redis cluster is away, all of them refuse commands "
            "(cluster-require-full-coverage yes); set it to no"
        )


_SYNCED: Final[Mapping[str, tuple[int, str]]] = {
    "always": (3, "on its disk before it is acknowledged (appendfsync always)"),
    "everysec": (2, "a power cut may take the last second or two (appendfsync everysec)"),
    "no": (1, "a power cut may take what it has not written yet (appendfsync no)"),
    "never": (0, "what it has not saved yet is lost when it stops"),
}
_UNKNOWN: Final = (1, "as durable as this Redis is; it does not say how much that is")


def _promise(info: Mapping[str, Any], known: Mapping[str, str] | None) -> tuple[int, str]:
    """A sentence that says what an acknowledged entry survives, after its rank: of several
    primaries, the weakest promise holds."""
    if known is None:
        rank, disk = _UNKNOWN if info.get("aof_enabled") else _SYNCED["never"]
    else:
        synced = known.get("appendfsync", "no") if known.get("appendonly") == "yes" else "never"
        rank, disk = _SYNCED.get(synced, _SYNCED["no"])
    if (rank, disk) != _UNKNOWN:
        disk = f"as durable as this Redis: {disk}"
    needed = int((known or {}).get("min-replicas-to-write", 0))
    lag = (known or {}).get("min-replicas-max-lag", "0")
    replicas = int(info.get("connected_slaves", 0))
    if needed and int(lag):
        lost = f"was written in the last {lag} s"
    elif replicas:
        lost, needed = "was not copied to a replica yet", 0
    else:
        return rank, disk
    connected = f"{replicas} connected, min-replicas-to-write {needed}"
    return rank, f"{disk}; a failover may take what {lost} ({connected})"
