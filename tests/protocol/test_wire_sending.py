"""The writing half of a stream: one write per tick, and what counts as progress."""

from __future__ import annotations

from tests.protocol.fake_clock import FakeLoop
from tests.protocol.loopback import RememberingTransport

from nplt_protocol.limits import WireLimits
from nplt_protocol.sending import SendingSide


def a_sending_side() -> tuple[FakeLoop, SendingSide, RememberingTransport, list[float]]:
    loop, transport, stalled = FakeLoop(), RememberingTransport(), list[float]()
    sending = SendingSide(loop.as_loop, WireLimits(), lambda: stalled.append(loop.now))
    sending.start(transport)
    return loop, sending, transport, stalled


def test_what_the_kernel_takes_at_once_needs_no_timer() -> None:
    loop, sending, transport, _ = a_sending_side()
    sending.add_reply(b"x")
    loop.tick()
    assert (transport.written, loop.timers_made) == ([b"x"], 0)


def test_a_peer_that_takes_nothing_is_given_up_after_the_deadline() -> None:
    loop, sending, transport, stalled = a_sending_side()
    transport.stuck_bytes = 100
    sending.add_reply(bytes(100))
    loop.tick()
    loop.move_to(109.9)
    assert stalled == []
    loop.move_to(112.5)
    assert len(stalled) == 1


def test_a_peer_that_takes_a_byte_now_and_then_is_not_given_up() -> None:
    loop, sending, transport, stalled = a_sending_side()
    transport.stuck_bytes = 100
    sending.add_reply(bytes(100))
    loop.tick()
    for now in range(109, 1_000, 9):
        transport.stuck_bytes -= 1
        loop.move_to(now)
    assert transport.stuck_bytes > 0
    assert stalled == []


def test_no_timer_is_left_once_everything_is_sent() -> None:
    loop, sending, transport, stalled = a_sending_side()
    transport.stuck_bytes = 100
    sending.add_reply(bytes(100))
    loop.tick()
    transport.stuck_bytes = 0
    loop.move_to(1_000)
    assert (loop.timers, stalled) == ([], [])


def test_a_blocked_side_keeps_what_comes_and_sends_it_when_unblocked() -> None:
    loop, sending, transport, _ = a_sending_side()
    sending.block()
    sending.add_reply(b"a")
    assert sending.add_event(b"b")
    loop.tick()
    assert (transport.written, sending.unsent_bytes) == ([], 2)
    sending.unblock()
    assert transport.written == [b"ab"]


def test_a_finished_side_hands_over_all_it_has_and_takes_no_more() -> None:
    loop, sending, transport, _ = a_sending_side()
    sending.block()
    sending.add_reply(b"a")
    sending.finish()
    sending.add_reply(b"b")
    assert not sending.add_event(b"c")
    sending.unblock()
    loop.tick()
    assert transport.written == [b"a"]


def test_a_stopped_side_forgets_everything() -> None:
    loop, sending, transport, stalled = a_sending_side()
    transport.stuck_bytes = 100
    sending.add_reply(bytes(100))
    loop.tick()
    sending.add_reply(b"late")
    sending.stop()
    loop.tick()
    loop.move_to(1_000)
    assert (len(transport.written), sending.unsent_bytes, stalled) == (1, 0, [])
