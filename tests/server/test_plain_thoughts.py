"""A plain client knows three kinds of thoughts; whatever is told it is one of these."""

from __future__ import annotations

from typing import cast

import pytest

from nplt_protocol.codes import MessageType
from nplt_protocol.connection import Received
from nplt_protocol.events import AgentThought
from nplt_protocol.replies import Receipt
from nplt_protocol.server_connection import ServerConnection
from nplt_protocol.stream import FrameStream
from nplt_server.conversations.audience import Said
from nplt_server.presenters.plain import PlainPresenter


class Sent:
    """What would leave by a socket."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.frames.append(data)


@pytest.mark.parametrize(
    ("kind", "told_as"),
    [("thinking", "thinking"), ("generating", "generating"), ("retrying", "thinking")],
)
def test_a_thought_is_told_as_one_of_the_kinds_it_knows(kind: str, told_as: str) -> None:
    connection = ServerConnection()
    connection.receive_data(b"\x01\x00\x00\x00\x05hello")
    sent = Sent()
    presenter = PlainPresenter(connection, cast(FrameStream[Received], sent))
    receipt = Receipt(
        turn_id="t1", session_id="s1", seq=1, message_id=None, position=0, state="running"
    )
    presenter.answer(MessageType.CHAT_TEXT, 0, receipt)
    thought = AgentThought(session_id="s1", turn_id="t1", type=kind, content="one moment")
    presenter.hear(Said(thought, 1_000))
    assert [frame[5:] for frame in sent.frames] == [
        f'{{"type":"{told_as}","content":"one moment"}}'.encode()
    ]
