"""A tool waits for a yes or a no; what it would be given is shown exactly.

The window opens under the fingers of someone who may be typing. So nothing is
decided by a key that was meant for the input: what is typed goes on into the
input until there was a pause, and then it takes a letter and Enter. Esc leaves
the question open: `/allow` and `/deny` answer it later, and when its time is
over it is denied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, TypeAlias

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key, Paste, Resize
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Static

from nplt_client.fullscreen.changes import ApprovalWanted
from nplt_client.fullscreen.keys_in_order import is_part_of_writing

Verdict: TypeAlias = Literal["allow", "deny", "always"]

PAUSE_SECONDS = 1.0
_LETTERS: dict[str, tuple[Verdict, str]] = {
    "y": ("allow", "allows it"),
    "n": ("deny", "denies it"),
    "a": ("always", "allows this tool from now on"),
}
_WRITING_KEYS = frozenset({"enter", "backspace", "ctrl+j", "alt+enter", "shift+enter", "ctrl+u"})
_LATER = "Esc later (/allow, /deny)"
_TYPING = f"What you type goes into the input. Pause to answer · {_LATER}"
_ASKING = f"y yes · n no · a always for this tool, and Enter · {_LATER}"
_ROWS_AROUND = 13
"""Border, question and keys of a narrow window, and the input below it."""
_ARGUMENT_ROWS_MIN, _ARGUMENT_ROWS_MAX = 3, 16


class ApprovalScreen(ModalScreen[Verdict | None]):
    DEFAULT_CSS = """
    ApprovalScreen {
        align: center top;
        #window {
            width: 90%; max-width: 100; height: auto; max-height: 100%;
            border: round $warning; background: $surface; padding: 0 1;
        }
        #question { max-height: 2; }
        VerticalScroll { height: auto; }
        #arguments { height: auto; }
        #keys { height: auto; max-height: 4; color: $text-muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "leave", "Later", show=False, priority=True),
    ]

    def __init__(self, wanted: ApprovalWanted, pass_on: Callable[[Key | Paste], None]) -> None:
        super().__init__()
        self.wanted = wanted
        self._pass_on = pass_on
        self._pause: Timer | None = None
        self._asks = False
        self._letter: Key | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="window") as window:
            window.border_title = "a tool asks"
            yield Static(
                Content.assemble("May ", (self.wanted.tool_name, "bold"), " run with this?"),
                id="question",
                markup=False,
            )
            with VerticalScroll():
                yield Static(Content(self.wanted.arguments), id="arguments", markup=False)
            yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self._wait_for_a_pause()

    def on_resize(self, event: Resize) -> None:
        rows = min(event.size.height - _ROWS_AROUND, _ARGUMENT_ROWS_MAX)
        self.query_one(VerticalScroll).styles.max_height = max(rows, _ARGUMENT_ROWS_MIN)

    def on_key(self, event: Key) -> None:
        if self._asks and self._letter is None and event.key in _LETTERS:
            self._letter = event
            self._say(f"Enter {_LETTERS[event.key][1]} · any other key takes it back")
        elif self._letter is not None and event.key == "enter":
            self.dismiss(_LETTERS[self._letter.key][0])
        elif self._letter is not None and event.key == "backspace":
            self._wait_for_a_pause()
        elif _is_writing(event):
            if self._letter is not None:  # it was the beginning of something else
                self._pass_on(self._letter)
            self._pass_on(event)
            self._wait_for_a_pause()
        else:
            return
        event.stop()

    def on_paste(self, event: Paste) -> None:
        event.stop()
        self._pass_on(event)
        self._wait_for_a_pause()

    def _wait_for_a_pause(self) -> None:
        if self._pause is not None:
            self._pause.stop()
        self._asks = False
        self._letter = None
        self._say(_TYPING)
        self._pause = self.set_timer(PAUSE_SECONDS, self._ask)

    def _ask(self) -> None:
        self._asks = True
        self._say(_ASKING)

    def _say(self, words: str) -> None:
        self.query_one("#keys", Static).update(Content(words))

    def action_leave(self) -> None:
        self.dismiss(None)


def _is_writing(event: Key) -> bool:
    character = event.character
    is_written = character is not None and is_part_of_writing(character)
    return event.is_printable or is_written or event.key in _WRITING_KEYS
