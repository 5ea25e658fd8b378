"""The full-screen chat: layout, keys, and the connection of the widgets to the session.

Typed lines go to the session or to the commands; changes from the session are drawn about
thirty times a second at most. No key handler waits for the server: typing and leaving work
in every state of the connection.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import ClassVar, cast

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.events import AppFocus, Resize
from textual.theme import Theme
from textual.widgets import Markdown, Static
from textual.worker import WorkType

from nplt_client.chat import changes
from nplt_client.chat.approvals import ApprovalWanted
from nplt_client.chat.chat_session import ChatOptions, ChatSession, run_chat, status_line
from nplt_client.chat.commands import COMMANDS, take_line
from nplt_client.chat.display import THEMES, ChatDisplay, remembered_theme
from nplt_client.chat.input import (
    TypedAhead,
    edit_in_editor,
    typed_ahead,
)
from nplt_client.chat.prompt_history import PROMPTS_FILE, PromptHistory, PromptRecall
from nplt_client.errors import NpltError
from nplt_client.render.reports import INCOMPLETE
from nplt_client.render.terminal import notification_sequence
from nplt_client.render.text import safe, safe_line
from nplt_client.settings import NotifyBy, find_notify_by, state_dir
from nplt_client.tui.composer import ApprovalPanel, Composer, SuggestionList
from nplt_client.tui.keyboard import install_alt_enter, install_paste_parser
from nplt_client.tui.screens import ChoicePicker, SessionPicker
from nplt_client.tui.transcript import NewerHint, Transcript
from nplt_client.wire.reconnect_policy import Online

FRAME_SECONDS = 1 / 30
PAUSE_PER_WORK = 2
LOOK_SECONDS = 0.5
SPIN_SECONDS = 0.17
SECOND_ESCAPE_SECONDS = 0.3


class StatusLine(Static):
    """The last line of the screen; redrawn only when its words change."""

    DEFAULT_CSS = """
    StatusLine {
        height: 1;
        padding: 0 2;
        color: $text-muted;
        &.-offline { color: $text-warning; text-style: bold; }
    }
    """

    def __init__(self, session: ChatSession) -> None:
        super().__init__(markup=False)
        self._session = session
        self._shown = ""

    def on_mount(self) -> None:
        self.set_interval(LOOK_SECONDS, self.update_words)
        self.set_interval(SPIN_SECONDS, self._spin)
        self.run_worker(self._session.watch_connection(), group="lag")

    def update_words(self) -> None:
        words = status_line(self._session, max(20, self.content_size.width or 80))
        if words != self._shown:
            self._shown = words
            is_online = isinstance(self._session.client.connection, Online)
            self.set_class(not is_online or self._session.is_silent, "-offline")
            self.update(Content(words))

    def _spin(self) -> None:
        if self._session.turn_status.running is not None:
            self.update_words()

    def on_resize(self, event: Resize) -> None:
        self._shown = ""
        self.update_words()


class CommandPalette(Provider):
    """Ctrl+P lists every command with its help, found by a few letters."""

    async def discover(self) -> Hits:
        for shown, run, name in self._commands():
            yield DiscoveryHit(shown, run, help=COMMANDS[name].help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for shown, run, name in self._commands():
            if (score := matcher.match(f"/{name} {COMMANDS[name].help}")) > 0:
                yield Hit(score, shown, run, help=COMMANDS[name].help)

    def _commands(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]], str]]:
        for name, command in COMMANDS.items():
            # The palette would parse a bracket as markup.
            shown = f"/{name} {command.argument}".rstrip().replace("[", r"\[")
            yield shown, partial(cast(ChatApp, self.app).type_command, name), name


DARK = Theme(
    name="dark",
    primary="#7aa2f7",
    secondary="#bb9af7",
    accent="#7dcfff",
    warning="#e0af68",
    error="#f7768e",
    success="#9ece6a",
    foreground="#c8d0e8",
    background="#16161e",
    surface="#1d1f2b",
    panel="#272a3a",
    dark=True,
)
LIGHT = Theme(
    name="light",
    primary="#2e5cb8",
    secondary="#7a3fb0",
    accent="#0b7285",
    warning="#8f5e00",
    error="#b3243b",
    success="#2f6f2f",
    foreground="#24283b",
    background="#fbfbfd",
    surface="#eff0f6",
    panel="#e3e5ef",
    dark=False,
)


class ChatApp(ChatDisplay, App[bool]):
    attaches_mentions = True
    keys_help: Sequence[tuple[str, str]] = (
        ("Enter", "sends; Ctrl+J, Alt+Enter, Shift+Enter or \\ Enter: a new line"),
        ("Up, Down, Ctrl+R", "earlier prompts; Up first takes back one that waits"),
        ("Ctrl+G", "write in your editor"),
        ("Ctrl+O", "open or close reasoning and tool calls"),
        ("Ctrl+P", "all commands"),
        ("Ctrl+L", "all conversations, with those that run, ask or are unread"),
        ("Ctrl+T", "go to the next conversation that asks, failed or is unread"),
        ("PageUp, PageDown, End", "look around; Ctrl+End goes to the end"),
        ("Esc, Ctrl+C", "stop the answer; Ctrl+C twice or Ctrl+D: leave"),
        ("Esc Esc", "also take back all prompts that wait"),
    )

    TITLE = "nplt"
    CSS = """
    ToastRack { dock: top; align: right top; }
    """
    COMMANDS: ClassVar = {CommandPalette}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "Stop", show=False),
        Binding("ctrl+z", "suspend_process", "Suspend", show=False, priority=True),
        Binding("escape", "stop", "Stop", show=False),
        Binding("ctrl+o", "open_or_close_folds", "Folds", show=False, priority=True),
        Binding("ctrl+end", "go_to_end", "End", show=False, priority=True),
        Binding("ctrl+l", "list_conversations", "Conversations", show=False, priority=True),
        Binding("ctrl+t", "go_to_next", "Next that needs you", show=False, priority=True),
    ]

    def __init__(
        self,
        session: ChatSession,
        state_folder: Path,
        *,
        draft: str = "",
        typed: TypedAhead | None = None,
        notify_by: NotifyBy = "bell",
    ) -> None:
        install_alt_enter()
        install_paste_parser()
        colourless = bool(os.environ.get("NO_COLOR"))
        # NO_COLOR means no colours, not greys: textual can only omit the terminal's own ones.
        App.__init__(self, ansi_color=True if colourless else None)
        ChatDisplay.__init__(self, session, state_folder)
        self._hint = NewerHint()
        self.transcript = Transcript(self._hint, self._read_older)
        self.prompts = PromptHistory(state_folder / PROMPTS_FILE)
        self._first_theme = "terminal" if colourless else remembered_theme(self.theme_file)
        self._suggestions = SuggestionList(session, self.pasted)
        self._question = ApprovalPanel(self)
        recall = PromptRecall(self.prompts.load())
        self._composer = Composer(self, recall, self._suggestions, self._question)
        self._status = StatusLine(session)
        self._typed = typed or TypedAhead()
        self._notify_by: NotifyBy = notify_by
        self._draft = draft or self._typed.rest

    @property
    def draft(self) -> str:
        return self.pasted.expand(self._composer.text)

    def compose(self) -> ComposeResult:
        yield self.transcript
        yield self._hint
        yield self._question
        yield self._suggestions
        yield self._composer
        yield self._status

    async def on_mount(self) -> None:
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.theme = THEMES[self._first_theme]
        if self._typed.terminal_modes is not None:
            # Textual restores these modes when it leaves the terminal to an editor or a shell.
            setattr(self._driver, "attrs_before", self._typed.terminal_modes)  # noqa: B010
        self.fill(self._draft)
        self.run_worker(self._begin(), group="connection")

    async def _begin(self) -> None:
        await self.attempt(self.session.move())
        self.run_worker(self._receive_events(), group="connection")
        self.run_worker(self.session.draw_changes(), group="drawing")
        self.run_worker(self.session.elsewhere.follow(), group="connection")
        for line in self._typed.lines:
            self.submit(line)

    async def _receive_events(self) -> None:
        try:
            await self.session.receive_events()
        except NpltError as error:
            lost = changes.NoticeShown(text=safe_line(error.message), is_error=True)
            self.session.change_queue.add([lost])

    def begin(self, work: Awaitable[object]) -> object:
        return self.run_worker(self.attempt(work), group="commands")

    async def show_error(self, error: NpltError) -> None:
        await self.show_text(error.message, is_error=True)

    # Drawing

    async def show(self, turns: changes.Turns, *, has_moved: bool) -> None:
        self._question.close()
        await self.show_again(turns)

    async def show_again(self, turns: changes.Turns) -> None:
        await self.transcript.start_over(turns)
        self.transcript.has_older = self.session.has_older
        if not turns and self.session.turn_status.running is None:
            await self.transcript.show_card(self.first_contact)
        self._refresh_usage()

    async def show_older(self, turns: changes.Turns) -> None:
        self.transcript.has_older = self.session.has_older
        await self.transcript.add_older(turns)

    async def draw(self, change: changes.Change) -> None:
        if isinstance(change, changes.TurnChange):
            words, waiting = "", self.session.turn_status.waiting
            if isinstance(change, changes.PromptShown) and change.turn_id in waiting:
                hint = "; Up takes it back" if change.is_mine else ""
                words = f"… waiting for its turn{hint}"
            await self.transcript.apply(change, waits=words)
            if isinstance(change, changes.TurnEnded):
                self._refresh_usage()
            return
        match change:
            case changes.NoticeShown():  # it was cleared, compacted …
                await self.transcript.add_notice(change)
                self._refresh_usage()
            case changes.ModelChanged():
                self._refresh_usage()
            case ApprovalWanted():
                self._question.ask_next()
                await self.transcript.tool_asks(change.tool_call_id)
            case changes.ApprovalSettled():
                self._question.close(change.approval_id)
            case _:
                pass  # the status line shows it

    @property
    def is_looked_at(self) -> bool:
        return self.app_focus

    def on_app_focus(self, event: AppFocus) -> None:
        self.session.mark_seen()

    def alert(self, words: str) -> None:
        if not self.app_focus and self._driver is not None:
            self._driver.write(notification_sequence(words, self._notify_by))

    async def drawn(self) -> None:
        if await self.transcript.drop_oldest():
            self.session.forget_older_than(self.transcript.first_seq)
        self.transcript.hide_far_turns()
        self._status.update_words()

    async def pause(self, began: float) -> None:
        """Sleeps longer than the drawing took, so that keys are always handled. Textual lays out
        and paints while we sleep."""
        await asyncio.sleep(FRAME_SECONDS)
        await asyncio.sleep(max(0.0, monotonic() - began - FRAME_SECONDS) * PAUSE_PER_WORK)

    def on_resize(self, event: Resize) -> None:
        self._question.fit(event.size.height)

    def _refresh_usage(self) -> None:
        # A function, not a coroutine: that could be cancelled before its first step.
        refreshing: WorkType[None] = self.session.refresh_usage
        self.run_worker(refreshing, group="usage", exclusive=True)

    # Input

    def action_suspend_process(self) -> None:
        """Stops the whole job. Textual would stop only this process, and the shell would not come
        back if the job has others, as under `make run`."""
        if self._driver is not None and self._driver.can_suspend:
            with self.suspend():
                os.kill(0, signal.SIGTSTP)

    def submit(self, text: str) -> None:
        self._composer.recall.remember(text)
        self.begin(take_line(self, text, self.pasted.take_noted()))

    async def sending(self, message_id: str, text: str) -> None:
        prompt = changes.PromptShown(turn_id="", text=safe(text), message_id=message_id)
        await self.transcript.begin(prompt)

    async def refused(self, message_id: str, text: str) -> None:
        await self.transcript.take_back(message_id)
        if not self.draft:  # the text is selected, so typing replaces it
            self._composer.replace_text(text)
            self._composer.select_all()

    async def type_command(self, name: str) -> None:
        """Runs a command from the palette, or puts it into the input if it needs an argument."""
        argument = COMMANDS[name].argument
        if argument and not argument.startswith("["):
            self.fill(f"/{name} ")
        else:
            await self.attempt(take_line(self, f"/{name}"))

    def on_text_area_changed(self) -> None:
        self._suggestions.look_up(self._composer.text)

    def forget_prompts(self, texts: Collection[str]) -> None:
        self._composer.recall.forget(texts)

    # Called by commands

    @property
    def answers(self) -> list[str]:
        return [turn.answer for turn in self.transcript.turns]

    async def show_raw(self, is_raw: bool) -> None:
        await super().show_raw(is_raw)
        await self.transcript.show_raw(is_raw)

    async def show_text(self, text: str, *, is_error: bool = False) -> None:
        await self.transcript.add_notice(changes.NoticeShown(text=safe(text), is_error=is_error))
        self.transcript.go_to_end()

    def remark(self, text: str) -> None:
        """Shows a toast. While a question or a window is open, which a toast would cover, shows a
        notice."""
        if self._question.wanted is None and not self.has_window:
            self.notify(safe_line(text), markup=False)
        else:
            notice = changes.NoticeShown(text=safe_line(text))
            self.run_worker(self.transcript.add_notice(notice), group="drawing")

    @property
    def has_window(self) -> bool:
        """Whether a window covers the chat: a list to choose from, the palette."""
        return len(self.screen_stack) > 1

    def fill(self, text: str) -> None:
        self._composer.replace_text(text)
        self._composer.focus()

    def clear_draft(self) -> None:
        self._composer.load_text("")

    async def choose(
        self,
        title: str,
        choices: Sequence[str],
        marked: str | None = None,
        about: Mapping[str, str] | None = None,
    ) -> str | None:
        picker = ChoicePicker(title, choices, marked=marked, about=about or {})
        place = await self.push_screen_wait(picker)
        return None if place is None else choices[int(place)]

    async def show_sessions(self, wanted: str) -> None:
        """Opens the list of conversations. Deleting the current one switches to a new one."""
        client, here = self.session.client, self.session.client.session_id
        rows = [row async for row in client.sessions()]
        if client.list_is_incomplete:
            self.remark(INCOMPLETE)
        picker = SessionPicker(rows, client, wanted)
        chosen = await self.push_screen_wait(picker)
        if chosen is None:
            if client.session_id != here:
                await self.session.move(client.attach(client.session_id))
            return
        if chosen != client.session_id:
            await self.session.move(client.switch(chosen))
        if seq := picker.seq_found_in(chosen):
            async with self.transcript.going_to(seq):
                if not await self.session.show_back_to(seq):
                    self.remark("what was found is further up than this shows")

    async def search(self, wanted: str) -> None:
        await self.show_sessions(wanted)

    async def show_history(self, count: int | None) -> None:
        shown = 0
        while shown < (count or 1):
            before = len(self.transcript.turns)
            if not await self.session.show_older():
                self.remark("this is all there is")
                break
            shown += max(1, len(self.transcript.turns) - before)
        self.transcript.look_at_top()

    def set_theme(self, name: str) -> None:
        self.theme = THEMES[name]
        super().set_theme(name)

    def copy(self, text: str) -> None:
        self.copy_to_clipboard(text)
        self.remark(f"copied {len(text):,} characters")

    def leave(self, *, reconnect: bool = False) -> None:
        self.exit(reconnect)
        self.workers.cancel_all()  # they would draw on a closed screen

    # Keys

    def action_interrupt(self) -> None:
        if selected := self.screen.get_selected_text():
            self.copy(selected)
            self.screen.clear_selection()
        elif self.can_stop:
            self.action_stop()
        else:
            self.press_interrupt()

    def action_stop(self) -> None:
        if self._suggestions.is_open:
            self._suggestions.close()
        else:
            self.press_escape()

    def begin_stopping(self, work: Callable[[], Awaitable[object]]) -> None:
        """Starts `work`; that of a second Esc replaces that of the first."""

        async def attempt() -> None:
            await self.attempt(work())

        # A function, not a coroutine: that could be cancelled before its first step.
        stopping: WorkType[None] = attempt
        self.run_worker(stopping, group="stopping", exclusive=True)

    async def stop(self) -> None:
        """Stops the answer. If prompts are queued, it first waits for a second Esc, because the
        next prompt would begin."""
        if self.session.has_queued:
            await asyncio.sleep(SECOND_ESCAPE_SECONDS)
        await super().stop()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disables suspending in the list of conversations, where Ctrl+Z undoes a deletion."""
        if action == "suspend_process" and isinstance(self.screen, SessionPicker):
            return False
        if action in ("list_conversations", "go_to_next") and self.has_window:
            return False
        return super().check_action(action, parameters)

    def action_open_or_close_folds(self) -> None:
        self.transcript.open_or_close_folds()

    def action_go_to_end(self) -> None:
        self.transcript.go_to_end()

    def action_scroll_transcript(self, direction: int) -> None:
        if direction < 0:
            self.transcript.release_anchor()
            self.transcript.scroll_page_up(animate=False)
        else:
            self.transcript.scroll_page_down(animate=False)

    @work(group="choosing")
    async def action_list_conversations(self) -> None:
        await self.attempt(self.show_sessions(""))

    @work(group="choosing")
    async def action_go_to_next(self) -> None:
        await self.attempt(self.go_to_next())

    @work(group="choosing")
    async def action_search_prompts(self) -> None:
        chosen = await self.choose("earlier prompts", self._composer.recall.newest_first)
        if chosen is not None:
            self.fill(chosen)

    async def action_edit_in_editor(self) -> None:
        try:
            with self.suspend():
                text = edit_in_editor(self._composer.text)
            self.fill(text)
        except NpltError as error:
            await self.show_error(error)
        self.refresh()

    # Called by the transcript

    def _read_older(self) -> None:
        if isinstance(self.session.client.connection, Online):
            self.run_worker(self.attempt(self.session.show_older()), group="older", exclusive=True)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        self.copy_to_clipboard(event.href)
        self.remark(f"copied the address {event.href}")


def run_full_screen_chat(options: ChatOptions) -> int:
    """Runs the chat. Until there is a connection, errors are printed as lines."""

    async def talk(session: ChatSession, draft: str) -> tuple[int, str | None]:
        with typed_ahead() as typed:
            folder = Path(state_dir())
            app = ChatApp(session, folder, draft=draft, typed=typed, notify_by=find_notify_by())
            wants_reconnect = await app.run_async()
        return app.return_code or 0, app.draft if wants_reconnect else None

    return run_chat(options, talk)
