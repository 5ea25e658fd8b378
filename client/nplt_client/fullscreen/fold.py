"""One line that opens to more when it is clicked, or when Enter is pressed on it.

Reasoning and tool calls are shown this way: a single widget each, redrawn only
when its own words change.
"""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.widgets import Static

_BODY_CHARACTERS_MAX = 20_000


class Fold(Static, can_focus=True):
    DEFAULT_CSS = """
    Fold {
        height: auto;
        margin: 0 2 1 2;
        color: $text-muted;
        pointer: pointer;
        &:focus { background: $boost; color: $text; }
        &:hover { background: $boost; }
        &.-failed { color: $text-error; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "turn_over", "Open or close", show=False)
    ]

    def __init__(self, head: str, body: str = "", *, is_open: bool = False) -> None:
        super().__init__(markup=False)
        self._head = head
        self._body = body
        self.is_open = is_open

    def on_mount(self) -> None:
        self._show()

    @property
    def source(self) -> str:
        return f"{self._head}\n{self._body}"

    def tell(self, head: str, body: str) -> None:
        if (head, body) != (self._head, self._body):
            body_changed = body != self._body
            head_changed = head != self._head
            self._head, self._body = head, body
            if head_changed or (body_changed and self.is_open):
                self._show()

    def open_or_close(self, is_open: bool) -> None:
        if is_open != self.is_open:
            self.is_open = is_open
            self._show()

    def action_turn_over(self) -> None:
        self.open_or_close(not self.is_open)

    def on_click(self, event: Click) -> None:
        event.stop()
        self.action_turn_over()

    def _show(self) -> None:
        lines = [f"{'▾' if self.is_open else '▸'} {self._head}"]
        if self.is_open and self._body:
            body = self._body[:_BODY_CHARACTERS_MAX]
            lines += [f"    {line}" for line in body.split("\n")]
            if len(body) < len(self._body):
                lines.append(f"    … ({len(self._body) - len(body):,} more characters)")
        self.update(Content("\n".join(lines)))
