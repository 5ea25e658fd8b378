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

from nplt_storage.testing.conformance import RULES, StoreConformance, run_rule
from nplt_storage.testing.expecting import RuleBroken
from nplt_storage.testing.maker import Ability, StoreMaker
from nplt_storage.testing.rulebook import Rule

__all__ = ["RULES", "Ability", "Rule", "RuleBroken", "StoreConformance", "StoreMaker", "run_rule"]
