"""A plain client knows three kinds of thoughts, and takes them before the text only."""

from __future__ import annotations

import json
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_protocol.codes import MessageType
from nplt_protocol.connection import Received
from nplt_protocol.messages import (
    AgentThought,
    Event,
    Receipt,
    TextDelta,
    ToolStarted,
    TurnFinished,
)
from nplt_protocol.server_connection import ServerConnection
from nplt_protocol.stream import FrameStream
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.dialects import HELD_SECONDS, PlainPresenter


class Sent:
    """What would leave by a socket."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.frames.append(data)


@pytest.mark.parametrize(
    ("kind", "shown_as"),
    [("thinking", "thinking"), ("generating", "generating"), ("retrying", "thinking")],
)
def test_an_agent_thought_has_a_kind_that_version_2_knows(kind: str, shown_as: str) -> None:
    connection = ServerConnection()
    connection.receive_data(b"\x01\x00\x00\x00\x05hello")
    sent = Sent()
    presenter = PlainPresenter(connection, cast(FrameStream[Received], sent))
    receipt = Receipt(
        turn_id="t1", session_id="s1", seq=1, message_id=None, position=0, state="running"
    )
    presenter.reply(MessageType.CHAT_TEXT, 0, receipt)
    thought = AgentThought(session_id="s1", turn_id="t1", type=kind, content="one moment")
    presenter.send_event(BroadcastEvent(thought, 1_000))
    assert [frame[5:] for frame in sent.frames] == [
        f'{{"type":"{shown_as}","content":"one moment"}}'.encode()
    ]


class Chat:
    """One chat of a plain client, told event by event, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent = Sent()
        connection = ServerConnection()
        connection.receive_data(b"\x01\x00\x00\x00\x05hello")
        stream = cast(FrameStream[Received], self.sent)
        self.presenter = PlainPresenter(connection, stream, clock=lambda: self.now)
        receipt = Receipt(turn_id="t1", session_id="s1", seq=1, position=0, state="running")
        self.presenter.reply(MessageType.CHAT_TEXT, 0, receipt)

    def tell(self, event: Event) -> None:
        self.presenter.send_event(BroadcastEvent(event, 1_000))

    def text(self, call: int, text: str) -> None:
        self.tell(TextDelta(session_id="s1", turn_id="t1", call=call, offset=0, text=text))

    def tool(self, call: int, name: str) -> None:
        self.tell(
            ToolStarted(
                session_id="s1",
                turn_id="t1",
                call=call,
                tool_call_id=name,
                tool_name=name,
                arguments={},
            )
        )

    def finish(self) -> None:
        self.tell(TurnFinished(session_id="s1", turn_id="t1", state="completed", seq=2))

    @property
    def texts(self) -> list[str]:
        """The kinds of the thoughts, and the texts."""
        return [
            json.loads(frame[5:])["type"] if frame[0] == MessageType.AGENT_THOUGHT else _text(frame)
            for frame in self.sent.frames
        ]


def _text(frame: bytes) -> str:
    return frame[5:].decode()


def test_a_tool_in_mid_answer_comes_before_the_stream_and_the_texts_stay_apart() -> None:
    chat = Chat()
    chat.text(0, "Let me look.")
    chat.tool(0, "clock")
    chat.text(1, "It is noon.")
    chat.finish()
    assert chat.texts == ["tool_call", "stream_start", "Let me look.\n\nIt is noon.", ""]


def test_text_is_held_for_a_moment_only_and_streams_from_then_on() -> None:
    chat = Chat()
    chat.text(0, "a ")
    assert chat.texts == []
    chat.now += HELD_SECONDS
    chat.text(0, "b ")
    assert chat.texts == ["stream_start", "a b "]
    chat.text(0, "c")
    assert chat.texts[2:] == ["c"]


def test_a_tool_after_the_stream_began_is_a_blank_line() -> None:
    chat = Chat()
    chat.text(0, "Let me ")
    chat.now += HELD_SECONDS
    chat.text(0, "look.")
    chat.tool(0, "clock")
    chat.text(1, "It is noon.")
    chat.finish()
    assert chat.texts == ["stream_start", "Let me look.", "\n\nIt is noon.", ""]


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["text", "tool", "retrying", "wait"]),
        st.sampled_from(["", " ", "\n", "a", "HEARTBEAT", "two words"]),
    ),
    max_size=30,
)


@given(_STEPS)
def test_thoughts_come_before_the_stream_whatever_happens(steps: list[tuple[str, str]]) -> None:
    chat, call = Chat(), 0
    for step, text in steps:
        match step:
            case "text" if text:
                chat.text(call, text)
            case "tool":
                chat.tool(call, "clock")
                call += 1
            case "retrying":
                chat.tell(AgentThought(session_id="s1", turn_id="t1", type="retrying"))
            case _:
                chat.now += HELD_SECONDS / 2
    chat.finish()
    codes = [frame[0] for frame in chat.sent.frames]
    assert codes == sorted(codes, reverse=True), "AGENT_THOUGHT is 0x0A, CHAT_TEXT is 0x01"
    thoughts = [json.loads(f[5:])["type"] for f in chat.sent.frames if f[0] == 0x0A]
    assert thoughts.count("stream_start") == 1
    assert thoughts[-1] == "stream_start"
    *pieces, end = (_text(frame) for frame in chat.sent.frames if frame[0] == 0x01)
    assert end == ""
    assert pieces
    assert all(piece.strip() and piece != "HEARTBEAT" for piece in pieces)
