"""The base of both line chats: sends typed lines and prints the events of the conversation.

`PromptChat` (composer.py) keeps an input line below the scrollback during answers
(`--no-alt-screen`). `PlainChat` (plain_terminal.py) reads a line, prints its answer and
reads the next one: for pipes, dumb terminals and `--plain`. This module imports neither
prompt_toolkit nor rich.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import assert_never

from nplt_client.chat import changes
from nplt_client.chat.approvals import ApprovalWanted, parse_decision
from nplt_client.chat.chat_session import ChatSession
from nplt_client.chat.commands import take_line
from nplt_client.chat.display import ChatDisplay
from nplt_client.errors import NpltError
from nplt_client.render.reports import INCOMPLETE, history_text, hits_text, sessions_table
from nplt_client.render.terminal import clipboard_sequence, print_remark
from nplt_client.render.text import pairs, safe, safe_line
from nplt_client.wire.reconnect_policy import ConnectionState, Online, Reconnecting
from nplt_protocol.messages import SearchHit

_HITS_MAX = 50
_MESSAGES_SHOWN = 20


class LineChat(ChatDisplay):
    """The base class of both line chats; subclasses read and print."""

    is_interactive = True
    """Whether a person types; False for a pipe."""
    is_sequential = False
    """Whether the next line is read only when the answer to the previous one is complete."""
    exit_code = 0

    def __init__(self, session: ChatSession, folder: Path) -> None:
        super().__init__(session, folder)
        self.waits_for_server = not self.is_interactive
        self._tasks: set[asyncio.Task[None]] = set()
        self._wants_reconnect = False
        self._was_lost = False
        self._last_remark = ""
        self._seen_by_line: str | None = None
        self._broken: BaseException | None = None

    # Implemented by subclasses

    async def run(self, draft: str) -> str:
        """Reads until the person leaves or the input ends; returns the unsent draft."""
        raise NotImplementedError

    def end_input(self) -> None: ...

    async def show_turns(self, turns: changes.Turns, *, has_moved: bool) -> None: ...

    def apply(self, change: changes.TurnChange) -> None: ...

    def put_activity(self, change: changes.ActivityChanged) -> None: ...

    def put_question(self, wanted: ApprovalWanted) -> None: ...

    def put_line(self, text: str, *, is_news: bool = False, is_error: bool = False) -> None:
        """Prints the result of a command, or news that this chat did not cause."""

    def put_listing(self, text: str) -> None: ...

    def put_error(self, error: NpltError) -> None: ...

    def put_raw(self, text: str) -> None:
        """Writes an escape sequence to the terminal."""

    def flush(self) -> None: ...

    # Running the chat

    async def talk(self, draft: str = "") -> tuple[int, str | None]:
        """Runs the chat until the person leaves or the input ends (`Talk`)."""
        entering = self.begin(self.session.move())
        self.begin(self._receive_events())
        self.begin(self.session.draw_changes())
        if self.is_interactive:
            self.begin(self.session.elsewhere.follow())
        try:
            if self.is_sequential:
                await entering
            unsent = await self.run(draft)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._broken is not None:
            raise self._broken
        return self.exit_code, unsent if self._wants_reconnect else None

    async def _receive_events(self) -> None:
        """Receives events. When the server is lost for good, a person sees an error and may
        retry; a script ends."""
        try:
            await self.session.receive_events()
        except NpltError as error:
            if self.is_interactive:
                raise
            self._broken = error
            await self.session.draw_waiting()
            self.leave()

    def begin(self, work: Awaitable[object]) -> asyncio.Task[None]:
        task = asyncio.create_task(self.attempt(work))
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Ends the chat after an unexpected error."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error
            self.leave()

    # Input

    def submit(self, text: str) -> None:
        self.begin(self.take(text, self.pasted.take_noted()))

    async def take(self, text: str, not_typed: Sequence[str] = ()) -> None:
        """Handles a typed line: a decision, a command or a prompt. It is a decision only if the
        question was shown before its first character was typed."""
        oldest, decision = self.session.approvals.oldest, parse_decision(text)
        if oldest and decision and oldest.approval_id == self._seen_by_line:
            self.remark(await self.session.approvals.decide_oldest(decision))
        else:
            await take_line(self, text, not_typed)

    def line_begins(self) -> None:
        """Records the question that is shown when the first character of a line is typed."""
        oldest = self.session.approvals.oldest
        self._seen_by_line = oldest.approval_id if oldest else None

    # Drawing

    async def show(self, turns: changes.Turns, *, has_moved: bool) -> None:
        name, is_new = self.session.name, self.session.is_new
        if has_moved and name:
            self.remark(f"in the new conversation {name!r}" if is_new else f"in {name!r}")
        elif has_moved:
            self.remark("in a new conversation" if is_new else "in a conversation without a name")
        elif not turns and self.is_interactive:
            await self.show_text(self.first_contact)
        await self.show_turns(turns, has_moved=has_moved)
        self.refresh_usage()

    async def draw(self, change: changes.Change) -> None:
        if isinstance(change, changes.TurnChange):
            self.apply(change)
            if isinstance(change, changes.TurnBegan):
                self._last_remark = ""
            if isinstance(change, changes.TurnEnded):
                self.refresh_usage()
            return
        match change:
            case changes.NoticeShown():  # it was cleared, compacted …
                self.remark(change.text, is_news=True, is_error=change.is_error)
                self.refresh_usage()
            case ApprovalWanted():
                self.put_question(change)
            case changes.ApprovalSettled():
                self.remark(change.words, is_news=True)
            case changes.Renamed():
                self.remark(f"this conversation is now called {change.name!r}", is_news=True)
            case changes.ModelChanged():
                self.remark(f"the model is now {change.model}", is_news=True)
                self.refresh_usage()
            case changes.ActivityChanged():
                self.put_activity(change)
            case changes.PresenceChanged() | changes.TranscriptOutdated():
                pass
            case _:
                assert_never(change)

    async def drawn(self) -> None:
        self.flush()

    def connection_changed(self, state: ConnectionState) -> None:
        """Prints one line when the connection is lost and one when it is back; the status line
        shows attempts."""
        match state:
            case Reconnecting(attempt=1) if state.in_seconds:
                self._was_lost = True
                if not self.session.is_server_stopping:  # that was said
                    self.remark(f"{state.reason}; reconnecting …", is_news=True)
            case Online() if self._was_lost:
                self._was_lost = False
                self.remark("online again", is_news=True)
            case _:
                self.flush()

    def refresh_usage(self) -> None:
        if not self.is_sequential:  # only these have a status line
            self.begin(self.session.refresh_usage())

    # Called by commands

    async def show_error(self, error: NpltError) -> None:
        self.put_error(error)
        self.flush()

    async def show_text(self, text: str) -> None:
        self._last_remark = ""
        self.put_listing(safe(text))
        self.flush()

    def remark(self, text: str, *, is_news: bool = False, is_error: bool = False) -> None:
        """Prints a line, but not twice in a row: an event may repeat the result of our own
        command."""
        text = safe_line(text)
        if text != self._last_remark:
            self._last_remark = text
            self.put_line(text, is_news=is_news, is_error=is_error)
            self.flush()

    async def sending(self, message_id: str, text: str) -> None:
        self._last_remark = ""

    async def choose(
        self,
        title: str,
        choices: Sequence[str],
        marked: str | None = None,
        about: Mapping[str, str] | None = None,
    ) -> str | None:
        rows = [
            (f"{'*' if one == marked else ' '} {safe_line(one)}", (about or {}).get(one, ""))
            for one in choices
        ]
        await self.show_text(pairs(rows))
        return None

    async def show_sessions(self, wanted: str) -> None:
        rows = [row async for row in self.session.client.sessions(wanted or None)]
        none = f"no conversations match {wanted!r}" if wanted else "no conversations yet"
        await self.show_text(sessions_table(rows) if rows else none)
        if self.session.client.list_is_incomplete:
            self.remark(INCOMPLETE)

    async def show_history(self, count: int | None) -> None:
        page = await self.session.client.history(count or _MESSAGES_SHOWN)
        await self.show_text(history_text(page))

    async def search(self, wanted: str) -> None:
        hits: list[SearchHit] = []
        async for hit in self.session.client.search(wanted):
            hits.append(hit)
            if len(hits) == _HITS_MAX:
                break
        await self.show_text(hits_text(hits) if hits else f"nothing was found for {wanted!r}")

    def set_theme(self, name: str) -> None:
        super().set_theme(name)
        self.remark(f"the theme is now {name}")

    def copy(self, text: str) -> None:
        self.put_raw(clipboard_sequence(text))
        self.remark(f"copied {len(text):,} characters")

    def leave(self, *, reconnect: bool = False) -> None:
        self._wants_reconnect = reconnect
        self.end_input()


def print_banner(session: ChatSession) -> None:
    server = session.client.welcome.server
    print_remark(f"{server} · {session.model} · /help for help", dimmed=True)
