"""What subscribers of a conversation get."""

from __future__ import annotations

import pytest
from tests.server.services import EventRecorder

from nplt_protocol.messages import SessionEvent
from nplt_server.conversations.broadcast import Broadcast


class Dropped(EventRecorder):
    is_dropped = False

    def dropped(self) -> None:
        self.is_dropped = True


def test_an_event_that_cannot_be_encoded_drops_the_subscribers_it_was_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broadcast, before, after = Broadcast("s1", 1_000), Dropped(), EventRecorder()
    broadcast.join(before)
    broadcast.announce("renamed", {"name": "\ud800"})
    assert before.is_dropped
    assert "an event can't be sent" in caplog.text
    broadcast.join(after)
    broadcast.announce("renamed", {"name": "x"})
    assert [event.event for event in after.received if isinstance(event, SessionEvent)] == [
        "renamed"
    ]
    assert before.received == []
