"""The input field, and the completions and approval questions above it.

The input keeps the focus and passes some keys on to them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key, Paste, Resize
from textual.timer import Timer
from textual.widgets import Static, TextArea

from nplt_client.chat import approvals
from nplt_client.chat.approvals import (
    ARROWS,
    CHOICES,
    ApprovalDecision,
    ApprovalWanted,
    OpenQuestion,
)
from nplt_client.chat.chat_session import ChatSession
from nplt_client.chat.display import ChatDisplay
from nplt_client.chat.input import COMMANDS_WITH_NAMES, Suggestion, suggestions
from nplt_client.chat.prompt_history import PromptRecall
from nplt_client.chat.prompt_text import PastedTexts
from nplt_client.render.text import pad, safe, safe_line, width_of
from nplt_client.tui.keyboard import handle_key_now, is_text_character
from nplt_client.tui.screens import PickerScreen

ROWS_MAX = 10
_NEW_LINE_KEYS = frozenset({"ctrl+j", "alt+enter", "shift+enter", "ctrl+enter"})
_CHOOSING_KEYS = frozenset({"tab", "up", "down", "enter"})


class Composer(TextArea):
    """The input field.

    Enter sends; Ctrl+J, Alt+Enter, Shift+Enter and a backslash before Enter insert a newline.
    A paste is always text. Up on the first line and Down on the last go through earlier
    prompts; while suggestions are open they choose one. The terminal's own cursor is at the
    insertion point, so that input methods open their windows there.
    """

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

    def __init__(
        self,
        chat: ChatDisplay,
        recall: PromptRecall,
        suggestions: SuggestionList,
        question: ApprovalPanel,
    ) -> None:
        super().__init__(
            soft_wrap=True,
            tab_behavior="focus",
            show_line_numbers=False,
            highlight_cursor_line=False,
            placeholder="Ask something. / for commands, Ctrl+J for a new line",
        )
        self.recall = recall
        self._chat = chat
        self._suggestions = suggestions
        self._question = question

    def load_text(self, text: str) -> None:
        """Sanitizes the text, which may be an old prompt or a file's name."""
        super().load_text(safe(text))

    def replace_text(self, text: str) -> None:
        self.load_text(text)
        self.move_cursor(self.document.end)

    def on_resize(self) -> None:
        """Moves the terminal's cursor now; textual would do it at the next key."""

        def place_cursor() -> None:
            if self.has_focus:
                self.app.cursor_position = self.cursor_screen_offset

        self.call_after_refresh(place_cursor)

    @property
    def _row(self) -> int:
        """The row of the cursor on the screen; a wrapped line has several."""
        return self.wrapped_document.location_to_offset(self.cursor_location).y

    async def _on_key(self, event: Key) -> None:
        letter = self._question.letter
        is_decision_key = self._question.take_key(event, has_draft=bool(self.text))
        if not is_decision_key and letter and not self._question.letter:
            self.write(letter)  # the letter was the beginning of a text
        if is_decision_key or self._act_on_key(event.key):
            event.stop()
            event.prevent_default()
        else:
            await handle_key_now(self, event, self.write)

    def _act_on_key(self, key: str) -> bool:
        if self._suggestions.look_up(self.text) and key in self._suggestions.keys:
            self._choose(key)
        elif key == "enter":
            self._send_or_break()
        elif key in _NEW_LINE_KEYS:
            self.insert("\n")
        elif key == "ctrl+d" and not self.text:
            self._chat.leave()
        elif key == "tab":
            pass  # the focus stays here; Ctrl+O and the mouse open folds
        elif key == "up" and not self.text and self._chat.take_back():
            pass
        elif key == "up" and self._row == 0:
            self._recall(self.recall.older(self.text))
        elif key == "down" and self._row == self.wrapped_document.height - 1:
            self._recall(self.recall.newer(self.text))
        else:
            return False
        return True

    def _choose(self, key: str) -> None:
        if key in ("up", "down"):
            self._suggestions.move(-1 if key == "up" else 1)
            return
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
        """Empties the input at once, so that typing goes into the next prompt."""
        text = self._chat.pasted.take_prompt(self.text)
        self.load_text("")
        self._chat.submit(text)

    def _recall(self, prompt: str | None) -> None:
        if prompt is not None:
            self.replace_text(prompt)

    async def _on_paste(self, event: Paste) -> None:
        event.prevent_default()
        event.stop()
        self.write(self._question.interrupt() + self._chat.pasted.take(safe(event.text)))

    def action_delete_left(self) -> None:
        """Deletes the chip of a paste as a whole."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        chip = "" if self.selected_text else self._chat.pasted.chip_before(before)
        if chip:
            self.delete((row, column - len(chip)), (row, column))
        else:
            super().action_delete_left()

    def write(self, text: str) -> None:
        result = self.replace(text, *self.selection)
        self.move_cursor(result.end_location)


_ROWS_MAX = 8


class SuggestionList(Static):
    """The suggestions above the input, which keeps the focus.

    They are looked up at every key that depends on them, not only when the screen is redrawn,
    so that fast typing is never completed from outdated suggestions.
    """

    DEFAULT_CSS = """
    SuggestionList {
        height: auto;
        max-height: 8;
        margin: 0 2;
        background: $surface;
        display: none;
    }
    """

    def __init__(self, session: ChatSession, pasted: PastedTexts) -> None:
        super().__init__(markup=False)
        self._session = session
        self._pasted = pasted
        self._typed = ""
        self._found: list[Suggestion] = []
        self._chosen = 0

    @property
    def is_open(self) -> bool:
        return bool(self._found)

    @property
    def chosen(self) -> str:
        return self._found[self._chosen].line

    @property
    def keys(self) -> Collection[str]:
        """The keys that choose a suggestion."""
        is_by_tab = any(one.is_by_tab for one in self._found)
        return ("tab",) if is_by_tab else _CHOOSING_KEYS

    def look_up(self, typed: str) -> bool:
        """Finds suggestions; returns whether there are any."""
        if typed != self._typed:
            wants_names = typed.startswith(COMMANDS_WITH_NAMES)
            if wants_names and not self._typed.startswith(COMMANDS_WITH_NAMES):
                self.run_worker(self._refresh_names())
            self._typed = typed
            self._offer()
        return self.is_open

    async def _refresh_names(self) -> None:
        await self._session.refresh_names()
        if self._typed.startswith(COMMANDS_WITH_NAMES):
            self._offer()

    def _offer(self) -> None:
        models = self._session.client.welcome.models
        self._found = suggestions(self._typed, models, self._session.names, self._pasted)
        self._chosen = 0
        self.display = self.is_open
        if self.is_open:
            self._show()

    def close(self) -> None:
        """Hides the suggestions until something else is typed."""
        self._found = []
        self.display = False

    def move(self, step: int) -> None:
        self._chosen = (self._chosen + step) % len(self._found)
        self._show()

    def _show(self) -> None:
        first = max(0, min(self._chosen - _ROWS_MAX // 2, len(self._found) - _ROWS_MAX))
        rows = self._found[first : first + _ROWS_MAX]
        shown = [safe_line(one.shown, 60) for one in rows]
        width = max(map(width_of, shown))
        lines: list[Content] = []
        for place, (words, one) in enumerate(zip(shown, rows, strict=True), first):
            style = "reverse" if place == self._chosen else ""
            lines.append(Content.styled(f" {pad(words, width)}  {one.help} ", style))
        self.update(Content("\n").join(lines))


_WRITING_KEYS = frozenset({"enter", "backspace", "ctrl+j", "alt+enter", "shift+enter", "ctrl+u"})
_PAGES = {"pageup": -1, "pagedown": 1}
_MEANINGS = {"y": "allows it once", "n": "denies it", "a": "allows this tool from now on"}
_LATER = "Esc later (/allow, /deny)"
_TYPING = f"Pause typing to decide · {_LATER}"
_ASKING = f"y, n, a or arrows, then Enter · {_LATER}"
_ROWS_AROUND = 10
"""The rows for question, choices and keys, input and status."""
_ARGUMENT_ROWS_MIN, _ARGUMENT_ROWS_MAX = 3, 16


class ApprovalPanel(Vertical):
    """The approval question above the input, with the exact arguments of the tool.

    It may open while the person is typing, and a key that was meant for the input never decides
    (`OpenQuestion`). Arrows choose while the input is empty. Esc leaves the question open:
    `/allow` and `/deny` decide it later, and when it expires it is denied.
    """

    DEFAULT_CSS = """
    ApprovalPanel {
        height: auto;
        margin: 0 1;
        padding: 0 1;
        border-left: outer $warning;
        background: $surface;
        display: none;
        #question { height: auto; max-height: 2; }
        VerticalScroll { height: auto; scrollbar-size-vertical: 1; }
        #arguments { height: auto; }
        #choices { height: 1; }
        #keys { height: auto; max-height: 3; color: $text-muted; }
    }
    """

    def __init__(self, chat: ChatDisplay) -> None:
        super().__init__()
        self.letter = ""
        """The typed letter that marked the answer. The next key may show that it was text."""
        self._chat = chat
        self._question = OpenQuestion()
        self._pause: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="question", markup=False)
        with VerticalScroll(can_focus=False):
            yield Static(id="arguments", markup=False)
        yield Static(id="choices", markup=False)
        yield Static(id="keys", markup=False)

    @property
    def wanted(self) -> ApprovalWanted | None:
        return self._question.wanted

    def ask_next(self) -> None:
        """Shows the next question, if none is open."""
        if self.wanted is not None:
            return
        waiting = self._chat.session.approvals
        wanted = waiting.take_next_question()
        self.ask(wanted, more=waiting.not_asked)
        if wanted is not None:
            self.app.clear_notifications()
            self.screen.query_one(Composer).focus()
        else:
            self._make_room()

    def close(self, approval_id: str | None = None) -> None:
        """Closes the question with this id, or any by default, and asks the next one."""
        if self.wanted is not None and approval_id in (None, self.wanted.approval_id):
            self.ask(None)
            self.ask_next()

    def _decide(self, wanted: ApprovalWanted, decision: ApprovalDecision | None) -> None:
        """Closes the question, and sends the decision unless it is put off."""
        self.close(wanted.approval_id)
        if decision is not None:
            deciding = self._chat.session.approvals.decide(wanted, decision)
            self.app.run_worker(self._chat.attempt(deciding), group="approvals")

    def _make_room(self) -> None:
        """Moves an open picker up, above the question."""
        words = f"{self.wanted.tool_name} waits for you · Esc" if self.wanted else ""
        for screen in self.app.screen_stack:
            if isinstance(screen, PickerScreen):
                screen.give_way(words, self.app.size.height - self.region.y)

    def ask(self, wanted: ApprovalWanted | None, *, more: int = 0) -> None:
        """Shows a question, or none. `more` is the number of questions after it."""
        self._question.open(wanted)
        self.letter = ""
        self.display = wanted is not None
        if wanted is None:
            return
        waiting = f" ({more} more after it)" if more > 0 else ""
        words = Content.assemble(
            "May the tool ", (wanted.tool_name, "bold"), " run with this?", waiting
        )
        self.query_one("#question", Static).update(words)
        self.query_one("#arguments", Static).update(Content(wanted.arguments))
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self._wait_for_a_pause()

    def fit(self, screen_rows: int) -> None:
        rows = min(screen_rows - _ROWS_AROUND, _ARGUMENT_ROWS_MAX)
        self.query_one(VerticalScroll).styles.max_height = max(rows, _ARGUMENT_ROWS_MIN)

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._show_keys)
        self.app.call_later(self._make_room)

    def take_key(self, event: Key, *, has_draft: bool) -> bool:
        """Returns False if the key is for the input."""
        question, key = self._question, event.key
        if question.wanted is None:
            return False
        if key == "escape":
            self._decide(question.wanted, None)
        elif key in _PAGES and self._can_scroll:
            scrolled = self.query_one(VerticalScroll)
            scrolled.scroll_relative(y=_PAGES[key] * scrolled.size.height, animate=False)
        elif key == "enter" and question.decision is not None:
            self._decide(question.wanted, question.decision)
        elif key == "backspace" and question.marked:
            self._wait_for_a_pause()
        elif key in ARROWS and question.listens and not has_draft:
            self.letter = ""
            question.move_mark(ARROWS[key])
            self._show_keys()
        elif key in _MEANINGS and question.listens and not self.letter:
            self.letter = key
            question.marked = key
            self._show_keys()
        else:
            character = event.character or ""
            is_written = event.is_printable or is_text_character(character)
            if is_written or key in _WRITING_KEYS:
                self._wait_for_a_pause()
            return False
        return True

    def interrupt(self) -> str:
        """Called when other text is put into the input; returns the letter typed before it."""
        letter = self.letter
        if self._question.wanted is not None:
            self._wait_for_a_pause()
        return letter

    def _wait_for_a_pause(self) -> None:
        self._question.note_typing()
        self.letter = ""
        if self._pause is not None:
            self._pause.stop()
        # The timer runs a little longer, since its clock may differ from ours.
        self._pause = self.set_timer(approvals.PAUSE_SECONDS + 0.01, self._show_keys)
        self._show_keys()

    @property
    def _can_scroll(self) -> bool:
        return self.query_one(VerticalScroll).max_scroll_y > 0

    def _show_keys(self) -> None:
        marked, listens = self._question.marked, self._question.listens
        shown = [
            Content.styled(f" {letter} {words} ", "reverse" if letter == marked else "")
            for letter, words in CHOICES
        ]
        self.query_one("#choices", Static).update(Content(" ").join(shown))
        if marked:
            words = f"Enter {_MEANINGS[marked]} · any other key takes it back"
        else:
            words = _ASKING if listens else _TYPING
        if self._can_scroll:
            words = f"PageDown: more · {words}"
        self.query_one("#keys", Static).update(Content(words))
