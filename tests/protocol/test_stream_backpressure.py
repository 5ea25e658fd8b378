"""The stream under pressure: floods, stalled readers, unfinished messages.

Limits are small so that deadlines are near; nothing here depends on how fast
the machine is, only on what is and isn't bounded.
"""

from __future__ import annotations

import asyncio

from tests.protocol.loopback import joined, remembering, requests

from nplt_protocol import (
    HEADER,
    ConnectionRefused,
    FrameDecoder,
    RequestReceived,
    WireLimits,
    encode_frame,
)
from nplt_protocol.stream import INBOX_ITEMS_MAX, SLICE_BYTES, UNSENT_REPLY_BYTES_MAX

SOON = 0.05
SMALL = 4_096
PING, PONG, FILE_DATA = 0x04, 0x05, 0x0D
SMALLEST_FRAME = HEADER.size


# -- a peer that asks faster than it is heard ----------------------------------------


async def test_a_flood_is_received_in_bounded_batches_and_nothing_is_lost() -> None:
    async with joined() as pair:
        await pair.is_welcomed()
        flood = asyncio.create_task(pair.client_sends(requests(2, 60_000)))
        received: list[int] = []
        while len(received) < 60_000:
            batch = await pair.stream.receive()
            assert len(batch) <= INBOX_ITEMS_MAX + SLICE_BYTES // SMALLEST_FRAME
            received += [item.seq for item in batch if isinstance(item, RequestReceived)]
        assert received == list(range(2, 60_002))
        await flood


async def test_backpressure_pauses_reading_until_the_owner_empties_the_inbox() -> None:
    stream, _, transport = remembering()
    stream.data_received(requests(2, 2_000))
    assert not transport.reading
    received = 0
    while received < 2_000:
        received += len(await stream.receive())
    assert transport.reading


async def test_large_frames_fill_the_inbox_by_bytes_and_pause_reading() -> None:
    stream, _, transport = remembering()
    piece = encode_frame(FILE_DATA, 5, bytes(60_000))
    fed = 0
    while transport.reading:
        stream.data_received(piece)
        fed += 1
    assert 1024 * 1024 < fed * len(piece) < 1024 * 1024 + 2 * len(piece)
    assert len(await stream.receive()) == fed
    assert transport.reading


async def test_a_flood_that_ends_with_eof_is_received_to_its_end() -> None:
    async with joined() as pair:
        await pair.is_welcomed()
        await pair.client_sends(requests(2, 5_000))
        pair.client.close()
        received = 0
        while batch := await pair.stream.receive():
            received += len(batch)
        assert received == 5_000


# -- a peer that does not read --------------------------------------------------------


async def test_a_peer_that_sends_requests_and_never_reads_replies_needs_bounded_memory() -> None:
    async with joined(receive_buffer_bytes=65_536) as pair:
        await pair.is_welcomed()
        ping = encode_frame(PING, 1, bytes(1_000))
        count = 20_000
        flood = asyncio.create_task(pair.client_sends(ping * count))
        most = 0
        while pair.stream.unsent_bytes <= UNSENT_REPLY_BYTES_MAX and not flood.done():
            await asyncio.sleep(0)
            most = max(most, pair.stream.unsent_bytes)
        for _ in range(200):
            await asyncio.sleep(0)
            most = max(most, pair.stream.unsent_bytes)
        assert most < 1024 * 1024
        assert not flood.done()
        pongs = await pair.client_reads(len(ping) * count)
        assert pongs == encode_frame(PONG, 1, bytes(1_000)) * count
        await flood


async def test_events_for_a_stalled_reader_are_refused_and_replies_are_not() -> None:
    limits = WireLimits(event_bytes_max=100_000)
    async with joined(limits, receive_buffer_bytes=SMALL) as pair:
        await pair.is_welcomed()
        event, sent = encode_frame(0x21, 0, bytes(1_000)), 0
        while pair.stream.send_event(event):
            sent += 1
            await asyncio.sleep(0)
        assert pair.stream.unsent_bytes <= limits.event_bytes_max + 2 * len(event)
        reply = encode_frame(0x1E, 9, b"a reply")
        pair.stream.send(reply)
        assert not pair.stream.send_event(event)
        data = await pair.client_reads(sent * len(event) + len(reply))
        assert data == event * sent + reply
        await pair.stream.drain()
        assert pair.stream.send_event(event)


async def test_unsent_replies_do_not_count_against_the_limit_of_events() -> None:
    stream, _, transport = remembering(WireLimits(event_bytes_max=1_000))
    stream.pause_writing()
    stream.send(bytes(100_000))
    assert stream.send_event(bytes(1_000))
    assert stream.send_event(b"x")
    assert not stream.send_event(b"x")
    assert transport.written == []
    stream.resume_writing()
    assert len(transport.written[0]) == 101_001


async def test_unsent_events_do_not_count_as_replies_and_reading_goes_on() -> None:
    stream, _, transport = remembering(WireLimits(event_bytes_max=2 * UNSENT_REPLY_BYTES_MAX))
    stream.pause_writing()
    assert stream.send_event(bytes(UNSENT_REPLY_BYTES_MAX + 1))
    assert not stream.replies_pile_up
    stream.data_received(requests(2, 1))
    assert transport.reading
    stream.send(bytes(UNSENT_REPLY_BYTES_MAX + 1))
    assert stream.replies_pile_up


