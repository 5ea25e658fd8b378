"""The full-screen chat without a terminal, on a real connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.client.scripted_peer import scripted_peer
from tests.client.staged_server import Stage

import nplt_client

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from nplt_client.tui.app import ChatApp

TRIES_MAX = 8_000


@asynccontextmanager
async def chat_on_stage(
    url: str, folder: Path, *, resume: str | None = None, size: tuple[int, int] = (90, 30)
) -> AsyncIterator[tuple[ChatApp, Pilot[bool]]]:
    from nplt_client.chat.chat_session import ChatSession
    from nplt_client.tui.app import ChatApp

    async with nplt_client.connect(url) as client:
        session = ChatSession(client)
        if resume is not None:
            await session.start_in(resume)
        app = ChatApp(session, folder)
        async with app.run_test(size=size) as pilot:
            yield app, pilot


@asynccontextmanager
async def chat_with(
    stage: Stage, folder: Path, *, resume: str | None = None, size: tuple[int, int] = (90, 30)
) -> AsyncIterator[tuple[ChatApp, Pilot[bool]]]:
    """The chat at a server that plays this stage."""
    with scripted_peer(stage.script()) as peer:
        async with chat_on_stage(peer.url, folder, resume=resume, size=size) as chat:
            yield chat


async def until(pilot: Pilot[bool], holds: Callable[[], bool]) -> None:
    """Waits until it holds, for at most `TRIES_MAX` tries."""
    for _ in range(TRIES_MAX):
        if holds():
            return
        await pilot.pause(0.005)
    raise AssertionError(f"{holds} never came true")


def screen_text(app: ChatApp) -> str:
    """The text of the screen, line by line."""
    width, height = app.size
    lines = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in lines[:height]) + "\n" * (width == 0)
