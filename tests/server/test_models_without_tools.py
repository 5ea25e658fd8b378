"""Tools take room in a window only where they are sent, and only as much as leaves some."""

from __future__ import annotations

import pytest
from tests.server.test_context_manager import playing

from nplt_protocol.messages import AgentThought
from nplt_server.providers import ModelFacts


@pytest.mark.parametrize(
    ("window", "takes_tools", "is_sent", "notices"),
    [(8_192, True, True, 0), (400, True, False, 1), (400, False, False, 0)],
)
async def test_tools_are_left_out_of_a_window_that_they_would_fill(
    *, window: int, takes_tools: bool, is_sent: bool, notices: int
) -> None:
    facts = ModelFacts(context_tokens=window, output_tokens=100, takes_tools=takes_tools)
    async with playing(facts) as play:
        for prompt in ("hello", "again"):
            assert (await play.stage.play(prompt)).state == "completed"
        assert [bool(request.tools) for request in play.requests] == [is_sent, is_sent]
        announced = [
            event
            for event in play.stage.ear.received
            if isinstance(event, AgentThought) and event.type == "notice"
        ]
        assert len(announced) == notices
