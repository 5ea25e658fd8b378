"""The base of all chats: the operations that commands and keys perform on a chat.

`ChatDisplay` is the base of the full-screen chat (`tui.app`) and of the line chats
(`lines.line_chat`). The session calls it to draw (`SessionView`); commands call it to act on the
chat they were typed in. It also stores the chosen theme.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from time import monotonic
from uuid import uuid4

from nplt_client.chat.chat_session import ChatSession, SessionView
from nplt_client.chat.prompt_history import PromptHistory
from nplt_client.chat.prompt_text import PastedTexts, mentioned_files
from nplt_client.errors import NpltError
from nplt_client.render.reports import first_contact_text
from nplt_client.render.text import safe_line
from nplt_client.settings import DEFAULT_PORT
from nplt_client.wire.reconnect_policy import Online

THEMES = {"dark": "dark", "light": "light", "terminal": "ansi-dark"}
"""The themes that `/theme` accepts, and their names in textual."""
DEFAULT_THEME = "dark"


def remembered_theme(file: Path) -> str:
    try:
        name = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return DEFAULT_THEME
    return name if name in THEMES else DEFAULT_THEME


def remember_theme(file: Path, name: str) -> None:
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(f"{name}\n", encoding="utf-8")


_LEAVE_SECONDS = 2.0
ESCAPE_SECONDS = 1.0
"""A second Esc within this time also empties the queue."""


class ChatDisplay(SessionView):
    keys_help: Sequence[tuple[str, str]] = ()
    waits_for_server = False
    """Whether commands wait for a connection instead of failing without one (for scripts)."""
    attaches_mentions = False
    """Whether files that a typed prompt names as `@path` are attached to it."""
    is_raw = False
    too_long = ""
    """The last prompt, if it did not fit the model's window."""
    too_long_id = ""
    prompts: PromptHistory | None = None
    """The stored prompts; `None` in a chat that stores none."""
    _cancelled_turn: str | None = None
    """The turn whose CANCEL has no reply yet."""
    _pressed_at = _escaped_at = float("-inf")

    def __init__(self, session: ChatSession, folder: Path) -> None:
        """`folder` stores the history of prompts and the theme."""
        self.session = session
        self.theme_file = folder / "theme"
        self.pasted = PastedTexts()
        self._uploading = asyncio.Lock()
        session.display = self

    # Implemented by each display

    @property
    def answers(self) -> Sequence[str]:
        """The texts of the answers on display, the newest last."""
        raise NotImplementedError

    @property
    def draft(self) -> str:
        """The text in the input; "" if this chat reads line by line."""
        return ""

    def fill(self, text: str) -> None:
        """Puts a text into the input, where it can be edited and sent."""

    def clear_draft(self) -> None: ...

    def begin(self, work: Awaitable[object]) -> object:
        """Starts `attempt(work)` in the background."""

    def submit(self, text: str) -> None:
        """Handles a typed line in the background: a command or a prompt."""

    def begin_stopping(self, work: Callable[[], Awaitable[object]]) -> None:
        self.begin(work())

    async def sending(self, message_id: str, text: str) -> None:
        """Shows our own prompt before its receipt arrives."""

    def accepted(self, message_id: str, turn_id: str) -> None: ...

    async def refused(self, message_id: str, text: str) -> None: ...

    async def show_error(self, error: NpltError) -> None: ...

    async def show_text(self, text: str) -> None:
        """Adds a text to the transcript, sanitized."""

    def remark(self, text: str) -> None:
        """Shows one line, temporarily or permanently."""

    async def choose(
        self,
        title: str,
        choices: Sequence[str],
        marked: str | None = None,
        about: Mapping[str, str] | None = None,
    ) -> str | None:
        """Lets the user choose; `about` describes choices in a few words. Returns `None` if the
        user chose nothing, or if this display only lists the choices."""
        raise NotImplementedError

    async def show_sessions(self, wanted: str) -> None: ...

    async def show_history(self, count: int | None) -> None: ...

    async def search(self, wanted: str) -> None: ...

    def copy(self, text: str) -> None: ...

    def leave(self, *, reconnect: bool = False) -> None: ...

    def forget_prompts(self, texts: Collection[str]) -> None:
        """Drops these texts from the prompts that Up brings back."""

    # Shared by all displays

    def prompts_redacted(self, message_ids: Collection[str]) -> None:
        """Drops redacted prompts from the stored ones. Open chats of this user do it too."""
        if self.prompts is not None and (texts := self.prompts.forget(message_ids)):
            self.forget_prompts(texts)

    @property
    def first_contact(self) -> str:
        client = self.session.client
        is_chosen = client.model != client.welcome.model
        background = self.session.background
        is_moved = background is not None and background.port != DEFAULT_PORT
        return first_contact_text(
            self.session.model,
            client.welcome.models,
            is_chosen=is_chosen,
            address=str(background) if is_moved else "",
        )

    async def attempt(self, work: Awaitable[object]) -> None:
        """Awaits `work`, and shows an `NpltError` instead of raising it."""
        try:
            await work
        except NpltError as error:
            await self.show_error(error)

    async def go_on(self, text: str) -> None:
        """Asks the model to go on with its last answer."""
        message_id = uuid4().hex
        receipt = await self.session.send(text, message_id, continues=True)
        self.accepted(message_id, receipt.turn_id)

    async def ask(
        self,
        text: str,
        *,
        cut: bool = False,
        typed: str = "",
        not_typed: Sequence[str] = (),
        message_id: str = "",
    ) -> None:
        """`cut`: the prompt may be cut in the middle if it does not fit the model's window.
        `typed`: the line as it was typed, which is stored; `not_typed`: texts in it that nobody
        typed. `message_id`: that of the same prompt, which was refused before."""
        message_id = message_id or uuid4().hex
        if typed and self.prompts is not None:
            self.prompts.add(typed, message_id)
        await self.sending(message_id, text)
        try:
            async with self._uploading:  # prompts keep their order
                if typed and self.attaches_mentions:
                    await self._attach_mentioned(text, not_typed)
            receipt = await self.session.send(text, message_id, cut=cut)
        except NpltError as error:
            self.pasted.note(text)  # its files stay attached, and are not attached again
            await self.refused(message_id, text)
            if error.code != "too_large" or "window_tokens" not in error.details:
                raise
            self.too_long, self.too_long_id = text, message_id
            if error.details.get("on_too_long") != "ask":
                raise
            await self._ask_shorter(error)
            return
        self.too_long = ""
        self.accepted(message_id, receipt.turn_id)

    async def _attach_mentioned(self, text: str, not_typed: Sequence[str]) -> None:
        session = self.session
        for path in mentioned_files(text, not_typed=not_typed):
            if await self.confirms(path):
                session.attachments.append((await session.client.upload(path)).file_id)

    async def confirms(self, path: Path) -> bool:
        """Whether the person wants the file attached that the prompt names."""
        return True

    async def _ask_shorter(self, error: NpltError) -> None:
        """Lets the person choose what becomes of a prompt that does not fit. A display that only
        lists choices shows the commands to type."""
        await self.show_error(error)
        larger = error.details.get("models")
        models = larger if isinstance(larger, list) else []
        choices = ["/cut", *(safe_line(f"/model {name}") for name in models)]
        chosen = await self.choose("The prompt does not fit the model", choices)
        if chosen is None:
            return
        text = self.too_long
        if self.draft == text:
            self.fill("")
        if chosen != "/cut":
            await self.session.client.switch_model(chosen.removeprefix("/model "))
        await self.ask(text, cut=chosen == "/cut", message_id=self.too_long_id)

    async def go_to_next(self) -> None:
        """Goes to the next conversation that asks, failed or has unread answers."""
        next_id = self.session.elsewhere.next_id
        if next_id is None:
            self.remark("no other conversation asks, failed or has unread answers")
        else:
            await self.session.move(self.session.client.switch(next_id))

    async def show_raw(self, is_raw: bool) -> None:
        self.is_raw = is_raw

    def set_theme(self, name: str) -> None:
        remember_theme(self.theme_file, name)

    # Keys

    def take_back(self) -> bool:
        """Puts the last queued prompt back into the input and cancels it at the server. Returns
        False if none is queued."""
        if (taken := self.session.take_back_queued()) is None:
            return False
        text, cancelling = taken
        self.pasted.note(text)  # its files come back with it
        self.fill(text)
        self.begin(cancelling)
        return True

    @property
    def can_stop(self) -> bool:
        return self.session.turn_status.running is not None and not self.why_no_stop

    @property
    def why_no_stop(self) -> str:
        """Why the answer can't be stopped, or "" if it can or none is running. Only one CANCEL is
        sent at a time, and none without a connection; then the next Ctrl+C leaves the chat."""
        running = self.session.turn_status.running
        if running is None:
            return ""
        if not isinstance(self.session.client.connection, Online):
            return "the answer can't be stopped while disconnected"
        if running != self._cancelled_turn:
            return ""
        seconds = self.session.silent_seconds
        silence = f"; no answer for {seconds:.0f} s" if self.session.is_silent else ""
        return f"the answer is being stopped{silence}"

    def press_escape(self) -> None:
        """Stops the answer; a second Esc also empties the queue."""
        before, self._escaped_at = self._escaped_at, monotonic()
        if self._escaped_at - before < ESCAPE_SECONDS:
            self.begin_stopping(self.empty_queue)
        elif self.can_stop:
            self.begin_stopping(self.stop)
        elif self.why_no_stop:
            self.remark(self.why_no_stop)
        elif self.session.is_sending:
            self.remark("the prompt has not reached the server yet; there is nothing to stop")
        else:
            self.remark("there is no answer to stop")

    def press_interrupt(self) -> None:
        """Stops the running answer, or else empties the input, or else leaves at the second
        Ctrl+C."""
        if self.can_stop:
            self.begin_stopping(self.stop)
            return
        if self.draft:
            self.clear_draft()
            self.session.replace_from = None
            return
        before, self._pressed_at = self._pressed_at, monotonic()
        if self._pressed_at - before < _LEAVE_SECONDS:
            self.leave()
        else:
            self.remark("; ".join(filter(None, (self.why_no_stop, "Ctrl+C once more leaves"))))

    async def stop(self) -> None:
        running = self.session.turn_status.running
        if running is None or not self.can_stop:
            return
        status = self.session.turn_status
        status.stopping = self._cancelled_turn = running
        is_ending = False
        try:
            is_ending = await self.session.client.cancel(running)
        finally:
            self._cancelled_turn = None
            if not is_ending and status.stopping == running:
                status.stopping = None

    async def empty_queue(self) -> None:
        """Cancels our queued prompts, and the one that began since the first Esc."""
        count = 0
        while (taken := self.session.take_back_queued()) is not None:
            await taken[1]
            count += 1
        await self.stop()
        if count:
            prompts = "1 prompt" if count == 1 else f"{count} prompts"
            self.remark(f"{prompts} taken back; Up brings back what you typed")
