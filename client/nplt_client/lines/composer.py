"""The line chat with prompt_toolkit and rich.

An input line stays below the scrollback, with status rows above it. Enter sends; Ctrl+J,
Alt+Enter and a backslash before Enter insert a newline. A paste is always text. Editing is
prompt_toolkit's own, as in Emacs and readline. The input stays open between two lines, so
nothing typed during an answer is lost or echoed twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completion, DummyCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, Filter, has_focus, is_searching
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys as Named
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

from nplt_client.chat.approvals import (
    ARROWS,
    CHOICES,
    ApprovalDecision,
    ApprovalWanted,
    OpenQuestion,
)
from nplt_client.chat.changes import TurnChange, Turns
from nplt_client.chat.chat_session import ChatOptions, ChatSession, run_chat, status_line
from nplt_client.chat.display import remembered_theme
from nplt_client.chat.input import (
    COMMANDS_WITH_NAMES,
    edit_in_editor,
    suggestions,
    typed_ahead,
)
from nplt_client.chat.prompt_history import PROMPTS_FILE, PromptHistory
from nplt_client.chat.prompt_text import MENTION_AT_END, PastedTexts
from nplt_client.errors import NpltError
from nplt_client.lines.line_chat import LineChat, print_banner
from nplt_client.lines.printer import ChangePrinter
from nplt_client.render.scrollback import ScrollbackWriter
from nplt_client.render.terminal import exact_stream, notification_sequence
from nplt_client.render.text import safe, sanitize, sanitize_line, shorten, width_of
from nplt_client.settings import NotifyBy, find_notify_by, state_dir

PROMPT = "you ▸ "
TAIL_ROWS_MAX = 8
WAITING_ROWS_MAX = 3
_ARGUMENT_ROWS_MAX = 12
_TURNS_SHOWN = 3
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
_TYPING = has_focus(DEFAULT_BUFFER) & ~is_searching

FOCUS_KEYS = {Named.ControlF23: True, Named.ControlF24: False}
"""Keys that no keyboard has, used to report that the terminal gained or lost the focus."""
ANSI_SEQUENCES.update({"\x1b[I": Named.ControlF23, "\x1b[O": Named.ControlF24})


def status_rows(
    width: int, *, unfinished: str, waiting: Sequence[str], question: Sequence[str], status: str
) -> Iterator[tuple[str, str]]:
    """Yields style and text of the rows between the scrollback and the input: the end of the
    unfinished block, queued prompts, an open question, the status. They are few, so that the
    input stays visible."""
    if rows := tail(unfinished, width=width, rows_max=TAIL_ROWS_MAX):
        yield "", ""  # an empty row, as in the scrollback
        yield from (("", row) for row in rows)
    for prompt in waiting[:WAITING_ROWS_MAX]:
        yield "class:waiting", shorten(f"… {' '.join(prompt.split())}", width)
    if (more := len(waiting) - WAITING_ROWS_MAX) > 0:
        yield "class:waiting", f"… and {more} more"
    for row in question:
        yield "class:question", shorten(row, width)
    yield "class:status", shorten(status, width)


def tail(text: str, *, width: int, rows_max: int) -> list[str]:
    """Returns the last rows of a text, wrapped at that width."""
    # Earlier text can't be visible, however narrow its characters are.
    near = text[-4 * width * rows_max :].rstrip("\n").expandtabs(4)
    rows = [row for line in near.split("\n")[-rows_max:] for row in _broken(line, width)]
    return rows[-rows_max:] if near.strip() else []


def _broken(line: str, width: int) -> Iterator[str]:
    row = ""
    used = 0
    for character in line:
        cells = width_of(character)
        if used + cells > width:
            yield row
            row, used = "", 0
        row += character
        used += cells
    yield row


class PromptChat(LineChat):
    """The chat for a terminal that can be drawn on."""

    attaches_mentions = True

    keys_help: Sequence[tuple[str, str]] = (
        ("Enter", "sends; Ctrl+J, Alt+Enter or \\ Enter: a new line"),
        ("Up, Down, Ctrl+R", "earlier prompts; Up first takes back one that waits"),
        ("Ctrl+G", "write in your editor"),
        ("Esc, Ctrl+C", "stop the answer; Ctrl+C twice or Ctrl+D: leave"),
        ("Esc Esc", "also take back all prompts that wait"),
    )

    def __init__(
        self,
        session: ChatSession,
        folder: Path,
        *,
        typed_lines: Sequence[str] = (),
        notify_by: NotifyBy = "bell",
    ) -> None:
        """`typed_lines` are lines that were typed before the prompt appeared."""
        super().__init__(session, folder)
        self._notify_by: NotifyBy = notify_by
        self._has_focus = True
        self._typed_lines = typed_lines
        self._question = OpenQuestion()
        self._scrollback = ScrollbackWriter(self._put_above, lambda: _size().columns)
        self._scrollback.theme = remembered_theme(self.theme_file)
        self._printer = ChangePrinter(self._scrollback, self._name_of_others)
        self._output = _BracketedPasteOutput()
        self._held: list[str] | None = None
        """Output that waits until the external editor is closed; `None` if none is open."""
        self._was_empty = True
        self.prompts = PromptHistory(folder / PROMPTS_FILE)
        self._recalled = _RecalledPrompts(self.prompts)
        self._prompt: PromptSession[str] = PromptSession(
            self._message,
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            completer=_PromptCompleter(session, self.pasted),
            complete_while_typing=Condition(self._completes_while_typing),
            reserve_space_for_menu=_MENU_ROWS,
            history=self._recalled,
            key_bindings=self._key_bindings(),
            style=_STYLE,
            erase_when_done=True,
            refresh_interval=_LOOK_SECONDS,
            output=self._output,
        )
        app = self._prompt.app
        app.timeoutlen, app.ttimeoutlen = 0.3, 0.05
        app.min_redraw_interval = _REDRAW_SECONDS
        self._prompt.default_buffer.on_text_changed += self._text_changed

    # Reading

    @property
    def answers(self) -> Sequence[str]:
        return self._printer.answers

    @property
    def draft(self) -> str:
        return self.pasted.expand(self._prompt.default_buffer.text)

    async def run(self, draft: str) -> str:
        self.begin(self._take_typed_lines())
        self.begin(self.session.watch_connection())
        self._output.report_focus(True)
        try:
            with suppress(EOFError):  # the terminal was closed
                await self._prompt.prompt_async(default=draft)
        finally:
            self._output.release()
        return self.draft

    async def _take_typed_lines(self) -> None:
        for line in self._typed_lines:
            self._prompt.default_buffer.history.append_string(line)
            await self.take(line)

    def end_input(self) -> None:
        if self._prompt.app.is_running and not self._prompt.app.is_done:
            self._prompt.app.exit(result="")

    def fill(self, text: str) -> None:
        self._prompt.default_buffer.document = Document(sanitize(text))

    def forget_prompts(self, texts: Collection[str]) -> None:
        self._recalled.forget(texts)
        buffer = self._prompt.default_buffer
        buffer.reset(buffer.document)  # which reads the history again

    def clear_draft(self) -> None:
        buffer = self._prompt.default_buffer
        buffer.reset()
        buffer.on_text_changed.fire()  # `reset` does not fire it

    async def _edit_draft(self) -> None:
        """Opens an external editor; output waits until it is closed."""
        draft, self._held = self.draft, []
        try:
            async with self._without_us():
                text = await asyncio.to_thread(edit_in_editor, draft)
            self.fill(text)
        finally:
            held, self._held = self._held, None
            self._put_above("".join(held))

    @asynccontextmanager
    async def _without_us(self) -> AsyncIterator[None]:
        """Leaves the terminal to an editor or to the shell."""
        async with in_terminal():
            self._output.report_focus(False)
            try:
                yield
            finally:
                self._output.report_focus(True)

    def _completes_while_typing(self) -> bool:
        typed = self._prompt.default_buffer.document.text_before_cursor
        return typed.startswith("/") or MENTION_AT_END.search(typed) is not None

    def _text_changed(self, buffer: Buffer) -> None:
        if self._was_empty and buffer.text:
            self.line_begins()
        self._was_empty = not buffer.text
        self._question.note_typing()

    # Keys

    def _key_bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        def bind(
            *keys: Named | str, to: Callable[[KeyPressEvent], object], when: Filter = _TYPING
        ) -> None:
            def handle(event: KeyPressEvent) -> None:
                to(event)  # not returned: prompt_toolkit would await the result

            bindings.add(*keys, filter=when)(handle)

        bind("enter", to=self._send_or_break)
        bind("c-j", to=lambda event: event.current_buffer.insert_text("\n"))
        bind("escape", "enter", to=lambda event: event.current_buffer.insert_text("\n"))
        bind(
            Named.BracketedPaste,
            to=lambda event: event.current_buffer.insert_text(
                self.pasted.take(sanitize(event.data))
            ),
        )
        bind("c-g", to=lambda _: self.begin(self._edit_draft()))
        bind("escape", to=self._stop)
        bind("escape", "escape", to=lambda _: self.begin(self.empty_queue()))
        bind("c-c", to=lambda _: self.press_interrupt())
        bind("c-d", to=self._leave_or_delete)
        bind("c-z", to=lambda _: self.begin(self._suspend()))
        can_take_back = Condition(lambda: not self.draft and self.session.has_queued)
        bind("up", to=lambda _: self.take_back(), when=_TYPING & can_take_back)
        can_choose = Condition(lambda: not self.draft and self._question.listens)
        for key, step in ARROWS.items():
            bind(key, to=partial(self._move_mark, step), when=_TYPING & can_choose)
        bindings.add("<sigint>")(lambda _: self.press_interrupt())
        for named, is_gained in FOCUS_KEYS.items():
            bindings.add(named)(partial(self._focus_changed, is_gained))
        return bindings

    def _focus_changed(self, is_gained: bool, event: KeyPressEvent) -> None:
        self._has_focus = is_gained
        self.session.mark_seen()

    @property
    def is_looked_at(self) -> bool:
        return self._has_focus

    def alert(self, words: str) -> None:
        if not self._has_focus:
            self.put_raw(notification_sequence(words, self._notify_by))

    async def _suspend(self) -> None:
        async with self._without_us():
            os.kill(0, signal.SIGTSTP)

    def _send_or_break(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        chosen = buffer.complete_state and buffer.complete_state.current_completion
        buffer.complete_state = None
        if chosen and buffer.text.endswith((" ", "/")):
            return  # the command needs an argument
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        elif not buffer.text and (decision := self._question.decision) is not None:
            self.begin(self._decide(decision))
        elif buffer.text.strip():
            text = self.pasted.take_prompt(buffer.text)
            buffer.append_to_history()
            self.clear_draft()
            self.submit(text)

    def _move_mark(self, step: int, event: KeyPressEvent) -> None:
        self._question.move_mark(step)

    async def _decide(self, decision: ApprovalDecision) -> None:
        if (wanted := self._question.wanted) is not None:
            self._question.note_typing()
            self.remark(await self.session.approvals.decide(wanted, decision))

    def _stop(self, event: KeyPressEvent) -> None:
        if event.current_buffer.complete_state is not None:
            event.current_buffer.cancel_completion()
        else:
            self.press_escape()

    def _leave_or_delete(self, event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.delete()
        else:
            self.leave()

    # Printing

    async def show_raw(self, is_raw: bool) -> None:
        await super().show_raw(is_raw)
        self._scrollback.is_raw = is_raw

    async def show_turns(self, turns: Turns, *, has_moved: bool) -> None:
        self._printer.start_over()
        self._printer.catch_up(turns[-_TURNS_SHOWN:], self.session.turn_status.waiting)

    async def show_again(self, turns: Turns) -> None:
        """Prints what is missing, starting with the first known turn."""
        known = (place for place, (turn_id, _) in enumerate(turns) if self._printer.knows(turn_id))
        self._printer.catch_up(turns[next(known, 0) :], self.session.turn_status.waiting)
        self.refresh_usage()

    def apply(self, change: TurnChange) -> None:
        self._printer.apply(change)

    def put_question(self, wanted: ApprovalWanted) -> None:
        """Opens a question, which `flush` shows above the input. Arguments that are too long for
        that are printed."""
        if _fitting(wanted.arguments, _size()) is None:
            words = f"{wanted.tool_name} wants to be run with\n{wanted.arguments}"
            self._scrollback.listing(words)

    def put_line(self, text: str, *, is_news: bool = False, is_error: bool = False) -> None:
        self._scrollback.remark(f"· {text}", is_error=is_error)

    def put_listing(self, text: str) -> None:
        self._scrollback.listing(text)

    def put_error(self, error: NpltError) -> None:
        self._scrollback.remark(f"✗ {safe(error.message)}", is_error=True)

    def flush(self) -> None:
        self._question.open(self.session.approvals.oldest)
        self._scrollback.flush()
        self._prompt.app.invalidate()

    async def sending(self, message_id: str, text: str) -> None:
        await super().sending(message_id, text)
        self._printer.unsent[message_id] = safe(text)
        self._prompt.app.invalidate()

    def accepted(self, message_id: str, turn_id: str) -> None:
        self._printer.unsent.pop(message_id, None)

    async def refused(self, message_id: str, text: str) -> None:
        """Puts the prompt back into the input, selected, so that typing replaces it."""
        self._printer.unsent.pop(message_id, None)
        if not self.draft:
            self.fill(text)
            buffer = self._prompt.default_buffer
            buffer.cursor_position = 0
            buffer.start_selection()
            buffer.cursor_position = len(buffer.text)
            if buffer.selection_state is not None:
                buffer.selection_state.enter_shift_mode()

    def set_theme(self, name: str) -> None:
        self._scrollback.theme = name
        super().set_theme(name)

    def _name_of_others(self) -> str:
        others = self.session.others
        if len(others) != 1:
            return "someone"
        return "you, elsewhere" if others[0].endswith(" more window") else others[0]

    def _message(self) -> StyleAndTextTuples:
        size = _size()
        width = size.columns - 1
        rows = status_rows(
            width,
            unfinished=self._printer.unfinished,
            waiting=self._printer.waiting,
            question=tuple(_question_rows(self._question, size)),
            status=status_line(self.session, width),
        )
        return [*((style, f"{row}\n") for style, row in rows), ("class:you", PROMPT)]

    def _put_above(self, text: str) -> None:
        if self._held is not None:
            self._held.append(text)
            return
        app = self._prompt.app
        if app.is_running:
            app.renderer.erase()
        self.put_raw(text)
        app.invalidate()

    def put_raw(self, text: str) -> None:
        self._output.write_raw(text)
        self._output.flush()


def _question_rows(question: OpenQuestion, size: Size) -> Iterator[str]:
    if (wanted := question.wanted) is None:
        return
    arguments = _fitting(wanted.arguments, size)
    if arguments is None:
        yield f"may the tool {wanted.tool_name} run? (its arguments are above)"
    else:
        yield f"may the tool {wanted.tool_name} run with this?"
        yield from arguments
    yield " ".join(
        f"[{letter} {words}]" if letter == question.marked else f" {letter} {words} "
        for letter, words in CHOICES
    )
    yield "letter or arrows, then Enter" if question.listens else "letter, then Enter"


def _fitting(arguments: str, size: Size) -> list[str] | None:
    """Returns the arguments as rows above the input; `None` if there would be too many."""
    rows_max = min(_ARGUMENT_ROWS_MAX, size.rows // 2 - 2)
    if len(arguments) > rows_max * size.columns:
        return None
    lines = arguments.expandtabs(4).split("\n")
    rows = [row for line in lines for row in _broken(line, size.columns - 1)]
    return rows if len(rows) <= rows_max else None


class _BracketedPasteOutput(Vt100_Output):
    """Keeps bracketed paste on. Otherwise a paste during printing would be treated as typing,
    and its newlines would send it."""

    def __init__(self) -> None:
        # The cursor's position is not requested: the reply would come between the keys.
        super().__init__(
            exact_stream(sys.stdout),
            _size,
            term=os.environ.get("TERM"),
            default_color_depth=ColorDepth.from_env(),  # NO_COLOR
            enable_cpr=False,
        )

    def disable_bracketed_paste(self) -> None:
        pass

    def report_focus(self, is_wanted: bool) -> None:
        """Makes the terminal report focus changes, as `FOCUS_KEYS`."""
        self.write_raw("\x1b[?1004h" if is_wanted else "\x1b[?1004l")
        self.flush()

    def release(self) -> None:
        self.report_focus(False)
        super().disable_bracketed_paste()
        self.flush()


class _RecalledPrompts(History):
    """The prompts that Up brings back. `ChatDisplay.ask` stores them."""

    def __init__(self, prompts: PromptHistory) -> None:
        super().__init__()
        self._prompts = prompts

    def load_history_strings(self) -> Iterable[str]:
        return reversed(self._prompts.load())

    def store_string(self, string: str) -> None:
        pass

    def forget(self, texts: Collection[str]) -> None:
        self._loaded_strings = [one for one in self._loaded_strings if one not in texts]


class _PromptCompleter(DummyCompleter):
    """Completes commands, files after `@`, and opens a long paste."""

    def __init__(self, session: ChatSession, pasted: PastedTexts) -> None:
        self._session = session
        self._pasted = pasted

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        session, typed = self._session, document.text_before_cursor
        if typed in COMMANDS_WITH_NAMES:
            await session.refresh_names()
        models = session.client.welcome.models
        for one in suggestions(typed, models, session.names, self._pasted):
            line, shown = sanitize(one.line), sanitize_line(one.shown)
            yield Completion(line, -len(typed), display=shown, display_meta=one.help)


def _size() -> Size:
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return Size(rows=rows or 24, columns=columns or 80)


def run_line_chat(options: ChatOptions) -> int:
    """Runs the chat of `--no-alt-screen`: an input line below the scrollback."""

    async def talk(session: ChatSession, draft: str) -> tuple[int, str | None]:
        print_banner(session)
        with typed_ahead() as typed:
            folder, notify_by = Path(state_dir()), find_notify_by()
            chat = PromptChat(session, folder, typed_lines=typed.lines, notify_by=notify_by)
            return await chat.talk(draft or typed.rest)

    return run_chat(options, talk)
