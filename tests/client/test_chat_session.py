"""The state of a chat: its status line, stopping an answer, the end of a turn."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from errno import ECONNREFUSED
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.chat_face import chat_with
from tests.client.scripted_peer import Talk, delta, scripted_peer, started, whole_turn
from tests.client.staged_server import Stage, give_empty_history

from nplt_client.chat import chat_session
from nplt_client.chat.changes import TextGrew, TurnBegan, TurnEnded
from nplt_client.chat.chat_session import ChatSession, TurnStatus, status_line
from nplt_client.chat.commands import run_command
from nplt_client.client import Client
from nplt_client.errors import ConnectionLost
from nplt_client.render.text import width_of
from nplt_client.settings import parse_url
from nplt_client.wire.reconnect_policy import ConnectionState, Offline, Online, Reconnecting
from nplt_client.wire.wire_session import connect_error
from nplt_protocol.messages import Cancel, Event, Prompt

AWAY = Reconnecting(attempt=1, in_seconds=3.0, reason="lost")
SOMEWHERE = parse_url("nplt://localhost:1")


def chat(
    connection: ConnectionState | None = None,
    *,
    model: str = "",
    name: str = "",
    is_running: bool = False,
    waiting: int = 0,
) -> ChatSession:
    """One that is connected to nothing."""
    client = SimpleNamespace(
        connection=connection or Online(),
        model=model,
        welcome=SimpleNamespace(user="me"),
        session_id="here",
        started_here=lambda turn_id: True,
        events=lambda: None,
    )
    session = ChatSession(cast(Client, client))
    session.name = name
    session.turn_status.start_over(
        running="t" if is_running else None, waiting=tuple(map(str, range(waiting)))
    )
    return session


def test_the_status_line_shows_the_state_of_the_connection() -> None:
    for connection, words in (
        (Online(), "● online"),
        (Offline(reason="closed"), "○ offline"),
        (
            Reconnecting(attempt=3, in_seconds=4.2, reason="lost"),
            "◌ reconnecting in 4 s (attempt 3)",
        ),
        (Reconnecting(attempt=3, in_seconds=0.0, reason="lost"), "◌ reconnecting (attempt 3)"),
    ):
        assert status_line(chat(connection, model="m"), 80).startswith(words)


def test_the_status_line_shows_queue_lag_model_tokens_cost_and_participants() -> None:
    session = chat(model="openai/gpt-5.2", name="notes", is_running=True, waiting=2)
    session.turn_status.input_tokens, session.turn_status.output_tokens = 12_345, 999
    session.context_percent, session.cost = 41.6, "0.12 USD"
    session.others = ("ada", "grace", "linus", "guido")
    session.attachments.append("file")
    session.lag_seconds = 0.8
    assert status_line(session, 300) == (
        "● online · answering (Esc stops) · 2 waiting · 1 file attached · lag 0.8 s · "
        "openai/gpt-5.2 · notes · "
        "context 42 % · with ada, grace, linus +1 · 12.3k in, 999 out · 0.12 USD"
    )
    session.lag_seconds = 0.4
    assert "lag" not in status_line(session, 300)


async def test_the_status_line_shows_how_long_the_server_has_been_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_session, "SILENT_SECONDS_SHOWN", 0.0)
    session, reply = chat(model="m", is_running=True), asyncio.Event()
    session.client.ping = reply.wait  # type: ignore[method-assign,assignment]
    watching = asyncio.create_task(session.watch_connection())
    while not session.silent_seconds:
        await asyncio.sleep(0)
    session.turn_status.stopping = "t"
    assert status_line(session, 80).startswith("◌ no answer for 0 s · stopping · m")
    assert status_line(session, 40).startswith("◌ no answer 0 s · ")
    reply.set()
    while session.silent_seconds:
        await asyncio.sleep(0)
    watching.cancel()


@given(st.integers(20, 200), st.text(max_size=60), st.text(max_size=60))
def test_the_status_line_never_exceeds_its_width(width: int, model: str, name: str) -> None:
    words = status_line(chat(model=model, name=name, is_running=True, waiting=3), width)
    assert width_of(words) <= width
    assert "\n" not in words


def test_the_status_line_shows_how_long_an_answer_takes_and_how_fast_it_comes() -> None:
    now = 100.0
    session = chat(model="m")
    session.turn_status = TurnStatus(clock=lambda: now)
    session.turn_status.apply(TurnBegan(turn_id="t", model="m"))
    now = 102.4
    session.turn_status.apply(TextGrew(turn_id="t", call=0, piece="x" * 1_668))
    now = 112.4
    words = status_line(session, 80)
    assert " answering 12 s, ~42 tokens/s (Esc stops) · m" in words
    assert re.search(r". 12 s \(Esc stops\) · m", status_line(session, 40))
    now = 112.6
    assert status_line(session, 80)[:12] != words[:12], "something moves while nothing comes"


def test_the_speed_of_an_answer_is_counted_from_its_first_word() -> None:
    now = 100.0
    turn_status = TurnStatus(clock=lambda: now)
    turn_status.apply(TurnBegan(turn_id="t", model="m"))
    now = 105.0
    turn_status.apply(TextGrew(turn_id="t", call=0, piece="x" * 400))
    assert (turn_status.seconds, turn_status.tokens_per_second) == (5.0, None)
    now = 107.0
    assert (turn_status.seconds, turn_status.tokens_per_second) == (7.0, 50.0)
    turn_status.apply(TurnEnded(turn_id="t", state="completed"))
    assert turn_status.seconds is None


def test_the_status_line_promises_no_stop_without_a_connection() -> None:
    assert "(Esc stops)" in status_line(chat(is_running=True), 80)
    assert "(Esc stops)" not in status_line(chat(AWAY, is_running=True), 80)


def test_the_status_line_shortens_a_long_name_before_other_facts() -> None:
    session = chat(model="openai/gpt-5.2-mini", name="a conversation with quite a long name")
    session.turn_status.input_tokens = 12_000
    session.context_percent, session.others = 41.0, ("2 more windows",)
    words = status_line(session, 76)  # eighty columns, less the margins
    assert "context 41 %" in words
    assert "with 2 more windows" in words


def test_a_switch_resets_the_token_counts() -> None:
    turn_status = TurnStatus()
    turn_status.apply(
        TurnEnded(turn_id="t", state="completed", error=None, input_tokens=7, output_tokens=8)
    )
    turn_status.start_over()
    assert (turn_status.input_tokens, turn_status.output_tokens) == (0, 0)


def half_an_answer(prompt: Prompt) -> Sequence[Event]:
    return [started(), delta("half", 0)]


async def test_only_one_cancel_is_sent_at_a_time() -> None:
    stage = Stage(answers=half_an_answer)
    with scripted_peer(stage.script()) as peer:
        async with chat_with(peer.url) as face:
            assert not face.can_stop
            await face.stop()
            await face.ask("go")
            await face.until(lambda: face.session.turn_status.running is not None)
            assert face.can_stop
            stopping = [asyncio.ensure_future(face.stop()) for _ in range(2)]
            await asyncio.sleep(0)
            assert face.why_no_stop == "the answer is being stopped"
            await asyncio.gather(*stopping)
            assert face.can_stop
    assert [one for one in stage.asked if isinstance(one, Cancel)] == [Cancel(turn_id="turn-1")]


async def test_without_a_connection_cancel_and_commands_are_refused() -> None:
    def goes_away(talk: Talk) -> None:
        talk.welcome()
        give_empty_history(talk)
        talk.take_prompt(events=(started(), delta("half", 0)))

    with scripted_peer(goes_away) as peer:
        async with chat_with(peer.url) as face:
            await face.ask("go")
            await face.until(lambda: face.session.turn_status.running is not None)
            await face.until(lambda: isinstance(face.session.client.connection, Reconnecting))
            assert not face.can_stop
            face.press_interrupt()
            assert "while disconnected" in face.notices[-1]
            assert "once more leaves" in face.notices[-1]
            assert face.has_left is None
            face.press_interrupt()
            assert face.has_left is False
            with pytest.raises(ConnectionLost, match="Not connected: /status"):
                await run_command(face, "/status")
            await run_command(face, "/help")
            assert "/status" in face.notices[-1]


async def test_waiting_for_the_end_of_a_turn_includes_drawing_it() -> None:
    stage = Stage(answers=lambda prompt: whole_turn("an ", "answer"))
    with scripted_peer(stage.script()) as peer:
        async with chat_with(peer.url) as face:
            await face.ask("go")
            end = await face.session.wait_for_turn_end("turn-1")
            assert end.state == "completed"
            assert face.texts["turn-1"] == "an answer"


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"),
        ConnectionRefusedError(ECONNREFUSED, "Connection refused"),
        OSError(
            f"Multiple exceptions: [Errno {ECONNREFUSED}] Connect call failed ('::1', 1, 0, 0), "
            f"[Errno {ECONNREFUSED}] Connect call failed ('127.0.0.1', 1)"
        ),
    ],
)
def test_connection_refused_is_reported_with_the_systems_message(error: OSError) -> None:
    notices = connect_error(SOMEWHERE, error).message
    hint = "is nplt-server running there?"
    assert notices == f"can't connect to {SOMEWHERE}: Connection refused; {hint}"
