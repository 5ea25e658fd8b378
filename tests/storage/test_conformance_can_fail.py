"""The rules notice what they are there for: each broken store fails exactly where it is broken."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Set
from functools import partial

import pytest
from tests.storage.broken_stores import BROKEN
from tests.storage.store_makers import MemoryMaker, RedisMaker, SharedMemoryMaker
from tests.support.redis_server import RedisServer

from nplt_storage.testing import RULES, StoreMaker, run_rule

pytestmark = pytest.mark.slow


async def broken_rules(make: Callable[[], StoreMaker], *, about: Set[str | None]) -> set[str]:
    broken: set[str] = set()
    for rule in RULES:
        try:
            if rule.needs in about:
                await run_rule(rule, make())
        except unittest.SkipTest:
            continue
        except Exception:
            broken.add(rule.name)
    return broken


@pytest.mark.parametrize("name", BROKEN["memory"])
async def test_a_store_that(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, rules = BROKEN["memory"][name]
    break_it(monkeypatch)
    assert await broken_rules(MemoryMaker, about={None}) == rules


@pytest.mark.parametrize("name", BROKEN["shared"])
async def test_a_shared_store_that(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, rules = BROKEN["shared"][name]
    break_it(monkeypatch)
    assert await broken_rules(SharedMemoryMaker, about={"last", "crash", "share"}) == rules


@pytest.mark.parametrize("name", BROKEN["redis"])
async def test_a_limited_store_that(
    name: str, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    break_it, rules = BROKEN["redis"][name]
    break_it(monkeypatch)
    about = {rule.needs for rule in RULES if rule.name in rules}
    assert await broken_rules(partial(RedisMaker, redis_server), about=about) == rules


def test_every_rule_is_broken_by_some_store() -> None:
    broken = {rule for kind in BROKEN.values() for _, rules in kind.values() for rule in rules}
    assert {rule.name for rule in RULES} - broken == set()
