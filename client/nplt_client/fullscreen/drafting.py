"""Other ways to a text in the input than typing it: an earlier prompt, one's own editor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from nplt_client.fullscreen.editor import edit
from nplt_client.fullscreen.floor import Floor


class Stage(Protocol):
    """A screen that can leave the terminal to somebody else for a while."""

    def suspend(self) -> AbstractContextManager[None]: ...
    def fill(self, text: str) -> None: ...


async def search(chat: Floor, prompts: Sequence[str]) -> None:
    chosen = await chat.choose("earlier prompts", prompts)
    if chosen is not None:
        chat.fill(chosen)


async def write(chat: Stage, draft: str) -> None:
    with chat.suspend():
        text = edit(draft)
    chat.fill(text)
