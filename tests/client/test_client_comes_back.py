"""A lost connection is found again: turns go on, nothing is asked twice that must not be."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
from tests.client.scripted_peer import (
    MODEL,
    SESSION,
    Talk,
    delta,
    entry,
    finished,
    receipt,
    scripted_peer,
    started,
)
from tests.client.test_client_connects import free_port
from tests.support.rough_road import RoughRoad

import nplt_client
from nplt_client import sync
from nplt_client.connecting import Connecting, Dialler
from nplt_client.errors import AuthenticationFailed, ConnectionLost, RequestRefused
from nplt_client.settings import parse_url
from nplt_protocol.codec import encode_event
from nplt_protocol.codes import ErrorCode, MessageType
from nplt_protocol.events import EntryAdded, Event, SessionEvent, TextDelta
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import ActiveTurn, Attached, Cancelled, HistoryPage, PageEdges, Status
from nplt_protocol.requests import (
    Attach,
    Cancel,
    Hello,
    HistoryRequest,
    Prompt,
    SessionNew,
    StatusRequest,
)

SOON = nplt_client.Patience(first_seconds=0.001, most_seconds=0.01)
RUNNING = ActiveTurn(turn_id="turn-1", call=0, offset=0, model=MODEL)


def goes_in_mid_answer(talk: Talk) -> None:
    talk.welcome()
    talk.take_prompt(events=(started(), delta("half an ", 0)))


def is_attached(
    talk: Talk,
    *,
    running: ActiveTurn | None = None,
    head_seq: int = 0,
    replay: tuple[Event, ...] = (),
) -> Attach:
    """As a server does that is asked for what was missed: that comes with the reply, in
    the very same bytes."""
    seq, place = talk.expect(Attach)
    here = Attached(
        session_id=SESSION,
        name="n",
        model=MODEL,
        head_seq=head_seq,
        active_turn=running,
        queue=(),
    )
    reply = talk.connection.send_reply(MessageType.ATTACH, seq, here)
    talk.send(reply + b"".join(map(encode_event, replay)))
    return place


def nothing_more() -> HistoryPage:
    edges = PageEdges(has_more_before=True, has_more_after=False, before=1, after=1)
    return HistoryPage(
        session_id=SESSION, name="n", message_count=1, head_seq=1, messages=(), page=edges
    )


def comes_back(
    talk: Talk,
    *,
    running: ActiveTurn | None = None,
    head_seq: int = 0,
    replay: tuple[Event, ...] = (),
) -> Attach:
    talk.welcome(session_id="f" * 32)
    return is_attached(talk, running=running, head_seq=head_seq, replay=replay)


async def test_a_running_answer_goes_on_where_it_was() -> None:
    def goes_on(talk: Talk) -> None:
        place = comes_back(talk, running=RUNNING)
        assert place == Attach(session_id=SESSION, after_seq=0, turn_id="turn-1", call=0, offset=8)
        talk.say(delta("answer", 8), entry("half an answer"), finished())
        talk.wait_until_gone()

    with scripted_peer(goes_in_mid_answer, goes_on) as peer:
        async with (
            nplt_client.connect(peer.url, reconnect=SOON) as client,
            client.ask("go") as turn,
        ):
            heard = [event.text async for event in turn if isinstance(event, TextDelta)]
            assert heard == ["half an ", "answer"]
            assert turn.text == "half an answer"


async def test_an_answer_that_ended_meanwhile_is_told_by_its_entry() -> None:
    def has_it_all(talk: Talk) -> None:
        cut: JsonObject = {
            "kind": "model_output",
            "state": "interrupted",
            "usage": {"output_tokens": 3},
        }
        stored = entry("half an answer was")
        assert isinstance(stored, EntryAdded)
        stored.entry.update(cut)
        comes_back(talk, head_seq=2, replay=(stored,))
        talk.wait_until_gone()

    with scripted_peer(goes_in_mid_answer, has_it_all) as peer:
        async with (
            nplt_client.connect(peer.url, reconnect=SOON) as client,
            client.ask("go") as turn,
        ):
            async for _ in turn:
                pass
            assert turn.text == "half an answer was"
            assert turn.finished is not None
            assert (turn.finished.state, turn.finished.usage) == (
                "interrupted",
                {"output_tokens": 3},
            )


async def test_a_prompt_without_a_receipt_is_sent_again_with_the_same_message_id() -> None:
    prompts: list[Prompt] = []

    def takes_it_and_goes(talk: Talk) -> None:
        talk.welcome()
        prompts.append(talk.expect(Prompt)[1])

    def knew_it(talk: Talk) -> None:
        comes_back(talk, running=RUNNING, head_seq=1)
        stored = entry("go", role="user", seq=1)
        assert isinstance(stored, EntryAdded)
        stored.entry["message_id"] = prompts[0].message_id
        talk.say(stored, delta("an ", 0))
        seq, again = talk.expect(Prompt)
        prompts.append(again)
        talk.reply(MessageType.PROMPT, seq, receipt(again, duplicate=True))
        seq, _ = talk.expect(HistoryRequest)  # what was said before we listened
        talk.reply(MessageType.HISTORY_REQUEST, seq, nothing_more())
        talk.say(delta("answer", 3), entry("an answer"), finished())
        talk.wait_until_gone()

    with scripted_peer(takes_it_and_goes, knew_it) as peer:
        async with nplt_client.connect(peer.url, reconnect=SOON) as client:
            async with client.ask("go") as turn:
                heard = [event.text async for event in turn if isinstance(event, TextDelta)]
            assert heard == ["an ", "answer"], "also what was said before the receipt"
    assert prompts[0].message_id
    assert prompts[0] == prompts[1]


async def test_what_changes_nothing_is_asked_again_and_what_does_is_not() -> None:
    def goes(talk: Talk) -> None:
        talk.welcome()
        talk.expect(StatusRequest)
        talk.expect(SessionNew)

    def answers(talk: Talk) -> None:
        comes_back(talk)
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


async def test_a_cancel_that_was_on_its_way_reaches_the_turn_it_was_meant_for() -> None:
    def goes(talk: Talk) -> None:
        goes_in_mid_answer(talk)
        talk.expect(Cancel)

    def is_told_which(talk: Talk) -> None:
        comes_back(talk, running=RUNNING)
        seq, request = talk.expect(Cancel)
        talk.reply(MessageType.CANCEL, seq, Cancelled(cancelled=request.turn_id == "turn-1"))
        talk.wait_until_gone()

    with scripted_peer(goes, is_told_which) as peer:
        async with nplt_client.connect(peer.url, reconnect=SOON) as client, client.ask("go"):
            assert await client.cancel()


async def test_states_are_told_as_they_change() -> None:
    states: list[str] = []

    def stays(talk: Talk) -> None:
        comes_back(talk)
        talk.wait_until_gone()

    def goes(talk: Talk) -> None:
        talk.welcome()

    with scripted_peer(goes, stays) as peer:
        online_again = asyncio.Event()

        def note(state: nplt_client.ConnectionState) -> None:
            states.append(type(state).__name__)
            if states.count("Online") == 2:
                online_again.set()

        async with nplt_client.connect(peer.url, reconnect=SOON, on_connection=note) as client:
            await online_again.wait()
            assert isinstance(client.connection, nplt_client.Online)
    assert states == ["Online", "Reconnecting", "Reconnecting", "Online", "Offline"]


async def test_a_conversation_that_is_gone_ends_its_turn_and_is_told() -> None:
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


@pytest.mark.parametrize("code", [ErrorCode.UNAUTHORIZED, ErrorCode.UNSUPPORTED])
async def test_who_is_not_wanted_any_more_stays_away(code: ErrorCode) -> None:
    def refuses(talk: Talk) -> None:
        talk.greet()
        talk.refuse(talk.expect(Hello)[0], code, "not you")

    with scripted_peer(goes_in_mid_answer, refuses) as peer:
        async with nplt_client.connect(peer.url, reconnect=SOON) as client:
            with pytest.raises(nplt_client.NpltError, match="not you") as caught:
                await client.ask_text("go")
            assert isinstance(client.connection, nplt_client.Offline)
    assert isinstance(caught.value, AuthenticationFailed) is (code is ErrorCode.UNAUTHORIZED)


async def test_a_server_that_fell_silent_is_left_for_one_that_speaks() -> None:
    def falls_silent(talk: Talk) -> None:
        goes_in_mid_answer(talk)
        while talk.wire.recv(65_536):
            pass

    def goes_on(talk: Talk) -> None:
        comes_back(talk, running=RUNNING)
        talk.say(delta("answer", 8), entry("half an answer"), finished())
        talk.wait_until_gone()

    with scripted_peer(falls_silent, goes_on) as peer:
        dialler = Dialler(parse_url(peer.url), Hello(), timeout=10, silence_seconds=0.2)
        async with Connecting(dialler, patience=SOON) as client:
            assert await client.ask_text("go") == "half an answer"


async def test_a_client_that_lagged_attaches_again_and_reads_on() -> None:
    def script(talk: Talk) -> None:
        goes_in_mid_answer(talk)
        talk.say(SessionEvent(session_id=SESSION, event="lagged", details={"head_seq": 1}))
        assert is_attached(talk, running=RUNNING).offset == 8
        talk.say(delta("answer", 8), entry("half an answer"), finished())
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url, reconnect=False) as client:
            assert await client.ask_text("go") == "half an answer"


async def test_whoever_is_in_a_hurry_need_not_wait_for_the_next_attempt() -> None:
    def goes_on(talk: Talk) -> None:
        comes_back(talk, running=RUNNING)
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


async def test_a_mistake_of_whoever_is_told_of_states_costs_no_connection() -> None:
    def goes_on(talk: Talk) -> None:
        comes_back(talk, running=RUNNING)
        talk.say(delta("answer", 8), entry("half an answer"), finished())
        talk.wait_until_gone()

    def stumble(state: nplt_client.ConnectionState) -> None:
        raise ValueError(state)

    asyncio.get_running_loop().set_exception_handler(lambda loop, told: None)
    with scripted_peer(goes_in_mid_answer, goes_on) as peer:
        async with nplt_client.connect(peer.url, reconnect=SOON, on_connection=stumble) as client:
            assert await client.ask_text("go") == "half an answer"


async def test_looking_for_a_server_ends_when_it_was_told_to() -> None:
    nobody_listens = threading.Event()

    def goes(talk: Talk) -> None:
        goes_in_mid_answer(talk)
        nobody_listens.wait()

    patience = nplt_client.Patience(first_seconds=0.001, most_seconds=0.01, give_up_seconds=0.05)
    with scripted_peer(goes) as peer:
        async with (
            RoughRoad(random.Random(0), target=peer.port, is_smooth=True) as road,
            nplt_client.connect(road.url, reconnect=patience) as client,
            client.ask("go") as turn,
        ):
            await anext(turn)
            road.target = free_port()
            nobody_listens.set()
            with pytest.raises(ConnectionLost, match="given up"):
                async for _ in turn:
                    pass


def test_the_blocking_client_comes_back_too() -> None:
    def goes_on(talk: Talk) -> None:
        comes_back(talk, running=RUNNING)
        talk.say(delta("answer", 8), entry("half an answer"), finished())
        talk.wait_until_gone()

    with (
        scripted_peer(goes_in_mid_answer, goes_on) as peer,
        sync.connect(peer.url, reconnect=SOON) as client,
    ):
        assert client.ask_text("go") == "half an answer"
        assert isinstance(client.connection, nplt_client.Online)
