"""All rules, and how to run them: one by one, or as a class of tests."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Callable
from typing import Any

from nplt_storage.testing.maker import StoreMaker
from nplt_storage.testing.rulebook import Rule
from nplt_storage.testing.rules import (
    appending,
    blobs,
    building,
    crashes,
    deleting,
    landmarks,
    limits,
    pages,
    redacting,
    resending,
    rollbacks,
    rows,
    said,
    searching,
    writers,
)

_BOOKS = (
    *(appending.RULES, writers.RULES, pages.RULES, rows.RULES, searching.RULES, building.RULES),
    *(blobs.RULES, redacting.RULES, deleting.RULES, said.RULES, rollbacks.RULES),
    *(landmarks.RULES, resending.RULES),
    *(crashes.RULES, limits.RULES),
)
RULES: tuple[Rule, ...] = tuple(rule for book in _BOOKS for rule in book)


async def run_rule(rule: Rule, maker: StoreMaker) -> None:
    """Raises `RuleBroken`, or whatever the store raised, if it does not hold."""
    if rule.needs is not None and rule.needs not in maker.can:
        raise unittest.SkipTest(f"these stores don't {rule.needs}")
    try:
        await rule.check(maker)
    finally:
        await maker.close()


class StoreConformance:
    """Subclass it with a fixture `maker` that gives a `StoreMaker`: see the package."""


def _as_test(rule: Rule) -> Callable[[Any, StoreMaker], None]:
    def test(_self: Any, maker: StoreMaker) -> None:
        asyncio.run(run_rule(rule, maker))

    test.__name__ = f"test_{rule.name}"
    return test


for _rule in RULES:
    setattr(StoreConformance, f"test_{_rule.name}", _as_test(_rule))
