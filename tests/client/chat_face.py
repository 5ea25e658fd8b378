"""A chat without a display on a real connection: all it would show is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

import nplt_client
from nplt_client.chat.changes import Change, NoticeShown, TextGrew, TextReplaced, TurnEnded, Turns
from nplt_client.chat.chat_session import ChatSession
from nplt_client.chat.display import ChatDisplay
from nplt_client.chat.prompt_history import PromptHistory
from nplt_client.chat.prompt_text import PastedTexts
from nplt_client.wire.reconnect_policy import ConnectionState
from nplt_protocol.messages import LATER, REDACTED

TRIES_MAX = 8_000


class RecordingFace(ChatDisplay):
    """Draws nothing."""

    keys_help: Sequence[tuple[str, str]] = (("a key", "what it does"),)
    waits_for_server = False

    def __init__(self, session: ChatSession) -> None:
        self.session = session
        self.pasted = PastedTexts()
        self.notices: list[str] = []
        """Texts, remarks and notices, in order."""
        self.texts: dict[str, str] = {}
        """The answers, by turn."""
        self.shown: Turns = ()
        self.input = ""
        self.clipboard = ""
        self.theme = ""
        self.is_raw = False
        self.has_left: bool | None = None
        session.display = self

    @property
    def answers(self) -> Sequence[str]:
        return list(self.texts.values())

    @property
    def draft(self) -> str:
        return self.input

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(TRIES_MAX):
            if holds():
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"{holds} never came true; told: {self.notices}")

    async def says(self, prompt: str) -> None:
        """Asks, and waits for the end of the answer."""
        receipt = await self.session.send(prompt, uuid4().hex)
        await self.session.wait_for_turn_end(receipt.turn_id)

    # What the session asks for

    async def show(self, turns: Turns, *, has_moved: bool) -> None:
        self.shown, self.texts = turns, {}
        self.notices.append("moved" if has_moved else "entered")

    async def show_again(self, turns: Turns) -> None:
        self.shown = turns

    async def show_older(self, turns: Turns) -> None:
        self.shown = [*turns, *self.shown]

    async def draw(self, change: Change) -> None:
        match change:
            case TextGrew():
                self.texts[change.turn_id] = self.texts.get(change.turn_id, "") + change.piece
            case TextReplaced():
                self.texts[change.turn_id] = change.text
            case NoticeShown():
                self.notices.append(change.text)
            case TurnEnded() if change.error:
                self.notices.append(change.error)
            case _:
                pass

    async def drawn(self) -> None:
        pass

    async def pause(self, began: float) -> None:
        pass

    def connection_changed(self, state: ConnectionState) -> None:
        pass

    def alert(self, words: str) -> None:
        pass

    # What commands do

    async def show_raw(self, is_raw: bool) -> None:
        self.is_raw = is_raw

    async def show_text(self, text: str) -> None:
        self.notices.append(text)

    def remark(self, text: str) -> None:
        self.notices.append(text)

    async def ask(
        self,
        text: str,
        *,
        cut: bool = False,
        typed: str = "",
        not_typed: Sequence[str] = (),
        message_id: str = "",
    ) -> None:
        message_id = uuid4().hex
        if typed and self.prompts is not None:
            self.prompts.add(typed, message_id)
        await self.session.send(text, message_id)

    def fill(self, text: str) -> None:
        self.input = text

    async def choose(
        self,
        title: str,
        choices: Sequence[str],
        marked: str | None = None,
        about: Mapping[str, str] | None = None,
    ) -> str | None:
        words = (f"{one} {(about or {}).get(one, '')}".rstrip() for one in choices)
        self.notices.append(f"{title}: {', '.join(words)}")
        return choices[-1]

    async def show_sessions(self, wanted: str) -> None:
        self.notices.append(f"sessions {wanted}")

    async def show_history(self, count: int | None) -> None:
        self.notices.append(f"history {count}")

    async def search(self, wanted: str) -> None:
        self.notices.append(f"search {wanted}")

    def set_theme(self, name: str) -> None:
        self.theme = name

    def copy(self, text: str) -> None:
        self.clipboard = text

    def leave(self, *, reconnect: bool = False) -> None:
        self.has_left = reconnect


@asynccontextmanager
async def chat_with(
    url: str, *, prompts: PromptHistory | None = None
) -> AsyncIterator[RecordingFace]:
    async with nplt_client.connect(url, features=(REDACTED, LATER)) as client:
        face = RecordingFace(ChatSession(client))
        face.prompts = prompts
        await face.session.move()
        tasks = [
            asyncio.ensure_future(face.session.receive_events()),
            asyncio.ensure_future(face.session.draw_changes()),
        ]
        try:
            yield face
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
