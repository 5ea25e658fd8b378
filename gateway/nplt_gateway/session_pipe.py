"""Ordinary sessions in this process, for clients that come by HTTP.

A `SessionPipe` is the client's end of such a session. Requests pass through the same checks as
those of a socket, handlers included, and the session joins conversations like any other. Replies
and events are handed over as values: they are neither encoded nor decoded for a client that is in
the same process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self, TypeVar

from msgspec.structs import replace

from nplt_protocol import (
    FRAME_PAYLOAD_BYTES_MAX,
    ErrorCode,
    LocalProtocolError,
    MessageType,
    Received,
    RequestError,
    ServerConnection,
)
from nplt_protocol.codec import decode_event, encode_request
from nplt_protocol.codes import MORE
from nplt_protocol.frames import FragmentJoiner, Frame, FrameDecoder
from nplt_protocol.messages import (
    Door,
    Event,
    FileData,
    FileMetadata,
    FileStored,
    Reply,
    Request,
)
from nplt_protocol.stream import FrameStream, Notifier
from nplt_server.app import Server
from nplt_server.connections.session import Session
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.dialects import Presenter, lagged_event
from nplt_server.requests import HANDLERS

ReplyT = TypeVar("ReplyT", bound=Reply)


class PipeClosed(RequestError):
    """The server has closed the session; it says why."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.code, error.message, retry_after=error.retry_after)


@dataclass(slots=True, eq=False, repr=False)
class PipeSession(Session):
    """The session of a client of HTTP. It can't be asked for approvals, and other clients do
    not see it come and go with each of its requests."""

    door: Door = "http"

    @property
    def can_decide(self) -> bool:
        return False

    @property
    def is_present(self) -> bool:
        return False


