"""Tools, a widget, a token counter and a compression listener of your own, for the server.

Put this into a settings file, say mine.yaml (a tool the settings say nothing of is asked
about before it runs):

    extensions:
      tools: ["extensions:roll_dice"]
      widgets: ["extensions:ScoreWidget"]
      token_counter: "extensions:count_tokens"
      on_compression: "extensions:log_compression"
    tools: {roll_dice: allow, score: allow}

and start the server where Python finds this file; offline/echo calls a tool by `!tool`:

    PYTHONPATH=examples nplt-server --config mine.yaml
    nplt ask -m offline/echo '!tool roll_dice {"sides": 20, "count": 3}'
"""

from __future__ import annotations

import logging
import random
from typing import Annotated

from pydantic import Field

from nplt_server.extensions import (
    Compressible,
    OverThreshold,
    ToolHost,
    Widget,
    WidgetView,
    begin_epoch_and_summarize,
    typed_tool,
)

log = logging.getLogger(__name__)


def roll_dice(
    sides: Annotated[int, Field(ge=2, le=100, description="of one die")] = 6,
    count: Annotated[int, Field(ge=1, le=10)] = 1,
) -> str:
    """Rolls dice."""
    return ", ".join(str(random.randint(1, sides)) for _ in range(count))


class ScoreWidget(Widget):
    """Points by player. The state is kept in the conversation, as an entry per change."""

    name = "score"
    description = "The points of a game."

    def __init__(self) -> None:
        self.tools = (typed_tool(self.score),)

    async def score(self, player: str, points: int, host: ToolHost) -> str:
        """Adds points to a player of the game."""
        state = await host.update_widget(
            self.name, lambda now: {**now, player: _points(now.get(player)) + points}
        )
        return f"{player} has {state[player]} points."

    def render_live_screen(self, view: WidgetView) -> str | None:
        state = view.widget_state(self.name)
        lines = [f"- {player}: {points}" for player, points in state.items()]
        return "\n".join(["## Score", *lines]) if lines else None


def _points(value: object) -> int:
    return value if isinstance(value, int) else 0


def count_tokens(text: str) -> int:
    """Four bytes for a token: a rough figure, and quick."""
    return len(text.encode(errors="replace")) // 4 + 1


async def log_compression(event: OverThreshold, conversation: Compressible) -> None:
    log.warning("%s: the context is nearly full", event.session_id)
    await begin_epoch_and_summarize(event, conversation)
