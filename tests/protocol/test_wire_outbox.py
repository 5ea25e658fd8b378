"""The outbox: what waits, and how much of it is replies and how much events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nplt_protocol.outbox import Outbox

pieces = st.lists(st.tuples(st.booleans(), st.binary(max_size=8)), max_size=20)


@given(pieces)
def test_what_is_taken_is_what_was_added_in_order(added: list[tuple[bool, bytes]]) -> None:
    outbox = Outbox()
    for is_event, data in added:
        (outbox.add_event if is_event else outbox.add_reply)(data)
    assert bool(outbox) == bool(added)
    assert outbox.take(0) == b"".join(data for _, data in added)
    assert not outbox


@given(pieces, st.integers(0, 100))
def test_replies_and_events_together_are_all_that_is_unsent(
    added: list[tuple[bool, bytes]], still_in_transport: int
) -> None:
    outbox = Outbox()
    for is_event, data in added:
        (outbox.add_event if is_event else outbox.add_reply)(data)
    total = outbox.unsent_bytes(0)
    assert total == sum(len(data) for _, data in added)
    assert outbox.unsent_event_bytes(0) == sum(len(data) for is_event, data in added if is_event)
    outbox.take(0)
    left = min(still_in_transport, total)
    assert outbox.unsent_bytes(left) == left
    assert outbox.unsent_event_bytes(left) + outbox.unsent_reply_bytes(left) == left
    assert outbox.sent_bytes(left) == total - left


def test_events_the_transport_holds_still_count_until_it_is_empty() -> None:
    outbox = Outbox()
    outbox.add_event(bytes(100))
    outbox.take(0)
    outbox.add_event(bytes(10))
    assert outbox.unsent_event_bytes(60) == 70
    outbox.take(60)
    assert outbox.unsent_event_bytes(70) == 70
    outbox.add_reply(bytes(5))
    outbox.take(0)
    assert outbox.unsent_event_bytes(5) == 0


def test_a_cleared_outbox_has_nothing_to_send() -> None:
    outbox = Outbox()
    outbox.add_event(b"x")
    outbox.clear()
    assert not outbox
    assert outbox.unsent_bytes(0) == outbox.unsent_event_bytes(0) == 0
