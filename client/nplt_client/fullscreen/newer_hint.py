"""One line that says there is more below, while the person reads further up."""

from __future__ import annotations

from textual.content import Content
from textual.events import Click
from textual.widgets import Static


class NewerHint(Static):
    DEFAULT_CSS = """
    NewerHint {
        height: 1;
        display: none;
        content-align: center middle;
        color: $text-primary;
        pointer: pointer;
    }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)

    def tell(self, count: int) -> None:
        self.display = count > 0
        self.update(Content(f"↓ {count} new · Ctrl+End"))

    async def on_click(self, event: Click) -> None:
        event.stop()
        await self.run_action("app.go_to_end")
