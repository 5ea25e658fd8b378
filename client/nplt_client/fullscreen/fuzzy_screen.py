"""A window with a line to type in and a list that follows it.

The base of what chooses one of many: conversations, earlier prompts. Subclasses
say what there is (`rows`) and what the typed words leave of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key, Paste
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from nplt_client.fullscreen.keys_in_order import obey
from nplt_client.fullscreen.safe_text import safe_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    key: str
    shown: Content


class WantedLine(Input):
    """What is looked for. It gets all keys, so that each finds what those before it have done."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "screen.move(1)", "Next", show=False),
        Binding("up", "screen.move(-1)", "Previous", show=False),
        Binding("pagedown", "screen.move(10)", "Further", show=False),
        Binding("pageup", "screen.move(-10)", "Back", show=False),
        Binding("enter", "screen.enter", "Take it", show=False),
        Binding("escape,ctrl+c", "screen.leave", "Back", show=False),
        Binding("ctrl+n", "screen.rename", "Rename", show=False),
        Binding("ctrl+x", "screen.delete", "Delete", show=False),
    ]

    async def _on_key(self, event: Key) -> None:
        await obey(self, event, self.write)

    def write(self, text: str) -> None:
        self.replace(text, *self.selection)

    def _on_paste(self, event: Paste) -> None:
        event.prevent_default()
        event.stop()
        self.write(safe_line(event.text))

    def replace_text(self, text: str) -> None:
        self.value = safe_line(text)
        self.cursor_position = len(self.value)


class FuzzyScreen(ModalScreen[str | None]):
    DEFAULT_CSS = """
    FuzzyScreen {
        align: center middle;
        #window {
            width: 90%; max-width: 120; height: 80%;
            border: round $primary; background: $surface; padding: 0 1;
        }
        Input, Input:focus {
            border: none; height: 1; margin: 0 0 1 0; padding: 0; background: transparent;
        }
        OptionList { height: 1fr; border: none; background: transparent; padding: 0; }
        OptionList:nocolor > .option-list--option-highlighted { text-style: reverse; }
        #below { height: auto; max-height: 8; color: $text-muted; margin: 1 0 0 0; }
        #keys { height: 1; color: $text-muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "leave", "Back", show=False),
    ]
    WINDOW_TITLE = ""
    KEYS_HELP = "Enter takes it · Esc goes back"

    def __init__(self) -> None:
        super().__init__()
        self._looked_for: str | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="window") as window:
            window.border_title = self.WINDOW_TITLE
            yield WantedLine(placeholder="type to find", id="wanted")
            yield OptionList(id="found", markup=False)
            yield Static(id="below", markup=False)
            yield Static(Content(self.KEYS_HELP), id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one("#found").can_focus = False
        self.query_one(WantedLine).focus()
        self.begin()

    def begin(self) -> None:
        self.look()

    def rows(self, wanted: str) -> Sequence[Row]:
        raise NotImplementedError

    def about(self, key: str) -> str:
        """More about the one that is marked, shown below the list."""
        return ""

    @property
    def wanted(self) -> str:
        return self.query_one(WantedLine).value

    @property
    def marked(self) -> str | None:
        options = self.query_one(OptionList)
        if options.highlighted is None or not options.option_count:
            return None
        return options.get_option_at_index(options.highlighted).id

    def look(self) -> None:
        """Shows anew what the typed words leave; the mark stays on its row if it can."""
        options, marked = self.query_one(OptionList), self.marked
        rows = self.rows(self.wanted)
        self._looked_for = self.wanted
        options.set_options(Option(row.shown, id=row.key) for row in rows)
        keys = [row.key for row in rows]
        if rows:
            options.highlighted = keys.index(marked) if marked in keys else 0
        else:
            self.query_one("#below", Static).update(Content("nothing matches"))

    # Textual calls the `on_…` of every class of the family: subclasses change these instead.

    def type_on(self, typed: str) -> None:
        self.look()

    def enter(self, typed: str) -> None:
        if self.marked is not None:
            self.dismiss(self.marked)

    def mark(self, key: str) -> None:
        self.query_one("#below", Static).update(Content(self.about(key)))

    def catch_up(self) -> None:
        """With what was typed, before a key that depends on it."""
        if self.wanted != self._looked_for:
            self._looked_for = self.wanted
            self.type_on(self.wanted)

    def on_input_changed(self) -> None:
        self.catch_up()

    def action_enter(self) -> None:
        self.catch_up()
        self.enter(self.wanted)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option.id == self.marked:  # else the list has changed since
            self.mark(event.option.id or "")

    def action_move(self, step: int) -> None:
        self.catch_up()
        options = self.query_one(OptionList)
        if options.option_count:
            place = (options.highlighted or 0) + step
            options.highlighted = max(0, min(place, options.option_count - 1))

    def action_leave(self) -> None:
        self.dismiss(None)
