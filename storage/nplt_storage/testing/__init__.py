"""The rules every store keeps, as tests: for ours, and for the one you write.

    from nplt_storage.testing import StoreConformance, StoreMaker

    class MyMaker(StoreMaker):
        async def open_store(self, **options):
            return await MyStore.open(self.place, clock=self.clock)

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def maker(self, tmp_path):
            return MyMaker(tmp_path)

Each rule is a test of its own and says in its name what must hold. A maker
says what else can be done with its stores (`can`); rules that need more are
skipped. Nothing here needs pytest: `RULES` can be run by any program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nplt_storage.testing.rules import RULES, Ability, Rule, RuleBroken, StoreMaker

__all__ = ["RULES", "Ability", "Rule", "RuleBroken", "StoreConformance", "StoreMaker", "run_rule"]


run_rule = Rule.run


class StoreConformance:
    """Subclass this with a fixture `maker` that returns a `StoreMaker`: see the package."""


def _as_test(rule: Rule) -> Callable[[Any, StoreMaker], None]:
    def test(_self: Any, maker: StoreMaker) -> None:
        asyncio.run(rule.run(maker))

    test.__name__ = f"test_{rule.name}"
    return test


for _rule in RULES:
    setattr(StoreConformance, f"test_{_rule.name}", _as_test(_rule))
