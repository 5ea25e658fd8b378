"""Whoever presses a key or gives a command sees at once what came of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.client.screen_stage import chat_on_stage, screen_text, until
from tests.client.scripted_peer import SESSION, Talk, delta, scripted_peer, started
from tests.client.staged_server import Stage, talked

from nplt_protocol.requests import Prompt

pytestmark = pytest.mark.slow


async def test_what_goes_wrong_is_seen_wherever_one_was_looking(tmp_path: Path) -> None:
    stage = Stage(messages=talked(20))
    with scripted_peer(stage.script()) as peer:
        async with chat_on_stage(peer.url, tmp_path, resume=SESSION) as (app, pilot):
            await until(pilot, lambda: app.transcript.max_scroll_y > 0)
            app.transcript.look_at_top()
            await until(pilot, lambda: "message number 40" not in screen_text(app))
            await pilot.press(*"/nonsense", "enter")
            await until(pilot, lambda: "There is no /nonsense" in screen_text(app))


async def test_an_answer_whose_server_is_gone_does_not_keep_anyone_from_leaving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    stage = Stage(answers=lambda prompt: [started(), delta("half an ans", 0)])

    def goes_away_in_mid_answer(talk: Talk) -> None:
        talk.welcome()
        while not any(isinstance(request, Prompt) for request in stage.asked):
            stage.serve(talk)

    with scripted_peer(goes_away_in_mid_answer) as peer:
        async with chat_on_stage(peer.url, tmp_path) as (app, pilot):
            await pilot.press(*"go", "enter")
            await until(pilot, lambda: "half an ans" in screen_text(app))
            await until(pilot, lambda: "◌ reconnecting" in screen_text(app))
            assert app.visit.course.running is not None
            assert "(Esc stops)" not in screen_text(app)
            await pilot.press(*"/status", "enter")
            await until(pilot, lambda: "Not connected: /status" in screen_text(app))
            monkeypatch.setattr(app, "remark", said.append)
            await pilot.press("ctrl+c")
            await until(pilot, lambda: bool(said))
            assert "while disconnected" in said[0]
            await pilot.press("ctrl+c")
            await until(pilot, lambda: not app.is_running)
