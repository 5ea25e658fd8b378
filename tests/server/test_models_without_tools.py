"""A model that is not told of tools has its whole window for the conversation."""

from __future__ import annotations

import pytest
from tests.server.test_context_manager import playing

from nplt_server.providers import ModelFacts


@pytest.mark.parametrize(("takes_tools", "state"), [(True, "failed"), (False, "completed")])
async def test_tool_schemas_take_tokens_only_where_they_are_sent(
    takes_tools: bool, state: str
) -> None:
    facts = ModelFacts(context_tokens=400, output_tokens=100, takes_tools=takes_tools)
    async with playing(facts) as play:
        assert (await play.stage.play("hello")).state == state
