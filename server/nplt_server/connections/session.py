"""One connection's view: which conversation it stands in, and as whom.

It takes up requests in the order they were sent and hands them to their
handlers; it hears its conversation and passes that on to its presenter. It
keeps nothing that must outlive the connection.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count

import anyio
import anyio.lowlevel

from nplt_protocol.codes import ErrorCode, MessageType
from nplt_protocol.connection import (
    ConnectionRefused,
    Dialect,
    Received,
    RequestReceived,
    RequestRefused,
)
from nplt_protocol.errors import ProtocolError, RequestError
from nplt_protocol.events import SessionEvent, TurnFinished
from nplt_protocol.replies import Receipt
from nplt_protocol.requests import Hello, ModelSwitch, Request
from nplt_protocol.server_connection import ServerConnection
from nplt_protocol.stream import FrameStream
from nplt_server.connections.front_desk import FrontDesk
from nplt_server.connections.uploads import Uploads
from nplt_server.connections.users import LOCAL_USER
from nplt_server.conversations.audience import NOBODY, Guest, Said
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.presence import come_in, go_out, step_back
from nplt_server.conversations.registry import Registry
from nplt_server.errors import as_request_error, internal_error
from nplt_server.presenters.base import Answer, Presenter
from nplt_server.presenters.plain import PlainPresenter
from nplt_server.presenters.structured import StructuredPresenter

log = logging.getLogger(__name__)

_BATCH_SECONDS_MAX = 0.005
_CONNECTIONS = count(1)

Answering = Callable[["Session", Request, Answer], Awaitable[None]]


class Session:
    __slots__ = (
        "__weakref__",
        "_answering",
        "_awaited_at",
        "_connected_at",
        "_last_left_turn",
        "_my_turns",
        "_presenter",
        "_settled",
        "address",
        "client_id",
        "client_name",
        "connection",
        "conversation",
        "failed_hellos",
        "front_desk",
        "has_said_all",
        "is_welcome",
        "keepalive",
        "observer",
        "registry",
        "stream",
        "uploads",
        "user",
    )

    def __init__(
        self,
        stream: FrameStream[Received],
        connection: ServerConnection,
        *,
        registry: Registry,
        front_desk: FrontDesk,
        answering: Answering,
        uploads: Uploads,
    ) -> None:
        self.stream = stream
        self.address = stream.peer[0] if stream.peer else ""
        self.connection = connection
        self.registry = registry
        self.front_desk = front_desk
        self.uploads = uploads
        self.user = LOCAL_USER
        self.client_id = f"c{next(_CONNECTIONS)}"
        self.client_name = ""
        self.keepalive: float | None = None
        self.observer = False
        self.is_welcome = False
        self.has_said_all = False
        self.failed_hellos = 0
        self.conversation: Conversation | None = None
        self._answering = answering
        self._presenter: Presenter | None = None
        self._my_turns: dict[str, None] = {}
        """Those it started and still hears of, oldest first."""
        self._last_left_turn: str | None = None
        self._settled: anyio.Event | None = None
        self._connected_at = self._awaited_at = anyio.current_time()

    # What others may know of it

    @property
    def is_undecided(self) -> bool:
        return self.connection.dialect is None

    @property
    def last_turn(self) -> str | None:
        return next(reversed(self._my_turns), self._last_left_turn)

    # The connection's life

    async def run(self) -> None:
        self.stream.send(self.connection.send_text(self.front_desk.greeting))
        try:
            while batch := await self.stream.receive():
                await self._take_all(batch)
            await self._see_out()
        finally:
            self.depart()
            with anyio.CancelScope(shield=True):
                await self.uploads.abandon()

    async def _take_all(self, batch: list[Received]) -> None:
        began = anyio.current_time()
        for received in batch:
            await self._take(received)
            if self.stream.replies_pile_up:
                await self.stream.drain()
            if anyio.current_time() - began > _BATCH_SECONDS_MAX:
                await anyio.lowlevel.checkpoint()  # others want to be served too
                began = anyio.current_time()

    async def _take(self, received: Received) -> None:
        if isinstance(received, ConnectionRefused):
            self.send_away(received.reason, ErrorCode.MALFORMED)
            return
        presenter = self._presenter or self._begin()
        if self.front_desk.users.need_tokens and self.is_welcome:
            await self.front_desk.keep_pace(self.user)
        if self.connection.dialect is Dialect.PLAIN and self.front_desk.users.need_tokens:
            self.send_away("This server wants a token, which version 2 can't give.")
            return
        if isinstance(received, RequestRefused):
            presenter.expect(received.type)
            presenter.refuse(received.type, received.seq, received.error)
            if received.type == MessageType.FILE_METADATA:
                self.uploads.swallow(_number(received, presenter))
            if not self.is_welcome:
                self.count_failed_hello()
            return
        await self._handle(received, presenter)
        if not presenter.is_ready:
            await _unless_closed(self.stream, presenter.ready)

    async def _handle(self, received: RequestReceived, presenter: Presenter) -> None:
        request = received.request
        # A model switch typed as a chat text is answered as a switch.
        is_switch = isinstance(request, ModelSwitch)
        message_type = MessageType.MODEL_SWITCH if is_switch else received.type
        presenter.expect(message_type)
        seq = _number(received, presenter)
        answer = Answer(presenter, message_type, seq, self._something_settled)
        try:
            if not self.is_welcome and not isinstance(request, Hello):
                raise RequestError(ErrorCode.UNAUTHORIZED, "HELLO was not accepted")
            await self._answering(self, request, answer)
        except Exception as error:
            self.refuse(answer, error)

    def _begin(self) -> Presenter:
        """The first frame told which dialect this is."""
        if self.connection.dialect is Dialect.STRUCTURED:
            self._presenter = StructuredPresenter(self.connection, self.stream)
        else:
            self._presenter = PlainPresenter(self.connection, self.stream)
            self.is_welcome = True
            self.enter(self.registry.fresh(self.user))
        return self._presenter

    async def _see_out(self) -> None:
        """The client has said all it wanted. What it asked for is still told,
        if it listens (`nc -N` does); nobody can know, so nobody counts on it."""
        if self.conversation is not None:
            step_back(self.conversation, self, guest_of(self, observer=self.observer))
        self.has_said_all = True
        await self.uploads.give_up()
        while (self._my_turns or self.connection.unanswered) and not self.stream.closed:
            self._settled = anyio.Event()
            await _unless_closed(self.stream, self._settled.wait)
        await self.stream.close()

    # Where it stands

    def enter(self, conversation: Conversation, *, observer: bool = False) -> None:
        self.depart()
        self.conversation = conversation
        self.observer = observer
        come_in(conversation, self, guest_of(self, observer=observer))

    def depart(self) -> None:
        if self.conversation is not None:
            go_out(self.conversation, self, guest_of(self, observer=self.observer))
            self._last_left_turn = self.last_turn
            self._my_turns.clear()
            self._something_settled()
            self.conversation.used_at = anyio.current_time()
            self.registry.left(self.conversation)
            self.conversation = None

    def here(self) -> Conversation:
        if self.conversation is None:
            raise RequestError(
                ErrorCode.NOT_FOUND,
                "you are not attached to any conversation; name one",
                field="session_id",
            )
        return self.conversation

    # What it is told

    def hear(self, said: Said) -> None:
        match said.event:
            case TurnFinished(turn_id=turn_id):
                self._my_turns.pop(turn_id, None)
                self._something_settled()
            case SessionEvent(event="deleted"):
                self._tell(said)
                self.enter(self.registry.fresh(self.user))
                return
            case SessionEvent(event="lagged"):
                self._tell(said)
                self.depart()
                return
            case _:
                pass
        self._tell(said)

    def _something_settled(self) -> None:
        if self._settled is not None:
            self._settled.set()

    def _tell(self, said: Said) -> None:
        if self._presenter is None or self._presenter.hear(said):
            return
        conversation = self.here()
        self.depart()
        self._presenter.lagged(conversation.session_id, conversation.history.head_seq)

    def replay(self, frames: bytes) -> None:
        if self._presenter is not None:
            self._presenter.replay(frames)

    def dropped(self) -> None:
        self.stream.abort("it could not be told what happened")

    def my_turn(self, receipt: Receipt) -> None:
        """A turn this connection started, and will hear of."""
        self._my_turns[receipt.turn_id] = None

    def check_may_speak(self) -> None:
        if self.observer:
            raise RequestError(ErrorCode.FORBIDDEN, "you are attached as an observer")

    def count_failed_hello(self) -> None:
        """Strangers may try a few times, not for ever."""
        self.failed_hellos += 1
        if self.failed_hellos >= self.front_desk.limits.failed_tokens_max:
            self.stream.close_soon()

    def refuse(self, answer: Answer, error: Exception) -> None:
        known = as_request_error(error)
        if known is None:
            log.error("a request failed", exc_info=error)
            known = internal_error()
        answer.refuse(known)

    # How it ends

    def send_away(self, reason: str, code: ErrorCode = ErrorCode.UNAVAILABLE) -> None:
        """One last word, then the connection is closed."""
        with suppress(ProtocolError):  # nothing can be said any more: just close
            if self._presenter is not None:
                self._presenter.last_words(RequestError(code, reason))
            else:
                self.stream.send(self.connection.send_text(reason))
        self.stream.close_soon()

    def check_pulse(self, now: float) -> None:
        if self._presenter is not None and not self._presenter.is_ready:
            # It waits for us. Version 2 clients say nothing while an answer
            # comes in, however long it takes.
            self._awaited_at = now
        silence = now - max(self.stream.last_received, self._awaited_at)
        limits = self.front_desk.limits
        if self._is_late_with_hello(now):
            self.send_away("say HELLO, with a token, sooner")
        elif self.keepalive is not None:
            if silence > self.keepalive * limits.keepalive_factor:
                self.send_away(f"you were silent for {silence:.0f} s")
        elif self.connection.dialect is Dialect.STRUCTURED:
            return
        elif silence > limits.plain_silence_seconds_max:
            self.send_away(f"You were silent for {silence:.0f} s.")
        elif (
            self.connection.dialect is Dialect.PLAIN
            and now - self.stream.last_sent > limits.plain_heartbeat_seconds
        ):
            (self._presenter or self._begin()).heartbeat()

    def _is_late_with_hello(self, now: float) -> bool:
        if self.is_welcome or not self.front_desk.users.need_tokens:
            return False
        return now - self._connected_at > self.front_desk.limits.hello_seconds_max


def guest_of(session: Session, *, observer: bool) -> Guest:
    if session.has_said_all:
        return NOBODY
    return Guest(
        client_id=session.client_id,
        user=session.user,
        client=session.client_name,
        observer=observer,
        can_decide=session.connection.dialect is Dialect.STRUCTURED and not observer,
    )


def _number(received: RequestReceived | RequestRefused, presenter: Presenter) -> int:
    return received.seq if presenter.numbers_requests else 0


async def _unless_closed(
    stream: FrameStream[Received], wait: Callable[[], Awaitable[object]]
) -> None:
    """Waits for it, but not longer than the connection lasts."""
    async with anyio.create_task_group() as race:

        async def watch() -> None:
            await stream.wait_closed()
            race.cancel_scope.cancel()

        race.start_soon(watch)
        await wait()
        race.cancel_scope.cancel()
