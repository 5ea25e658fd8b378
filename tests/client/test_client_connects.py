"""Connecting, refusals, losses: whatever the other side does, nobody hangs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from tests.client.scripted_peer import (
    MODEL,
    SESSION,
    Talk,
    delta,
    scripted_peer,
    started,
)

import nplt_client
from nplt_client.connecting import Connecting, Dialler
from nplt_client.errors import (
    AuthenticationFailed,
    CannotConnect,
    ConnectionLost,
    NpltError,
    ProtocolViolation,
    RequestRefused,
    TimedOut,
)
from nplt_client.mailbox import FEED_EVENTS_MAX
from nplt_client.settings import parse_url
from nplt_protocol.codec import encode_reply
from nplt_protocol.codes import ErrorCode, MessageType
from nplt_protocol.events import SessionEvent, TextDelta
from nplt_protocol.frames import encode_frame
from nplt_protocol.replies import Attached, FileStored, SessionRow, SessionRows, Welcome
from nplt_protocol.requests import FileData, FileMetadata, Hello, SessionList, SessionSwitch

WELCOME = encode_reply(
    MessageType.HELLO,
    1,
    Welcome(
        version=3,
        server="nplt/0.1.0",
        user="local",
        session_id=SESSION,
        model=MODEL,
        models=(MODEL,),
        limits={},
    ),
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return int(unused.getsockname()[1])


async def connect_and_leave(url: str) -> None:
    async with nplt_client.connect(url, timeout=5):
        pass


async def test_nobody_listening_is_cannot_connect() -> None:
    with pytest.raises(CannotConnect) as caught:
        await connect_and_leave(f"nplt://127.0.0.1:{free_port()}")
    assert caught.value.nobody_listens


async def test_a_host_that_is_no_host_is_cannot_connect() -> None:
    with pytest.raises(CannotConnect):
        await connect_and_leave("nplt://" + "x" * 70 + ".invalid:1")


def says_nothing(talk: Talk) -> None:
    pass


def speaks_another_version(talk: Talk) -> None:
    talk.welcome(version=9)
    talk.wait_until_gone()


async def test_a_version_that_was_not_offered_is_a_protocol_violation() -> None:
    with (
        scripted_peer(speaks_another_version) as peer,
        pytest.raises(ProtocolViolation, match="version 9"),
    ):
        await connect_and_leave(peer.url)


def greets_and_goes(talk: Talk) -> None:
    talk.greet("too many connections")


def dies_inside_welcome(talk: Talk) -> None:
    talk.greet()
    talk.expect(Hello)
    talk.send(WELCOME[: len(WELCOME) // 2])


@pytest.mark.parametrize("script", [says_nothing, greets_and_goes, dies_inside_welcome])
async def test_a_server_that_goes_before_welcome_is_cannot_connect(
    script: Callable[[Talk], None],
) -> None:
    with scripted_peer(script) as peer, pytest.raises(CannotConnect):
        await connect_and_leave(peer.url)


async def test_the_last_text_before_the_close_is_the_reason() -> None:
    with (
        scripted_peer(greets_and_goes) as peer,
        pytest.raises(CannotConnect, match="too many connections"),
    ):
        await connect_and_leave(peer.url)


async def test_a_web_server_is_not_mistaken_for_ours() -> None:
    def script(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" + b"." * 70_000)

    with scripted_peer(script) as peer, pytest.raises((CannotConnect, ProtocolViolation)):
        await connect_and_leave(peer.url)


async def test_a_server_that_never_welcomes_is_a_time_out() -> None:
    def script(talk: Talk) -> None:
        talk.greet()
        talk.wait_until_gone()

    with scripted_peer(script) as peer, pytest.raises(TimedOut):
        async with nplt_client.connect(peer.url, timeout=0.2):
            pass


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.UNAUTHORIZED, AuthenticationFailed),
        (ErrorCode.UNSUPPORTED, ProtocolViolation),
        (ErrorCode.UNAVAILABLE, CannotConnect),
    ],
)
async def test_a_refused_hello_is_told_by_its_code(code: ErrorCode, error: type[NpltError]) -> None:
    def script(talk: Talk) -> None:
        talk.greet()
        seq, _ = talk.expect(Hello)
        talk.refuse(seq, code, "not you")

    with scripted_peer(script) as peer, pytest.raises(error, match="not you"):
        await connect_and_leave(peer.url)


async def test_hello_carries_name_and_token() -> None:
    hellos: list[Hello] = []

    def script(talk: Talk) -> None:
        hellos.append(talk.welcome())
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url, token="secret", client_name="probe/2"):
            pass
    assert (hellos[0].client, hellos[0].token) == ("probe/2", "secret")


async def test_a_conversation_in_the_address_is_switched_to() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        seq, request = talk.expect(SessionSwitch)
        assert request.session_id == "my notes"
        attached = Attached(
            session_id="n" * 32, name="my notes", model="m", head_seq=0, active_turn=None, queue=()
        )
        talk.reply(MessageType.SESSION_SWITCH, seq, attached)
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(f"{peer.url}/my%20notes") as client:
            assert client.session_id == "n" * 32


async def test_everything_that_waits_fails_when_the_connection_is_reset() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.next_request()
        talk.next_request()
        talk.reset()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url, reconnect=False) as client:
            feed = client.events()
            outcomes = await asyncio.gather(
                client.status(), client.models(), anext(feed), return_exceptions=True
            )
            assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 3
            with pytest.raises(ConnectionLost):
                await client.ping()


async def test_bytes_that_cannot_be_read_are_a_protocol_violation() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        received = talk.next_request()
        talk.send(encode_frame(MessageType.STATUS, received.seq, b"not json"))
        received = talk.next_request()
        talk.send(encode_frame(MessageType.CANCEL, received.seq, b"{}"))
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            with pytest.raises(ProtocolViolation):
                await client.status()
            with pytest.raises(ProtocolViolation):
                await client.models()


async def test_a_servers_ping_is_answered() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.send(encode_frame(MessageType.PING, 0, b"are you there?"))
        pong = encode_frame(MessageType.PONG, 0, b"are you there?")
        received = b""
        while pong not in received:
            piece = talk.wire.recv(65536)
            assert piece, "the client left without an answer"
            received += piece
        talk.connection.receive_data(received)
        talk.send(talk.connection.data_to_send())
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            await client.ping()


async def test_leaving_the_context_leaves_no_task_behind() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.wait_until_gone()

    before = asyncio.all_tasks()
    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            feed = client.events()
    assert asyncio.all_tasks() == before
    assert [event async for event in feed] == []
    with pytest.raises(ConnectionLost):
        await client.ping()


async def test_a_cancelled_request_does_not_disturb_the_next() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        first = talk.next_request()
        second = talk.next_request()
        rows = SessionRows(sessions=(), next_cursor=None)
        talk.reply(first.type, first.seq, rows)
        talk.reply(second.type, second.seq, rows)
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            rows = client.sessions()
            impatient = asyncio.ensure_future(anext(rows, None))
            await asyncio.sleep(0)
            impatient.cancel()
            assert [row async for row in client.sessions()] == []


async def test_sessions_walks_all_pages() -> None:
    def row(number: int) -> SessionRow:
        return SessionRow(
            session_id=str(number),
            name="n",
            message_count=0,
            created_at="",
            updated_at="",
            last_accessed="",
            is_current=False,
            model="m",
            state="idle",
            preview="",
        )

    def script(talk: Talk) -> None:
        talk.welcome()
        for page, cursor in ((range(2), "next"), (range(2, 3), None)):
            seq, request = talk.expect(SessionList)
            assert request.query == "q"
            rows = SessionRows(sessions=tuple(map(row, page)), next_cursor=cursor)
            talk.reply(MessageType.SESSION_LIST, seq, rows)
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            found = [row.session_id async for row in client.sessions(query="q")]
    assert found == ["0", "1", "2"]


async def test_a_list_that_goes_round_in_circles_is_not_walked_for_ever() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        for cursor in ("a", "b", "a"):
            seq, _ = talk.expect(SessionList)
            rows = SessionRows(sessions=(), next_cursor=cursor)
            talk.reply(MessageType.SESSION_LIST, seq, rows)
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            with pytest.raises(ProtocolViolation, match="no end"):
                assert [row async for row in client.sessions()] == []


async def test_a_file_goes_out_whole_and_in_order() -> None:
    content = bytes(range(256)) * 1024
    got = bytearray()

    def script(talk: Talk) -> None:
        talk.welcome()
        seq, description = talk.expect(FileMetadata)
        assert (description.filename, description.size) == ("a.bin", len(content))
        while len(got) < description.size:
            piece_seq, piece = talk.expect(FileData)
            assert piece_seq == seq
            got.extend(piece.data)
        stored = FileStored(file_id="f1", size=len(got), sha256="0" * 64)
        talk.reply(MessageType.FILE_METADATA, seq, stored)
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            stored = await client.upload(content, filename="a.bin")
    assert stored.file_id == "f1"
    assert bytes(got) == content


async def test_a_refused_upload_says_so() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        seq, _ = talk.expect(FileMetadata)
        talk.refuse(seq, ErrorCode.READ_ONLY, "the disk is full")
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            with pytest.raises(RequestRefused, match="the disk is full"):
                await client.upload(b"", filename="a.bin")


async def test_a_feed_that_is_not_read_stays_bounded_and_says_what_is_missing() -> None:
    more = 10

    def script(talk: Talk) -> None:
        talk.welcome()
        talk.say(*(delta("x", place, turn_id="theirs") for place in range(FEED_EVENTS_MAX + more)))
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            feed = client.events()
            await client.ping()
            first = await anext(feed)
            assert isinstance(first, SessionEvent)
            assert (first.event, first.details["dropped"]) == ("lagged", FEED_EVENTS_MAX)
            for place in range(more):
                assert await anext(feed) == delta("x", FEED_EVENTS_MAX + place, turn_id="theirs")


async def test_a_turn_that_is_read_late_still_has_every_word() -> None:
    words = [f"word{number} " for number in range(5_000)]

    def script(talk: Talk) -> None:
        talk.welcome()
        talk.answer(*words)
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client, client.ask("go") as turn:
            await client.ping()
            seen = [event.text async for event in turn if isinstance(event, TextDelta)]
            assert "".join(seen) == "".join(words)
            assert len(seen) < len(words)


async def test_a_server_that_answers_nothing_any_more_is_lost() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(),))
        while talk.wire.recv(65536):  # reads, and says nothing
            pass

    with scripted_peer(script) as peer:
        soon = Dialler(parse_url(peer.url), Hello(), timeout=10, silence_seconds=0.05)
        async with Connecting(soon, patience=None) as client:
            with pytest.raises(ConnectionLost, match="silent"):
                await client.ask_text("hello?")


async def test_a_silent_server_is_asked_for_a_sign_of_life() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(),))
        assert talk.wire.recv(1) == bytes([MessageType.PING])

    with scripted_peer(script) as peer:
        soon = Dialler(parse_url(peer.url), Hello(), timeout=10, silence_seconds=0.05)
        async with Connecting(soon, patience=None) as client:
            with pytest.raises(ConnectionLost):
                await client.ask_text("hello?")
