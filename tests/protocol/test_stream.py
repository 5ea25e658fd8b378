"""The stream: batches in, one write per tick out, and every way to end."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.protocol.fake_link import WELCOME
from tests.protocol.loopback import (
    RememberingTransport,
    greet,
    joined,
    listening,
    remembering,
    requests,
)

from nplt_protocol import (
    ClientConnection,
    ConnectionRefused,
    FrameDecoder,
    ReceivedByClient,
    ReplyReceived,
    RequestReceived,
    ServerConnection,
    WireLimits,
    encode_frame,
    messages,
)
from nplt_protocol.stream import FrameStream, open_stream

LIMITS = WireLimits()
PING, PONG = 0x04, 0x05


async def test_a_client_and_a_server_talk_over_a_socket() -> None:
    async with listening(LIMITS) as (port, streams):
        connection = ClientConnection()
        client: FrameStream[ReceivedByClient] = await open_stream(
            "127.0.0.1", port, connection, limits=LIMITS
        )
        server = await streams.get()
        assert isinstance(server.connection, ServerConnection)
        await greet(client, connection, server)
        seq, ping = connection.send(messages.Ping(data=b"alive?"))
        client.send(ping)
        (pong,) = await client.receive()
        assert isinstance(pong, ReplyReceived)
        assert pong.seq == seq
        await client.close()
        assert await server.receive() == []
        assert server.eof


async def test_data_sent_in_one_tick_leaves_in_one_write() -> None:
    stream, _, transport = remembering()
    stream.send(b"one")
    assert stream.send_event(b"two")
    stream.send(b"three")
    assert transport.written == []
    await asyncio.sleep(0)
    assert transport.written == [b"onetwothree"]


async def test_data_sent_before_the_connection_is_made_is_not_lost() -> None:
    stream: FrameStream[ReceivedByClient] = FrameStream(ClientConnection(), limits=LIMITS)
    transport = RememberingTransport()
    stream.send(b"early")
    await asyncio.sleep(0)
    stream.connection_made(transport)
    await asyncio.sleep(0)
    assert transport.written == [b"early"]


async def test_pings_of_one_read_get_pongs_in_one_write_without_the_owner() -> None:
    stream, _, transport = remembering()
    stream.data_received(encode_frame(PING, 7, b"x") * 3)
    assert transport.written == [encode_frame(PONG, 7, b"x") * 3]


async def test_requests_come_in_batches_in_the_order_sent() -> None:
    async with joined() as pair:
        await pair.is_welcomed()
        await pair.client_sends(requests(2, 50))
        received: list[int] = []
        while len(received) < 50:
            batch = await pair.stream.receive()
            received += [item.seq for item in batch if isinstance(item, RequestReceived)]
        assert received == list(range(2, 52))


async def test_a_cancelled_receive_loses_nothing() -> None:
    async with joined() as pair:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await pair.stream.receive()
        assert scope.cancelled_caught
        await pair.client_sends(encode_frame(0x14, 0))
        (item,) = await pair.stream.receive()
        assert isinstance(item, RequestReceived)


async def test_a_half_closed_peer_still_gets_replies() -> None:
    async with joined() as pair:
        await pair.client_sends(encode_frame(0x14, 0))
        pair.client.shutdown(socket.SHUT_WR)
        assert len(await pair.stream.receive()) == 1
        assert await pair.stream.receive() == []
        assert (pair.stream.eof, pair.stream.closed) == (True, False)
        pair.stream.send(pair.connection.send_text("your sessions"))
        await pair.stream.close()
        (frame,) = FrameDecoder().receive_data(await pair.client_reads_to_end())
        assert frame.payload == b"your sessions"


async def test_data_sent_before_the_peer_disconnected_is_still_received() -> None:
    async with joined() as pair:
        await pair.client_sends(encode_frame(0x14, 0) + encode_frame(0x01, 1, b"bye"))
        pair.client.close()
        received: list[object] = []
        while batch := await pair.stream.receive():
            received += batch
        assert len(received) == 2


async def test_close_sends_all_queued_data_first() -> None:
    async with joined() as pair:
        await pair.is_welcomed()
        data = bytes(range(256)) * 8_192
        pair.stream.send(data)
        reading = asyncio.create_task(pair.client_reads_to_end())
        closing = asyncio.create_task(pair.stream.close())
        assert await reading == data
        pair.client.close()
        await closing
        assert pair.stream.closed
        assert await pair.stream.receive() == []


async def test_a_refused_peer_gets_the_reason_before_close_however_much_it_sends() -> None:
    async with joined() as pair:
        sending = asyncio.create_task(
            pair.client_sends(b"POST / HTTP/1.1\r\n\r\n" + bytes(3_000_000))
        )
        (refused,) = await pair.stream.receive()
        assert isinstance(refused, ConnectionRefused)
        assert await pair.stream.receive() == []
        pair.stream.send(pair.connection.send_text(refused.reason))
        pair.stream.close_soon()
        (frame,) = FrameDecoder().receive_data(await pair.client_reads_to_end())
        assert frame.payload.decode() == refused.reason
        await sending
        pair.client.close()
        await pair.stream.wait_closed()


async def test_nothing_is_sent_after_closing_has_begun() -> None:
    stream, _, transport = remembering()
    stream.send(b"last words")
    stream.close_soon()
    stream.send(b"and another thing")
    assert not stream.send_event(b"event")
    await asyncio.sleep(0)
    assert transport.written == [b"last words"]
    stream.connection_lost(None)
    await stream.close()


async def test_a_peer_that_has_ended_is_closed_without_lingering() -> None:
    stream, _, transport = remembering()
    stream.eof_received()
    stream.close_soon()
    assert transport.ended == "close"


async def test_close_lingers_for_a_peer_that_may_be_sending() -> None:
    stream, _, transport = remembering()
    stream.data_received(requests(2, 1))
    stream.close_soon()
    assert transport.ended == "eof"
    assert stream.eof_received() is False
    stream.connection_lost(None)


async def test_an_aborted_stream_is_closed_for_all_waiters_at_once() -> None:
    async with joined() as pair:
        waiting = [
            asyncio.create_task(pair.stream.receive()),
            asyncio.create_task(pair.stream.wait_closed()),
        ]
        await asyncio.sleep(0)
        pair.stream.abort("because")
        assert await asyncio.gather(*waiting) == [[], None]
        assert (pair.stream.closed, pair.stream.lost_because) == (True, "because")
        pair.stream.send(b"x")
        assert not pair.stream.send_event(b"x")
        await pair.stream.drain()
        await pair.stream.close()


async def test_a_stream_that_never_connected_can_be_closed() -> None:
    stream: FrameStream[ReceivedByClient] = FrameStream(ClientConnection(), limits=LIMITS)
    assert stream.peer is None
    await stream.close()
    assert stream.closed


async def test_a_log_reads_as_a_transcript_and_keeps_tokens_secret() -> None:
    lines: list[str] = []
    async with joined(log=lines.append) as pair:
        pair.stream.send(pair.connection.send_text("hi"))
        await pair.client_sends(encode_frame(0x02, 1, b'{"token":"hunter2"}'))
        await pair.stream.receive()
        pair.stream.send(pair.connection.send_welcome(1, WELCOME))
        await pair.client_sends(encode_frame(PING, 9, b"x"))
        await pair.client_sends(encode_frame(0x1E, 10))
        await pair.stream.receive()
    assert lines[:2] == [
        "> CHAT_TEXT #0 hi [2 bytes]",
        '< HELLO #1 {"token":"…"} [19 bytes]',
    ]
    assert lines[2].startswith('> HELLO #1 {"version":3,')
    assert sorted(lines[3:]) == [
        "< PING #9 x [1 byte]",
        "< STATUS #10 [0 bytes]",
        "> PONG #9 x [1 byte]",
    ]


async def test_a_stream_has_peer_last_received_and_last_sent() -> None:
    async with joined() as pair:
        loop = asyncio.get_running_loop()
        assert pair.stream.peer == pair.client.getsockname()
        before = loop.time()
        await pair.is_welcomed()
        assert before <= pair.stream.last_received <= pair.stream.last_sent <= loop.time()
        assert pair.stream.unsent_bytes == 0


async def test_the_socket_has_tcp_nodelay_and_keepalive() -> None:
    async with joined() as pair:
        transport = pair.stream._transport
        assert transport is not None
        endpoint = transport.get_extra_info("socket")
        assert endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_connecting_to_a_closed_port_is_an_os_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(OSError):  # noqa: PT011 (which one is the system's choice)
            await open_stream("127.0.0.1", port, ClientConnection(), limits=LIMITS)


@pytest.mark.parametrize("steps", range(12))
async def test_connecting_that_is_cancelled_leaves_no_socket_open(steps: int) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        port = listener.getsockname()[1]
        before = open_sockets()
        connecting = asyncio.create_task(
            open_stream("127.0.0.1", port, ClientConnection(), limits=WireLimits())
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        if not connecting.cancel():
            (await connecting).abort()
        await asyncio.wait([connecting])
        await asyncio.sleep(0)
        assert open_sockets() == before


def open_sockets() -> int:
    return sum(link.is_socket() for link in Path("/proc/self/fd").iterdir())


async def test_last_sent_begins_with_the_time_of_connecting() -> None:
    begun = asyncio.get_running_loop().time()
    stream, _, _ = remembering()
    assert begun <= stream.last_sent <= asyncio.get_running_loop().time()


async def test_tcp_keepalive_is_sent_after_a_minute_of_silence() -> None:
    with socket.socket() as endpoint:

        class Connected(RememberingTransport):
            def get_extra_info(self, name: str, default: Any = None) -> Any:
                return endpoint if name == "socket" else default

        limits = WireLimits()
        FrameStream(ServerConnection(limits), limits=limits).connection_made(Connected())
        assert endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