class SessionPipe:
    """The client's end of a session; use it as an async context manager. Leaving the block ends the
    session and stops no turn."""

    def __init__(self, server: Server, user: str, *, client: str, address: str) -> None:
        self._server = server
        # A prompt may bring all of the conversation; the body it came in was within its limit.
        bytes_max = server.settings.limits.http_body_bytes_max
        limits = replace(
            server.wire_limits,
            message_bytes_max=max(bytes_max, server.wire_limits.message_bytes_max),
        )
        self._limits = limits
        connection = ServerConnection(limits)
        connection.skip_handshake()
        connection.frame_bytes_max = FRAME_PAYLOAD_BYTES_MAX
        self._stream: FrameStream[Received] = FrameStream(connection, limits=limits)
        self._stream.connection_made(_PipeTransport(self, address))
        self._connection = connection
        self._session = PipeSession(
            self._stream,
            connection,
            server,
            HANDLERS,
            user=user,
            client_name=client,
            is_authenticated=True,
            _presenter=_PipePresenter(self, connection, self._stream),
        )
        self._seqs = count(1)
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._events: deque[tuple[Event, int]] = deque()
        self._event_bytes = 0
        self._event_bytes_max = limits.event_bytes_max
        self._received = Notifier(asyncio.get_running_loop())
        self._closed: RequestError | None = None

    async def __aenter__(self) -> Self:
        self._server.sessions.add(self._session)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.sessions.discard(self._session)
        await self._session.end()
        self._stream.abort()

    async def ask(self, request: Request, shape: type[ReplyT]) -> ReplyT:
        """Sends a request and returns its reply. Raises `RequestError` if it is refused, and
        `PipeClosed`."""
        answer = await self._send([request])
        assert isinstance(answer, shape)
        return answer

    async def upload(self, file: FileMetadata, data: bytes) -> FileStored:
        """Stores a file as an attachment of the conversation that the session is in."""
        pieces = range(0, len(data), FRAME_PAYLOAD_BYTES_MAX)
        answer = await self._send(
            [file, *(FileData(data=data[at : at + FRAME_PAYLOAD_BYTES_MAX]) for at in pieces)]
        )
        assert isinstance(answer, FileStored)
        return answer

    async def _send(self, requests: Sequence[Request]) -> Reply:
        """Sends requests that have one reply together."""
        if self._closed is not None:
            raise PipeClosed(self._closed)
        seq = next(self._seqs)
        bytes_max = self._limits.message_bytes_max
        reply = self._replies[seq] = asyncio.get_running_loop().create_future()
        for request in requests:
            try:
                frames = encode_request(request, seq, message_bytes_max=bytes_max)
            except LocalProtocolError as error:
                del self._replies[seq]
                raise RequestError(ErrorCode.TOO_LARGE, str(error), field="text") from None
            for received in self._connection.receive_data(frames):
                await self._session.receive(received)
        answer: Reply = await reply
        return answer

    async def next_event(self) -> Event:
        """Returns the next event of the conversation that the session is in. Raises `PipeClosed`
        once the server has closed the session. After `lagged` no more events come until it
        attaches again."""
        while not self._events:
            if self._closed is not None:
                raise PipeClosed(self._closed)
            await self._received.wait()
        event, size = self._events.popleft()
        self._event_bytes -= size
        return event

    def waiting_events(self) -> Iterator[Event]:
        """Takes the events that have come already."""
        while self._events:
            event, size = self._events.popleft()
            self._event_bytes -= size
            yield event

    @property
    def message_bytes_max(self) -> int:
        return self._server.wire_limits.message_bytes_max

    @property
    def session_id(self) -> str | None:
        """The conversation that the session is in."""
        return self._session.current_id

    def enter_fresh(self) -> None:
        """Attaches to a conversation that is created with its first prompt."""
        self._session.enter_fresh()

    # For the session

    def reply(self, seq: int, reply: Reply) -> None:
        waiting = self._replies.pop(seq, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def refuse(self, seq: int, error: RequestError) -> None:
        waiting = self._replies.pop(seq, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def add_event(self, event: Event, size: int) -> bool:
        """Returns False if too many bytes of events wait."""
        if self._event_bytes + size > self._event_bytes_max and self._events:
            return False
        self._add(event, size)
        return True

    def add_events(self, events: Iterable[Event]) -> None:
        """Adds events that the client asked for, whatever waits already."""
        for event in events:
            self._add(event, 0)

    def _add(self, event: Event, size: int) -> None:
        self._events.append((event, size))
        self._event_bytes += size
        self._received.notify()

    def close(self, error: RequestError | None = None) -> None:
        if self._closed is not None:
            return
        self._closed = error or RequestError(ErrorCode.UNAVAILABLE, "the server closed the session")
        waiting, self._replies = self._replies, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(PipeClosed(self._closed))
        self._received.notify()


class _PipePresenter(Presenter):
    """Hands replies and events over as values."""

    __slots__ = ("_pipe",)

    can_decide = False

    def __init__(
        self, pipe: SessionPipe, connection: ServerConnection, stream: FrameStream[Received]
    ) -> None:
        super().__init__(connection, stream)
        self._pipe = pipe

    def reply(self, message_type: MessageType, seq: int, reply: Reply) -> None:
        self._pipe.reply(seq, reply)

    def refuse(self, message_type: int, seq: int, error: RequestError) -> None:
        self._pipe.refuse(seq, error)

    def send_event(self, event: BroadcastEvent) -> bool:
        return self._pipe.add_event(event.event, len(event.frames))

    def replay(self, frames: bytes) -> None:
        self._pipe.add_events(_events_in(frames))

    def lagged(self, session_id: str, head_seq: int, *, watch: bool = False) -> None:
        self._pipe.add_events([lagged_event(session_id, head_seq, watch=watch)])

    def last_words(self, error: RequestError) -> None:
        self._pipe.close(error)


def _events_in(frames: bytes) -> Iterable[Event]:
    """Decodes events; a replay exists only as frames."""
    joiner = FragmentJoiner(len(frames) + 1)
    for frame in FrameDecoder().receive_data(frames):
        whole = joiner.receive_frame(frame) if frame.type & MORE or joiner.is_open else [frame]
        for message in whole:
            if isinstance(message, Frame):
                event = decode_event(message.type, message.payload)
                if event is not None:
                    yield event


class _PipeTransport(asyncio.Transport):
    """The transport of a session in this process. Nothing is written to it, except what does not
    pass through the presenter."""

    def __init__(self, pipe: SessionPipe, address: str) -> None:
        super().__init__(extra={"peername": (address, 0)})
        self._pipe = pipe

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self._pipe.close()

    abort = close
