"""Every provider keeps to the same contract: ours, the vendors', a server none of us wrote."""

from __future__ import annotations

import pytest
from tests.server.providers.contract import RULES, Rule, SceneName, closing_twice_is_closing
from tests.server.providers.contract_stages import STAGES, open_local


@pytest.mark.parametrize("stage_name", STAGES)
@pytest.mark.parametrize(("scene", "rule"), RULES, ids=[rule.__name__ for _, rule in RULES])
async def test_a_provider_keeps_to_the_rule(stage_name: str, scene: SceneName, rule: Rule) -> None:
    async with STAGES[stage_name]() as stage:
        if reason := stage.cannot(scene):
            pytest.skip(reason)
        await rule(stage)


async def test_the_local_model_keeps_to_the_rules() -> None:
    """To all it can, one after the other: starting it is what takes time."""
    async with open_local() as stage:
        for scene, rule in sorted(RULES, key=_disturbance):
            if stage.cannot(scene) is None:
                await rule(stage)


def _disturbance(listed: tuple[SceneName, Rule]) -> int:
    """A rule that ends its process comes after the others, one that closes it last."""
    scene, rule = listed
    return 2 if rule is closing_twice_is_closing else int(scene == "cut")
