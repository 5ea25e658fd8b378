"""A lost connection is found again: turns go on, nothing is asked twice that must not be."""

from __future__ import annotations

import asyncio

import pytest
from tests.client.scripted_peer import (
    MODEL,
    SESSION,
    Talk,
    attaches,
    delta,
    entry,
    finished,
    scripted_peer,
    started,
)

import nplt_client
from nplt_client.errors import ConnectionLost, RequestRefused
from nplt_protocol.codes import ErrorCode, MessageType
from nplt_protocol.messages import (
    ActiveTurn,
    Attach,
    Cancel,
    Cancelled,
    SessionEvent,
    SessionNew,
    Status,
    StatusRequest,
)

SOON = nplt_client.Patience(first_seconds=0.001, most_seconds=0.01)
RUNNING = ActiveTurn(turn_id="turn-1", call=0, offset=0, model=MODEL)


def goes_in_mid_answer(talk: Talk) -> None:
    talk.welcome()
    talk.take_prompt(events=(started(), delta("half an ", 0)))


def back_attached(talk: Talk, *, running: ActiveTurn | None = None) -> None:
    talk.welcome(session_id="f" * 32)
    attaches(talk, running=running)


async def test_after_a_lost_connection_only_idempotent_requests_are_repeated() -> None:
    def goes(talk: Talk) -> None:
        talk.welcome()
        talk.expect(StatusRequest)
        talk.expect(SessionNew)

    def answers(talk: Talk) -> None:
        back_attached(talk)
        seq, _ = talk.expect(StatusRequest)
        status = Status(
            server="s", uptime=1.0, connections=1, conversations={}, turns={}, storage={}
        )
        talk.reply(MessageType.STATUS, seq, status)
        talk.wait_until_gone()

    with scripted_peer(goes, answers) as peer:
        async with nplt_client.connect(peer.url, reconnect=SOON) as client:
            status, created = await asyncio.gather(
                client.status(), client.new(), return_exceptions=True
            )
    assert isinstance(status, Status)
    assert isinstance(created, ConnectionLost)
    assert "not known" in created.message


async def test_a_cancel_repeated_after_a_reconnect_names_its_turn() -> None:
    def goes(talk: Talk) -> None:
        goes_in_mid_answer(talk)
        talk.expect(Cancel)

    def refuses_by_code(talk: Talk) -> None:
        back_attached(talk, running=RUNNING)
        seq, request = talk.expect(Cancel)
        talk.reply(MessageType.CANCEL, seq, Cancelled(cancelled=request.turn_id == "turn-1"))
        talk.wait_until_gone()

    with scripted_peer(goes, refuses_by_code) as peer:
        async with nplt_client.connect(peer.url, reconnect=SOON) as client, client.ask("go"):
            assert await client.cancel()


async def test_on_connection_is_called_with_each_state() -> None:
    states: list[str] = []

    def stays(talk: Talk) -> None:
        back_attached(talk)
        talk.wait_until_gone()

    def goes(talk: Talk) -> None:
        talk.welcome()

    with scripted_peer(goes, stays) as peer:
        online_again = asyncio.Event()

        def note(state: nplt_client.ConnectionState) -> None:
            states.append(type(state).__name__)
            if isinstance(state, nplt_client.Offline):
                assert state.was_closed
            if states.count("Online") == 2:
                online_again.set()

        async with nplt_client.connect(peer.url, reconnect=SOON, on_connection=note) as client:
            await online_again.wait()
            assert isinstance(client.connection, nplt_client.Online)
    assert states == ["Online", "Reconnecting", "Reconnecting", "Online", "Offline"]


async def test_a_conversation_deleted_during_a_reconnect_ends_its_turn_with_an_event() -> None:
    def has_deleted_it(talk: Talk) -> None:
        talk.welcome(session_id="f" * 32)
        talk.refuse(talk.expect(Attach)[0], ErrorCode.NOT_FOUND, "no such conversation")
        talk.wait_until_gone()

    with scripted_peer(goes_in_mid_answer, has_deleted_it) as peer:
        async with nplt_client.connect(peer.url, reconnect=SOON) as client:
            feed = client.events()
            with pytest.raises(RequestRefused, match="no such conversation"):
                await client.ask_text("go")
            while not isinstance(event := await anext(feed), SessionEvent):
                pass
            assert event == SessionEvent(session_id=SESSION, event="deleted")
            assert client.session_id == "f" * 32


async def test_reconnect_now_makes_the_next_attempt_at_once() -> None:
    def goes_on(talk: Talk) -> None:
        back_attached(talk, running=RUNNING)
        talk.say(delta("answer", 8), entry("half an answer"), finished())
        talk.wait_until_gone()

    patience = nplt_client.Patience(first_seconds=3_600, most_seconds=3_600)
    with scripted_peer(goes_in_mid_answer, goes_on) as peer:
        async with nplt_client.connect(peer.url, reconnect=patience) as client:
            asking = asyncio.create_task(client.ask_text("go"))
            while not isinstance(client.connection, nplt_client.Reconnecting):
                await asyncio.sleep(0)
            client.reconnect_now()
            assert await asking == "half an answer"


async def test_an_exception_in_on_connection_does_not_end_the_connection() -> None:
    def goes_on(talk: Talk) -> None:
        back_attached(talk, running=RUNNING)
        talk.say(delta("answer", 8), entry("half an answer"), finished())
        talk.wait_until_gone()

    def stumble(state: nplt_client.ConnectionState) -> None:
        raise ValueError(state)

    with scripted_peer(goes_in_mid_answer, goes_on) as peer:
        async with nplt_client.connect(peer.url, reconnect=SOON, on_connection=stumble) as client:
            assert await client.ask_text("go") == "half an answer"
