"""Where the person types: one prompt that stays, whatever is printed above it.

Enter sends; Ctrl+J, Alt+Enter and a backslash before Enter make a new line. A
paste is text, whatever is in it. The prompt is never left between two lines of
a conversation, so nothing typed while an answer comes is lost or echoed by the
terminal itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

from nplt_client.fullscreen.completion import Suggestion
from nplt_client.fullscreen.editor import edit
from nplt_client.fullscreen.prompt_history import PromptHistory
from nplt_client.linemode.keys import Keys, key_bindings
from nplt_client.linemode.margin import Fragment
from nplt_client.sanitize import sanitize, sanitize_line

PROMPT = "you ▸ "
_MENU_ROWS = 6
_LOOK_SECONDS = 0.5
_REDRAW_SECONDS = 1 / 30
_STYLE = Style.from_dict(
    {
        "you": "bold ansigreen",
        "status": "ansibrightblack",
        "waiting": "ansibrightblack italic",
        "question": "bold ansiyellow",
    }
)


class Margin(Protocol):
    def __call__(self, width: int) -> list[Fragment]: ...


class Composer:
    def __init__(
        self,
        keys: Keys,
        history: PromptHistory,
        *,
        margin: Margin,
        suggest: Callable[[str], list[Suggestion]],
    ) -> None:
        self._margin = margin
        self._keys = keys
        self._output = _SteadyOutput(sys.stdout, _size, term=os.environ.get("TERM"))
        self._held: list[str] | None = None
        """While the person is in an editor."""
        self._was_empty = True
        self._session: PromptSession[str] = PromptSession(
            self._message,
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            completer=_SlashCompleter(suggest),
            complete_while_typing=Condition(lambda: self.text.startswith("/")),
            reserve_space_for_menu=_MENU_ROWS,
            history=_Remembered(history),
            key_bindings=key_bindings(keys),
            style=_STYLE,
            enable_suspend=True,
            erase_when_done=True,
            refresh_interval=_LOOK_SECONDS,
            output=self._output,
        )
        app = self._session.app
        app.timeoutlen, app.ttimeoutlen = 0.3, 0.05
        app.min_redraw_interval = _REDRAW_SECONDS
        self._session.default_buffer.on_text_changed += self._typed

    @property
    def text(self) -> str:
        return self._session.default_buffer.text

    @property
    def columns(self) -> int:
        return _size().columns

    async def run(self, draft: str) -> None:
        """Until the person leaves."""
        try:
            with suppress(EOFError):  # the terminal is gone
                await self._session.prompt_async(default=draft)
        finally:
            self._output.let_go()

    def leave(self) -> None:
        if self._session.app.is_running and not self._session.app.is_done:
            self._session.app.exit(result="")

    def fill(self, text: str) -> None:
        self._session.default_buffer.document = Document(sanitize(text))

    def redraw(self) -> None:
        self._session.app.invalidate()

    def put_above(self, text: str) -> None:
        if self._held is not None:
            self._held.append(text)
            return
        app = self._session.app
        if app.is_running:
            app.renderer.erase()
        self.write(text)
        app.invalidate()

    def write(self, text: str) -> None:
        """As it is; nothing that came from outside."""
        self._output.write_raw(text)
        self._output.flush()

    async def edit_draft(self) -> None:
        """In the person's own editor; what is printed meanwhile is printed after it."""
        draft, self._held = self.text, []
        try:
            async with in_terminal():
                text = await asyncio.to_thread(edit, draft)
            self.fill(text)
        finally:
            held, self._held = self._held, None
            self.put_above("".join(held))

    def _message(self) -> StyleAndTextTuples:
        rows = self._margin(self.columns - 1)
        above: StyleAndTextTuples = [(style, f"{row}\n") for style, row in rows]
        return [*above, ("class:you", PROMPT)]

    def _typed(self, buffer: Buffer) -> None:
        if self._was_empty and buffer.text:
            self._keys.line_begins()
        self._was_empty = not buffer.text


class _SteadyOutput(Vt100_Output):
    """Pastes are told apart all the time: a paste that comes just while something is
    printed would be typing otherwise, and its line ends would send it."""

    def __init__(self, stdout: TextIO, get_size: Callable[[], Size], *, term: str | None) -> None:
        # Where the cursor stands is not asked: the answer would come among the keys.
        super().__init__(
            stdout,
            get_size,
            term=term,
            default_color_depth=ColorDepth.from_env(),  # NO_COLOR
            enable_cpr=False,
        )

    def disable_bracketed_paste(self) -> None:
        pass

    def let_go(self) -> None:
        super().disable_bracketed_paste()
        self.flush()


class _Remembered(History):
    """What was typed earlier, also in the full-screen chat."""

    def __init__(self, prompts: PromptHistory) -> None:
        super().__init__()
        self._prompts = prompts

    def load_history_strings(self) -> Iterable[str]:
        return reversed(self._prompts.load())

    def store_string(self, string: str) -> None:
        self._prompts.add(string)


class _SlashCompleter(Completer):
    def __init__(self, suggest: Callable[[str], list[Suggestion]]) -> None:
        self._suggest = suggest

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        typed = document.text_before_cursor
        for one in self._suggest(typed):
            yield Completion(
                sanitize(one.line),
                start_position=-len(typed),
                display=sanitize_line(one.shown),
                display_meta=one.help,
            )


def _size() -> Size:
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return Size(rows=rows or 24, columns=columns or 80)
