"""Where the person types.

Enter sends; Ctrl+J, Alt+Enter, Shift+Enter and a backslash before Enter make a
new line. A paste is text, whatever is in it. Up on the first line and Down on
the last go through earlier prompts; while suggestions are open they choose one.
The terminal's own cursor stands where the next character goes, so that input
methods (Chinese, Japanese, Korean) open their windows there.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from textual.binding import Binding, BindingType
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from nplt_client.fullscreen.keys_in_order import obey
from nplt_client.fullscreen.recall import Recall
from nplt_client.fullscreen.safe_text import safe

ROWS_MAX = 10
_NEW_LINE_KEYS = frozenset({"ctrl+j", "alt+enter", "shift+enter", "ctrl+enter"})
_CHOOSING_KEYS = frozenset({"tab", "up", "down", "enter"})


class Suggestions(Protocol):
    """What a half-typed line could become."""

    @property
    def chosen(self) -> str: ...
    def look(self, typed: str) -> bool: ...
    def move(self, step: int) -> None: ...


class Composer(TextArea):
    DEFAULT_CSS = f"""
    Composer {{
        height: auto;
        max-height: {ROWS_MAX + 2};
        border: round $border-blurred;
        padding: 0 1;
        background: transparent;
        &:focus {{ border: round $primary; }}
        & .text-area--cursor-line {{ background: transparent; }}
    }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "app.search_prompts", "Earlier prompts", show=False),
        Binding("ctrl+g", "app.edit_in_editor", "Editor", show=False),
        Binding("ctrl+underscore", "undo", "Undo", show=False),
        Binding("ctrl+c", "app.interrupt", "Stop", show=False),
        Binding("escape", "app.stop", "Stop", show=False),
        Binding("pageup", "app.scroll_transcript(-1)", "Page up", show=False),
        Binding("pagedown", "app.scroll_transcript(1)", "Page down", show=False),
    ]

    class Sent(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Leaving(Message):
        """Ctrl+D in an empty input."""

    def __init__(self, recall: Recall, suggestions: Suggestions) -> None:
        super().__init__(
            soft_wrap=True,
            tab_behavior="focus",
            show_line_numbers=False,
            highlight_cursor_line=False,
            placeholder="Ask something. / for commands, Ctrl+J for a new line",
        )
        self.recall = recall
        self._suggestions = suggestions

    def load_text(self, text: str) -> None:
        """Whoever lays a text in here (an old prompt, a file's name, an editor): it is safe."""
        super().load_text(safe(text))

    def replace_text(self, text: str) -> None:
        self.load_text(text)
        self.move_cursor(self.document.end)

    def give_back(self, text: str) -> None:
        """What could not be sent, marked: whatever is typed now takes its place."""
        if not self.text:
            self.replace_text(text)
            self.select_all()

    def take(self) -> str:
        """What was typed; the input is empty after it."""
        text = self.text
        self.load_text("")
        return text

    def on_resize(self) -> None:
        """Where it stands is known only now; textual looks at its next key."""
        self.call_after_refresh(self._place_cursor)

    def _place_cursor(self) -> None:
        if self.has_focus:
            self.app.cursor_position = self.cursor_screen_offset

    @property
    def _row(self) -> int:
        """As it is seen: a long line takes several."""
        return self.wrapped_document.location_to_offset(self.cursor_location).y

    async def _on_key(self, event: Key) -> None:
        if self._is_for_us(event.key):
            event.stop()
            event.prevent_default()
        else:
            await obey(self, event, self.write)

    def _is_for_us(self, key: str) -> bool:
        if key in _CHOOSING_KEYS and self._suggestions.look(self.text):
            self._choose(key)
        elif key == "enter":
            self._send_or_break()
        elif key in _NEW_LINE_KEYS:
            self.insert("\n")
        elif key == "ctrl+d" and not self.text:
            self.post_message(self.Leaving())
        elif key == "tab":
            pass  # the focus stays here; Ctrl+O and the mouse open what is folded
        elif key == "up" and self._row == 0:
            self._recall(self.recall.older(self.text))
        elif key == "down" and self._row == self.wrapped_document.height - 1:
            self._recall(self.recall.newer(self.text))
        else:
            return False
        return True

    def _choose(self, key: str) -> None:
        match key:
            case "up":
                self._suggestions.move(-1)
            case "down":
                self._suggestions.move(1)
            case _:
                line = self._suggestions.chosen
                self.replace_text(line)
                if key == "enter" and not line.endswith((" ", "/")):
                    self._send()

    def _send_or_break(self) -> None:
        row, column = self.cursor_location
        if self.document.get_line(row)[:column].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column))
        elif self.text.strip():
            self._send()

    def _send(self) -> None:
        """Taken at once: what is typed from now on is the next one."""
        self.post_message(self.Sent(self.take()))

    def _recall(self, prompt: str | None) -> None:
        if prompt is not None:
            self.replace_text(prompt)

    def type_on(self, event: Key | Paste) -> None:
        """What was typed into a window that opened meanwhile; anew: that event has had its way."""
        again = Paste(event.text) if isinstance(event, Paste) else Key(event.key, event.character)
        self.post_message(again)

    async def _on_paste(self, event: Paste) -> None:
        event.prevent_default()
        event.stop()
        self.write(safe(event.text))

    def write(self, text: str) -> None:
        result = self.replace(text, *self.selection)
        self.move_cursor(result.end_location)
