"""The screen: transcript, suggestions, input, status line; and the keys.

It decides little: what is typed goes to `visit` or `commands`, what comes from
there is drawn. One task listens, another draws, some thirty times a second at
most. Nothing here waits for the server while a key is handled: typing and
leaving work whatever the connection does.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Markdown

from nplt_client.chat_vocabulary import prompt_in
from nplt_client.connection_states import Offline, Online
from nplt_client.errors import NpltError
from nplt_client.fullscreen.alt_enter import understand_alt_enter
from nplt_client.fullscreen.approval_screen import ApprovalScreen
from nplt_client.fullscreen.approving import Approving
from nplt_client.fullscreen.changes import PromptShown, Told
from nplt_client.fullscreen.choice_screen import ChoiceScreen
from nplt_client.fullscreen.commands import COMMANDS, run_command
from nplt_client.fullscreen.completion import Suggestion, suggestions
from nplt_client.fullscreen.composer import Composer
from nplt_client.fullscreen.drafting import search, write
from nplt_client.fullscreen.drawing import Drawing
from nplt_client.fullscreen.newer_hint import NewerHint
from nplt_client.fullscreen.palette import SlashCommands
from nplt_client.fullscreen.pasting import understand_pastes
from nplt_client.fullscreen.prompt_history import PromptHistory
from nplt_client.fullscreen.recall import Recall
from nplt_client.fullscreen.safe_text import safe, safe_line
from nplt_client.fullscreen.sending import send_when_possible
from nplt_client.fullscreen.session_picking import pick
from nplt_client.fullscreen.status_line import StatusLine
from nplt_client.fullscreen.stopping import Stopping
from nplt_client.fullscreen.suggestion_list import SuggestionList
from nplt_client.fullscreen.theme_choice import THEMES, remember_theme, remembered_theme
from nplt_client.fullscreen.themes import DARK, LIGHT
from nplt_client.fullscreen.transcript import Transcript
from nplt_client.fullscreen.visit import Visit, new_message_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Anew:
    """The person wants another connection, and to go on in it with this draft."""

    draft: str


class ChatApp(App[Anew | None]):
    TITLE = "nplt"
    CSS = """
    ToastRack { dock: top; align: right top; }
    """
    COMMANDS: ClassVar = {SlashCommands}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "Stop", show=False),
        Binding("ctrl+z", "suspend_process", "Suspend", show=False, priority=True),
        Binding("escape", "stop", "Stop", show=False),
        Binding("ctrl+o", "open_or_close_folds", "Folds", show=False, priority=True),
        Binding("ctrl+end", "go_to_end", "End", show=False, priority=True),
    ]

    def __init__(self, visit: Visit, state_folder: Path, *, draft: str = "") -> None:
        understand_alt_enter()
        understand_pastes()
        colourless = bool(os.environ.get("NO_COLOR"))
        # None at all, not grey ones: only the terminal's own colours can be left out.
        super().__init__(ansi_color=True if colourless else None)
        self.visit = visit
        self.transcript = Transcript()
        self._history = PromptHistory(state_folder / "prompts.jsonl")
        self._theme_file = state_folder / "theme"
        self._first_theme = "terminal" if colourless else remembered_theme(self._theme_file)
        self._suggestions = SuggestionList(self._suggest)
        self._composer = Composer(Recall(self._history.load()), self._suggestions)
        self._hint = NewerHint()
        self._status = StatusLine(visit)
        self._approving = Approving(visit.client, self, self._composer.type_on)
        self._drawing = Drawing(
            visit,
            self.transcript,
            ask_approval=self._approving.ask,
            settle_approval=self._approving.settle,
            weigh=self._weigh,
            after=self._status.look,
        )
        self._stopping = Stopping(visit)
        self._draft = draft

    def compose(self) -> ComposeResult:
        yield self.transcript
        yield self._hint
        yield self._suggestions
        yield self._composer
        yield self._status

    async def on_mount(self) -> None:
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.theme = THEMES[self._first_theme]
        self.fill(self._draft)
        self.run_worker(self._begin(), group="connection")

    # Two tasks: one listens, one draws

    async def _begin(self) -> None:
        await self._attempt(self._drawing.start_over(None))
        self.run_worker(self._listen(), group="connection")
        self.run_worker(self._drawing.draw_on(), group="drawing")

    async def _listen(self) -> None:
        try:
            await self.visit.follow()
        except NpltError as error:
            self.visit.gathering.add([Told(text=safe_line(error.message), is_error=True)])

    def _weigh(self) -> None:
        self.run_worker(self.visit.weigh(), group="weighing", exclusive=True)

    async def _attempt(self, deed: Awaitable[object]) -> None:
        """Whatever goes wrong with it is said where it is seen, and the chat goes on."""
        try:
            await deed
        except NpltError as error:
            await self.transcript.tell(Told(text=safe(error.message), is_error=True))
            self.transcript.go_to_end()

    # What the person says

    def on_composer_sent(self, event: Composer.Sent) -> None:
        text = event.text
        if self._composer.recall.remember(text):
            self._history.add(text)
        prompt = prompt_in(text)
        deed = run_command(self, text) if prompt is None else self.ask(prompt)
        self.run_worker(self._attempt(deed), group="deeds")

    async def ask(self, text: str) -> None:
        message_id = new_message_id()
        prompt = PromptShown(turn_id="", text=safe(text), message_id=message_id)
        await self.transcript.begin(prompt)
        try:
            await send_when_possible(self.visit, text, message_id)
        except NpltError:
            await self.transcript.take_back(message_id)
            self._composer.give_back(text)
            raise

    async def type_command(self, line: str, *, at_once: bool) -> None:
        if at_once:
            await self._attempt(run_command(self, line))
        else:
            self.fill(f"{line} ")

    def on_composer_leaving(self) -> None:
        self.leave()

    def on_text_area_changed(self) -> None:
        self._suggestions.look(self._composer.text)

    def _suggest(self, typed: str) -> list[Suggestion]:
        arguments = {"model": self.visit.client.welcome.models, "theme": tuple(THEMES)}
        arguments |= dict.fromkeys(("allow", "deny"), ("always",))
        return suggestions(typed, COMMANDS, arguments)

    # What commands may do (`Floor`)

    async def tell(self, text: str) -> None:
        await self.transcript.tell(Told(text=safe(text)))
        self.transcript.go_to_end()

    def remark(self, text: str) -> None:
        self.notify(safe_line(text), markup=False)

    async def go(self, going: Awaitable[object]) -> None:
        self._approving.forget()
        await self._drawing.start_over(going)

    async def read_again(self) -> None:
        await self._drawing.read_again()

    async def show_older(self) -> bool:
        return await self._drawing.show_older()

    def fill(self, text: str) -> None:
        self._composer.replace_text(text)
        self._composer.focus()

    async def choose(
        self, title: str, choices: Sequence[str], marked: str | None = None
    ) -> str | None:
        screen = ChoiceScreen(title, choices, marked=marked)
        key = await self.push_screen_wait(screen)
        return screen.choice(key) if key is not None else None

    async def pick_session(self, wanted: str) -> None:
        going = await pick(self.visit.client, wanted, self.push_screen_wait)
        if going is not None:
            await self.go(going)

    async def decide(self, *, allow: bool, remember: bool) -> None:
        await self._approving.decide_oldest(allow=allow, remember=remember)

    def wear(self, theme: str) -> None:
        self.theme = THEMES[theme]
        remember_theme(self._theme_file, theme)

    def copy(self, text: str) -> None:
        self.copy_to_clipboard(text)
        self.remark(f"copied {len(text):,} characters")

    def reconnect(self) -> None:
        client = self.visit.client
        if isinstance(client.connection, Online):
            self.remark("the connection stands")
        elif isinstance(client.connection, Offline):
            self.exit(Anew(draft=self._composer.text))
        else:
            client.reconnect_now()

    def leave(self) -> None:
        self.exit()

    def open_approval(self, screen: ApprovalScreen) -> None:
        async def ask() -> None:
            verdict = await self.push_screen_wait(screen)
            await self._attempt(self._approving.decided(screen.wanted, verdict))

        self.run_worker(ask(), group="approvals")

    # Keys

    def action_interrupt(self) -> None:
        if selected := self.screen.get_selected_text():
            self.copy(selected)
            self.screen.clear_selection()
        elif self._stopping.is_possible:
            self.action_stop()
        elif self._composer.text:
            self._composer.take()
            self.visit.replace_from = None
        elif self._stopping.is_second_press():
            self.leave()
        else:
            self.remark(self._stopping.how_to_leave)

    def action_stop(self) -> None:
        if self._suggestions.is_open:
            self._suggestions.close()
        elif self._stopping.is_possible:
            self.run_worker(self._attempt(self._stopping.stop()), group="deeds")
        elif self._stopping.why_not:
            self.remark(self._stopping.why_not)

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

    def action_search_prompts(self) -> None:
        self.run_worker(search(self, self._composer.recall.newest_first), group="choosing")

    async def action_edit_in_editor(self) -> None:
        await self._attempt(write(self, self._composer.text))
        self.refresh()

    # What the transcript asks for

    def on_transcript_newer_counted(self, event: Transcript.NewerCounted) -> None:
        self._hint.tell(event.count)

    def on_transcript_older_wanted(self) -> None:
        if isinstance(self.visit.client.connection, Online):
            self.run_worker(self._attempt(self.show_older()), group="older", exclusive=True)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        self.copy_to_clipboard(event.href)
        self.remark(f"copied the address {event.href}")
