"""Connecting, refusals, losses: whatever the other side does, nobody hangs."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest
from tests.client.scripted_peer import (
    Talk,
    delta,
    scripted_peer,
    started,
)

import nplt_client
from nplt_client.errors import (
    CannotConnect,
    ConnectionLost,
    ProtocolViolation,
    RequestRefused,
)
from nplt_client.wire.wire_session import FEED_EVENTS_MAX
from nplt_protocol.codes import ErrorCode, MessageType
from nplt_protocol.messages import (
    Attached,
    Cancel,
    Cancelled,
    FileData,
    FileMetadata,
    FileStored,
    Hello,
    SessionEvent,
    SessionList,
    SessionRow,
    SessionRows,
    SessionSwitch,
    TextDelta,
)


async def test_an_invalid_host_is_cannot_connect() -> None:
    with pytest.raises(CannotConnect):
        async with nplt_client.connect("nplt://" + "x" * 70 + ".invalid:1", timeout=5):
            pass


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


async def test_all_pending_requests_fail_when_the_connection_is_reset() -> None:
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


def welcomes_and_waits(talk: Talk) -> None:
    talk.welcome()
    talk.wait_until_gone()


async def test_an_error_in_the_context_is_raised_without_an_exception_group() -> None:
    with scripted_peer(welcomes_and_waits) as peer, pytest.raises(ValueError, match="mine"):
        async with nplt_client.connect(peer.url):
            raise ValueError("mine")


async def test_a_scope_around_the_context_ends_it_when_it_is_cancelled() -> None:
    with scripted_peer(welcomes_and_waits) as peer:
        with anyio.CancelScope() as scope:
            async with nplt_client.connect(peer.url) as client:
                scope.cancel()
                await client.ping()
        assert scope.cancelled_caught


async def test_a_task_that_is_cancelled_inside_the_context_ends_cancelled() -> None:
    inside = asyncio.Event()

    async def use(url: str) -> None:
        async with nplt_client.connect(url):
            inside.set()
            await asyncio.Event().wait()

    with scripted_peer(welcomes_and_waits) as peer:
        task = asyncio.create_task(use(peer.url))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_connecting_can_be_cancelled() -> None:
    def never_welcomes(talk: Talk) -> None:
        talk.greet()
        talk.wait_until_gone()

    with scripted_peer(never_welcomes) as peer:
        with anyio.move_on_after(0.1) as scope:
            async with nplt_client.connect(peer.url):
                raise AssertionError
        assert scope.cancelled_caught


async def test_clean_up_after_a_cancellation_can_still_use_the_connection() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(),))
        seq, request = talk.expect(Cancel)
        talk.reply(MessageType.CANCEL, seq, Cancelled(cancelled=request.turn_id == "turn-1"))
        talk.wait_until_gone()

    with scripted_peer(script) as peer, anyio.CancelScope() as scope:
        async with nplt_client.connect(peer.url) as client, client.ask("go") as turn:
            try:
                scope.cancel()
                async for _ in turn:
                    await anyio.lowlevel.checkpoint()
            finally:
                with anyio.CancelScope(shield=True):
                    assert await turn.cancel()


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
            rows = SessionRows(
                sessions=tuple(map(row, page)), next_cursor=cursor, incomplete=cursor is None
            )
            talk.reply(MessageType.SESSION_LIST, seq, rows)
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            found = [row.session_id async for row in client.sessions(query="q")]
            assert client.list_is_incomplete
    assert found == ["0", "1", "2"]


async def test_a_repeated_page_cursor_is_a_protocol_violation() -> None:
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


async def test_an_upload_is_sent_whole_and_in_order() -> None:
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


async def test_a_refused_upload_raises_its_error() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        seq, _ = talk.expect(FileMetadata)
        talk.refuse(seq, ErrorCode.READ_ONLY, "the disk is full")
        talk.wait_until_gone()

    with scripted_peer(script) as peer:
        async with nplt_client.connect(peer.url) as client:
            with pytest.raises(RequestRefused, match="the disk is full"):
                await client.upload(b"", filename="a.bin")


async def test_an_unread_feed_is_bounded_and_reports_lagged() -> None:
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


async def test_a_slow_reader_of_a_turn_loses_no_text() -> None:
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