async def test_the_backlog_is_received_after_replies_had_piled_up() -> None:
    stream, _, _ = remembering()
    stream.pause_writing()
    stream.send(bytes(UNSENT_REPLY_BYTES_MAX + 1))
    count = 2 * SLICE_BYTES // SMALLEST_FRAME
    stream.data_received(requests(2, count))
    first = await stream.receive()
    assert 0 < len(first) < count
    stream.connection_lost(None)
    rest = await asyncio.wait_for(stream.receive(), timeout=60)
    assert len(first) + len(rest) == count
    assert await stream.receive() == []


async def test_events_in_the_transport_count_as_unsent_until_it_is_empty() -> None:
    stream, _, transport = remembering(WireLimits(event_bytes_max=1_000))
    transport.stuck_bytes = 900
    stream.pause_writing()
    assert stream.send_event(bytes(900))
    stream.resume_writing()
    stream.pause_writing()
    assert stream.send_event(bytes(101))
    assert not stream.send_event(b"x")
    transport.stuck_bytes = 0
    assert stream.send_event(b"x")


async def test_many_events_in_one_tick_are_not_refused_as_lag() -> None:
    stream, _, transport = remembering(WireLimits(event_bytes_max=1_000))
    assert all(stream.send_event(bytes(100)) for _ in range(100))
    await asyncio.sleep(0)
    assert sum(map(len, transport.written)) == 10_000


async def test_drain_waits_for_a_slow_reader() -> None:
    async with joined(receive_buffer_bytes=SMALL) as pair:
        await pair.is_welcomed()
        pair.stream.send(bytes(5_000_000))
        draining = asyncio.create_task(pair.stream.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        reading = asyncio.create_task(pair.client_reads(5_000_000))
        await draining
        assert len(await reading) == 5_000_000


async def test_drain_ends_when_the_connection_does() -> None:
    stream, _, _ = remembering()
    stream.pause_writing()
    draining = asyncio.create_task(stream.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    stream.connection_lost(ConnectionResetError("gone"))
    await draining
    assert stream.lost_because == "gone"


async def test_a_peer_that_reads_nothing_is_disconnected_at_the_write_deadline() -> None:
    async with joined(WireLimits(write_seconds_max=SOON), receive_buffer_bytes=SMALL) as pair:
        await pair.is_welcomed()
        pair.stream.send(bytes(20_000_000))
        await pair.stream.wait_closed()
        assert pair.stream.lost_because == "the peer took nothing for 0.05 s"


async def test_closing_does_not_wait_forever_for_a_stalled_reader() -> None:
    async with joined(WireLimits(write_seconds_max=SOON), receive_buffer_bytes=SMALL) as pair:
        await pair.is_welcomed()
        pair.stream.send(bytes(20_000_000))
        await pair.stream.close()
        assert pair.stream.closed


# -- a peer that does not finish --------------------------------------------------------


async def test_an_unfinished_frame_meets_the_message_deadline() -> None:
    async with joined(WireLimits(message_seconds_max=SOON)) as pair:
        await pair.client_sends(encode_frame(0x01, 0, b"hello")[:-1])
        assert await pair.stream.receive() == [
            ConnectionRefused(reason="A message was begun and not finished within 0.05 s.")
        ]
        assert await pair.stream.receive() == []
        pair.stream.send(pair.connection.send_text("too slow"))
        pair.stream.close_soon()
        (frame,) = FrameDecoder().receive_data(await pair.client_reads_to_end())
        assert frame.payload == b"too slow"


async def test_unfinished_fragments_meet_the_message_deadline_too() -> None:
    async with joined(WireLimits(message_seconds_max=SOON)) as pair:
        await pair.is_welcomed()
        await pair.client_sends(HEADER.pack(0x81, 2, 65_535) + bytes(65_535))
        (refused,) = await pair.stream.receive()
        assert isinstance(refused, ConnectionRefused)


async def test_trickling_bytes_does_not_move_the_deadline() -> None:
    async with joined(WireLimits(message_seconds_max=SOON)) as pair:

        async def trickle() -> None:
            for byte in encode_frame(0x01, 0, bytes(60_000)):
                await pair.client_sends(bytes([byte]))
                await asyncio.sleep(SOON / 10)

        trickling = asyncio.create_task(trickle())
        (refused,) = await pair.stream.receive()
        assert isinstance(refused, ConnectionRefused)
        trickling.cancel()


async def test_the_message_deadline_does_not_run_while_reading_is_paused() -> None:
    stream, _, transport = remembering(WireLimits(message_seconds_max=SOON))
    unfinished = encode_frame(0x01, 9_999, b"hello")
    stream.data_received(requests(2, 2_000) + unfinished[:-1])
    assert not transport.reading
    await asyncio.sleep(3 * SOON)
    received: list[object] = []
    while not transport.reading:
        received += await stream.receive()
    stream.data_received(unfinished[-1:])
    received += await stream.receive()
    assert len(received) == 2_001
    assert all(isinstance(item, RequestReceived) for item in received)
