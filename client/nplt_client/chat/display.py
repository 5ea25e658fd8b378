"""The base of all chats: what they do with typed lines, commands and keys.

`ChatDisplay` is the base of the full-screen chat (`tui.app`) and of the line chats
(`lines.app`). The session calls it to draw (`show` to `alert`), the commands to act on
the chat they were typed in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from nplt_client.chat import changes
from nplt_client.chat.chat_session import ChatSession, StopControl, new_message_id
from nplt_client.chat.commands import parse_prompt, remember_theme, run_command
from nplt_client.errors import NpltError
from nplt_client.render.reports import first_contact_text
from nplt_client.wire.reconnect_policy import ConnectionState


class ChatDisplay:
    keys_help: Sequence[tuple[str, str]] = ()
    waits_for_server = False
    """Without a connection, commands wait for one instead of failing (for scripts)."""
    is_raw = False

    def __init__(self, session: ChatSession, folder: Path) -> None:
        """`folder`: where prompts and the theme are remembered."""
        self.session = session
        self.stop_control = StopControl(session)
        self.theme_file = folder / "theme"
        session.display = self

    # What a display is asked to draw, by the session; one call at a time

    async def show(self, turns: changes.Turns, *, has_moved: bool) -> None:
        """Shows a conversation from scratch."""

    async def show_again(self, turns: changes.Turns) -> None:
        """Shows the same conversation again: events were missed, or messages rolled back."""

    async def show_older(self, turns: changes.Turns) -> None: ...

    async def draw(self, change: changes.Change) -> None: ...

    async def drawn(self) -> None:
        """Called after all changes that had arrived were drawn."""

    async def pause(self, began: float) -> None:
        """Waits before the next round of drawing. `began`: the time this one began."""

    def connection_changed(self, state: ConnectionState) -> None: ...

    def alert(self, words: str) -> None:
        """Tells a person who looks at another window."""

    # What else a display has of its own

    @property
    def answers(self) -> Sequence[str]:
        """The texts of the answers that are shown, the newest last."""
        raise NotImplementedError

    @property
    def draft(self) -> str:
        """What was typed and not sent; none where lines are read one by one."""
        return ""

    def fill(self, text: str) -> None:
        """Puts a text into the input, to be changed and sent."""

    def clear_draft(self) -> None: ...

    def begin(self, work: Awaitable[object]) -> object:
        """Starts `attempt(work)` in the background."""

    def begin_stopping(self, work: Callable[[], Awaitable[object]]) -> None:
        self.begin(work())

    async def sending(self, message_id: str, text: str) -> None:
        """Shows our own prompt before its receipt has come."""

    def accepted(self, message_id: str, turn_id: str) -> None: ...

    async def refused(self, message_id: str, text: str) -> None: ...

    async def show_error(self, error: NpltError) -> None: ...

    async def show_text(self, text: str) -> None:
        """Adds a text to the transcript, sanitized."""

    def remark(self, text: str) -> None:
        """Shows one line, for a while or for good."""

    async def choose(
        self, title: str, choices: Sequence[str], marked: str | None = None
    ) -> str | None:
        """Lets the person choose. `None`: nothing was chosen, or choices are only listed."""
        raise NotImplementedError

    async def show_sessions(self, wanted: str) -> None: ...

    async def show_history(self, count: int | None) -> None: ...

    async def search(self, wanted: str) -> None: ...

    def copy(self, text: str) -> None: ...

    def leave(self, *, reconnect: bool = False) -> None: ...

    # What all of them do

    @property
    def first_contact(self) -> str:
        return first_contact_text(self.session.model, self.session.client.welcome.models)

    async def attempt(self, work: Awaitable[object]) -> None:
        """Awaits `work`; an `NpltError` is shown, and the chat goes on."""
        try:
            await work
        except NpltError as error:
            await self.show_error(error)

    async def take(self, text: str) -> None:
        """Handles a typed line: a command or a prompt."""
        prompt = parse_prompt(text)
        await (run_command(self, text) if prompt is None else self.ask(prompt))

    async def ask(self, text: str) -> None:
        message_id = new_message_id()
        await self.sending(message_id, text)
        try:
            receipt = await self.session.send(text, message_id)
        except NpltError:
            await self.refused(message_id, text)
            raise
        self.accepted(message_id, receipt.turn_id)

    async def show_raw(self, is_raw: bool) -> None:
        self.is_raw = is_raw

    def set_theme(self, name: str) -> None:
        remember_theme(self.theme_file, name)

    # Keys

    def take_back(self) -> bool:
        """Puts the last waiting prompt back into the input and cancels it at the server.
        False: none waits."""
        if (taken := self.session.take_back_queued()) is None:
            return False
        text, cancelling = taken
        self.fill(text)
        self.begin(cancelling)
        return True

    def press_escape(self) -> None:
        """Stops the answer; the second one also empties the queue."""
        if self.stop_control.note_escape():
            self.begin_stopping(self.empty_queue)
        elif self.stop_control.is_possible:
            self.begin_stopping(self.stop)
        elif self.stop_control.why_not:
            self.remark(self.stop_control.why_not)

    def press_interrupt(self) -> None:
        """Stops the answer, else empties the input, else leaves at the second one."""
        if self.stop_control.is_possible:
            self.begin_stopping(self.stop)
        elif self.draft:
            self.clear_draft()
            self.session.replace_from = None
        elif self.stop_control.note_press():
            self.leave()
        else:
            self.remark(self.stop_control.how_to_leave)

    async def stop(self) -> None:
        await self.stop_control.stop()

    async def empty_queue(self) -> None:
        if count := await self.stop_control.empty_queue():
            prompts = "1 prompt" if count == 1 else f"{count} prompts"
            self.remark(f"{prompts} taken back; Up brings back what you typed")
