"""Presents replies and events to version 3 clients, as typed JSON.

A reply carries the seq of its request; event frames are encoded once for all clients.
"""

from __future__ import annotations

from nplt_protocol import MessageType, Received, RequestError, ServerConnection, encode_event
from nplt_protocol.messages import Reply, SessionEvent
from nplt_protocol.stream import FrameStream
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.settings import Limits


class StructuredPresenter:
    __slots__ = ("_connection", "_stream")

    has_handshake = True
    can_decide = True
    answer_bytes_max = None
    is_ready = True

    def __init__(self, connection: ServerConnection, stream: FrameStream[Received]) -> None:
        self._connection = connection
        self._stream = stream

    def number(self, seq: int) -> int:
        return seq

    def answer(self, message_type: MessageType, seq: int, reply: Reply) -> None:
        self._stream.send(self._connection.send_reply(message_type, seq, reply))

    def refuse(self, message_type: int, seq: int, error: RequestError) -> None:
        self._stream.send(self._connection.send_error(seq, error))

    def send_event(self, event: BroadcastEvent) -> bool:
        return self._stream.send_event(event.frames)

    def replay(self, frames: bytes) -> None:
        self._stream.send(frames)

    def lagged(self, session_id: str, head_seq: int) -> None:
        event = SessionEvent(session_id=session_id, event="lagged", details={"head_seq": head_seq})
        self._stream.send(encode_event(event))

    async def ready(self) -> None:
        pass

    def expect(self, message_type: int) -> None:
        """Requests are taken up as they come; only replies may overtake each other."""

    def check_silence(self, silence: float, unsent: float, limits: Limits) -> None:
        """A client may be silent for as long as it likes, unless it names a `keepalive`."""

    def last_words(self, error: RequestError) -> None:
        self._stream.send(self._connection.send_error(0, error))
