"""The timers of a stream, by a clock that the test moves: the message deadline and the
write deadline."""

from __future__ import annotations

from tests.protocol.fake_clock import FakeLoop
from tests.protocol.loopback import RememberingTransport

from nplt_protocol import WireLimits
from nplt_protocol.stream import Deadline, Writer


def a_deadline() -> tuple[FakeLoop, Deadline, list[float]]:
    loop, missed = FakeLoop(), list[float]()
    deadline = Deadline(loop.as_loop, 10.0, lambda: missed.append(loop.now))
    return loop, deadline, missed


def test_a_deadline_that_was_never_started_has_no_timer() -> None:
    loop, deadline, missed = a_deadline()
    loop.move_to(1_000)
    assert (loop.timers_made, missed, deadline.is_running) == (0, [], False)


def test_a_deadline_is_missed_once_after_its_seconds() -> None:
    loop, deadline, missed = a_deadline()
    deadline.restart()
    loop.move_to(109.9)
    assert missed == []
    loop.move_to(200)
    assert missed == [110.0]
    assert not deadline.is_running


def test_a_restarted_deadline_counts_from_its_last_restart() -> None:
    loop, deadline, missed = a_deadline()
    deadline.restart()
    loop.move_to(107)
    deadline.restart()
    loop.move_to(116.9)
    assert missed == []
    loop.move_to(200)
    assert missed == [117.0]


def test_a_thousand_restarts_make_one_timer() -> None:
    loop, deadline, _ = a_deadline()
    for _ in range(1_000):
        deadline.restart()
    assert loop.timers_made == 1


def test_a_paused_deadline_is_not_missed_and_leaves_no_timer_behind() -> None:
    loop, deadline, missed = a_deadline()
    deadline.restart()
    deadline.pause()
    loop.move_to(1_000)
    assert (missed, loop.timers) == ([], [])


def test_a_cancelled_deadline_cancels_its_timer() -> None:
    loop, deadline, missed = a_deadline()
    deadline.restart()
    deadline.cancel()
    assert loop.timers[0].cancelled
    loop.move_to(1_000)
    assert missed == []


def a_writer() -> tuple[FakeLoop, Writer, RememberingTransport, list[float]]:
    loop, transport, stalled = FakeLoop(), RememberingTransport(), list[float]()
    writer = Writer(loop.as_loop, WireLimits(), lambda: stalled.append(loop.now))
    writer.start(transport)
    return loop, writer, transport, stalled


def test_a_write_that_the_kernel_accepts_at_once_sets_no_timer() -> None:
    loop, writer, transport, _ = a_writer()
    writer.add_reply(b"x")
    loop.tick()
    assert (transport.written, loop.timers_made) == ([b"x"], 0)


def test_a_peer_that_reads_nothing_is_stalled_after_the_write_deadline() -> None:
    loop, writer, transport, stalled = a_writer()
    transport.stuck_bytes = 100
    writer.add_reply(bytes(100))
    loop.tick()
    loop.move_to(109.9)
    assert stalled == []
    loop.move_to(112.5)
    assert len(stalled) == 1


def test_a_peer_that_reads_a_byte_now_and_then_is_not_stalled() -> None:
    loop, writer, transport, stalled = a_writer()
    transport.stuck_bytes = 100
    writer.add_reply(bytes(100))
    loop.tick()
    for now in range(109, 1_000, 9):
        transport.stuck_bytes -= 1
        loop.move_to(now)
    assert transport.stuck_bytes > 0
    assert stalled == []


def test_no_timer_is_left_once_everything_is_sent() -> None:
    loop, writer, transport, stalled = a_writer()
    transport.stuck_bytes = 100
    writer.add_reply(bytes(100))
    loop.tick()
    transport.stuck_bytes = 0
    loop.move_to(1_000)
    assert (loop.timers, stalled) == ([], [])


def test_a_blocked_writer_keeps_data_and_sends_it_when_unblocked() -> None:
    loop, writer, transport, _ = a_writer()
    writer.is_blocked = True
    writer.add_reply(b"a")
    assert writer.add_event(b"b")
    loop.tick()
    assert (transport.written, writer.unsent_bytes) == ([], 2)
    writer.unblock()
    assert transport.written == [b"ab"]


def test_a_finished_writer_flushes_and_accepts_no_more_data() -> None:
    loop, writer, transport, _ = a_writer()
    writer.is_blocked = True
    writer.add_reply(b"a")
    writer.finish()
    writer.add_reply(b"b")
    assert not writer.add_event(b"c")
    writer.unblock()
    loop.tick()
    assert transport.written == [b"a"]


def test_a_stopped_writer_drops_all_data() -> None:
    loop, writer, transport, stalled = a_writer()
    transport.stuck_bytes = 100
    writer.add_reply(bytes(100))
    loop.tick()
    writer.add_reply(b"late")
    writer.stop()
    loop.tick()
    loop.move_to(1_000)
    assert (len(transport.written), writer.unsent_bytes, stalled) == (1, 0, [])
