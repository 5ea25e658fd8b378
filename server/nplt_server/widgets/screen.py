"""The live screen: what all widgets show, one after the other, in a fixed order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from nplt_server.widgets.base import Widget, WidgetView
from nplt_server.widgets.notebook import NotebookWidget
from nplt_server.widgets.todo import TodoWidget

_HEADING: Final = "# [Live Screen]"

BLANK_SCREEN: Final = f"{_HEADING}\n\nThere is nothing on it any more."
"""Written once when all that was shown is gone: saying nothing would leave the
last screen in force."""


REFUSED: Final = "(what stands here can't be shown; it is shown again once it is changed)"


def default_widgets() -> tuple[Widget, ...]:
    return (NotebookWidget(), TodoWidget())


def render_screen(
    widgets: Sequence[Widget], view: WidgetView, *, refused: Collection[str] = ()
) -> str:
    """Empty if there is nothing to show. `refused`: those whose state a provider did not
    take; it may be worth keeping, so the model is told that it is there."""
    fragments = [
        f"## {widget.name.capitalize()}\n{REFUSED}"
        if widget.name in refused
        else widget.render_live_screen(view)
        for widget in widgets
    ]
    shown = [fragment.rstrip() for fragment in fragments if fragment and not fragment.isspace()]
    return "\n\n".join([_HEADING, *shown]) if shown else ""


def screen_to_write(screen: str, last_shown: str) -> str | None:
    """What the next entry carries, when this one is to be seen and that one was
    shown last; `None`: nothing, the model is up to date."""
    if screen == last_shown or (not screen and last_shown == BLANK_SCREEN):
        return None
    return screen or BLANK_SCREEN
