"""Holds the state of one connection: its user, its dialect, the conversation it is in.

Requests are taken up in the order in which they came. A session reads frames, gives each
request to `requests` and subscribes to one conversation at a time. It never writes to a
conversation's record itself.

A conversation may be at another server of a cluster. `Peers` and `Relay` are what a session needs
to reach it, and the package `relay` implements them; `NoPeers` and `NoRelay` are for a server
that runs by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any, Final, Protocol

import anyio
import anyio.lowlevel

from nplt_protocol import (
    ConnectionRefused,
    ErrorCode,
    MessageType,
    ProtocolError,
    Received,
    RequestError,
    RequestReceived,
    RequestRefused,
    ServerConnection,
)
from nplt_protocol.messages import (
    Hello,
    ModelSwitch,
    Reply,
    Request,
    SessionEvent,
    TextDelta,
    TurnFinished,
)
from nplt_protocol.resume import Cursor
from nplt_protocol.stream import FrameStream
from nplt_server.connections.admission import FAILED_TOKENS_MAX, KEEPALIVE_FACTOR, Admission
from nplt_server.connections.uploads import Uploads
from nplt_server.conversations.broadcast import (
    NO_CLIENT,
    BroadcastEvent,
    ConnectedClient,
)
from nplt_server.conversations.conversation import Conversation, FreshConversation
from nplt_server.conversations.operations import find_or_create
from nplt_server.conversations.registry import Registry
from nplt_server.conversations.services import Services
from nplt_server.dialects import NO_TOKEN, Answer, Presenter, presenter_for, too_silent
from nplt_server.errors import error_to_tell
from nplt_storage.errors import ConversationHeld, WrittenElsewhere
from nplt_storage.files.format import LOCAL_USER

log = logging.getLogger(__name__)

_BATCH_SECONDS_MAX = 0.005
_CONNECTIONS = count(1)

RequestHandler = Callable[["Session", Any, Answer], Awaitable[None]]


class Relay(Protocol):
    """What one client has at other servers."""

    @property
    def cursor(self) -> Cursor | None:
        """How far the client has followed the conversation it is in, if another server owns
        that."""
        ...

    def concerns(self, request: Request, seq: int) -> bool:
        """Whether the request is for the owner of that conversation."""
        ...

    async def forward(self, request: Request, answer: Answer) -> None:
        """Has the owner handle such a request. Returns when it is answered, or will be."""
        ...

    async def ask_owner(
        self,
        error: ConversationHeld | WrittenElsewhere,
        request: Request,
        answer: Answer,
        current_id: str | None,
    ) -> None:
        """Has the owner handle a request that failed here, because another server has the
        conversation or has written to it; `current_id` is the one that the client was in.
        Raises the error if there is no server to ask."""
        ...

    async def enter(self, held: ConversationHeld, entered: Callable[[str, str], None]) -> None:
        """Attaches the client without a request of its own. `entered` gets the conversation's
        id and model, before any event is sent. Raises `held` if there is no server to ask."""
        ...

    def resume(self, cursor: Cursor, turns: Mapping[str, int]) -> None:
        """Attaches the client again, where it was, because it can't do so by itself. It gets
        the rest of these turns."""
        ...

    def leave(self) -> None:
        """The client goes to another conversation."""
        ...

    def close(self) -> None: ...


class NoRelay:
    """For a session that has met no conversation of another server, and can't."""

    cursor: Cursor | None = None

    def concerns(self, request: Request, seq: int) -> bool:
        return False

    async def forward(self, request: Request, answer: Answer) -> None:
        raise AssertionError("no request concerns it")

    async def ask_owner(
        self,
        error: ConversationHeld | WrittenElsewhere,
        request: Request,
        answer: Answer,
        current_id: str | None,
    ) -> None:
        raise error

    async def enter(self, held: ConversationHeld, entered: Callable[[str, str], None]) -> None:
        raise held

    def resume(self, cursor: Cursor, turns: Mapping[str, int]) -> None:
        pass

    def leave(self) -> None:
        pass

    def close(self) -> None:
        pass


NO_RELAY: Final = NoRelay()


class Peers(Protocol):
    """The other servers of the cluster."""

    @property
    def can_take_over(self) -> bool:
        """Whether there may be servers that open what this one releases."""
        ...

    @property
    def sessions(self) -> Collection[Session]:
        """Those of clients of other servers."""
        ...

    def relay_for(self, session: Session) -> Relay: ...

    async def accept(self, session: Session, hello: Hello, answer: Answer) -> None:
        """Handles the HELLO of another server. Returns when its link ends."""
        ...


class NoPeers:
    """For a server that runs by itself."""

    can_take_over = False
    sessions: Collection[Session] = ()

    def relay_for(self, session: Session) -> Relay:
        return NO_RELAY

    async def accept(self, session: Session, hello: Hello, answer: Answer) -> None:
        raise RequestError(ErrorCode.UNAUTHORIZED, "this server has no cluster.secret_file")


@dataclass(kw_only=True, eq=False, repr=False)
class ServerState:
    """What requests may look at: the server as a whole."""

    services: Services
    registry: Registry
    admission: Admission
    peers: Peers = field(default_factory=NoPeers)
    sessions: set[Session] = field(default_factory=set)
    """Those of this server's own clients."""
    started_at: float = field(default_factory=monotonic)


@dataclass(slots=True, eq=False, repr=False)
class Session:
    stream: FrameStream[Received]
    connection: ServerConnection
    server: ServerState
    handlers: Mapping[type[Request], RequestHandler]
    address: str = field(init=False)
    uploads: Uploads = field(init=False)
    user: str = LOCAL_USER
    client_id: str = field(default_factory=lambda: f"c{next(_CONNECTIONS)}")
    client_name: str = ""
    keepalive: float | None = None
    observer: bool = False
    is_authenticated: bool = False
    input_closed: bool = False
    failed_hellos: int = 0
    challenge: str | None = None
    """The challenge that another server must answer to open a link."""
    conversation: Conversation | FreshConversation | None = None
    relay: Relay = NO_RELAY
    """What it has at other servers, once it has met one of their conversations."""
    own_turns: dict[str, int] = field(default_factory=dict)
    """The turns this session started and still gets events of, oldest first; the number
    of each prompt."""
    _last_delta: BroadcastEvent | None = None
    """Of the conversation here that it is in."""
    _presenter: Presenter | None = None
    _last_left_turn: str | None = None
    _settled: anyio.Event | None = None
    _connected_at: float = field(default_factory=monotonic)
    _awaited_at: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.address = self.stream.peer[0] if self.stream.peer else ""
        self.uploads = Uploads(self.server.services, self.server.registry)

    # What other parts of the server may ask

    @property
    def is_undecided(self) -> bool:
        """Whether it may be closed when others need the place."""
        if self.server.admission.need_tokens:
            return not self.is_authenticated
        return self.connection.dialect is None

    @property
    def can_decide(self) -> bool:
        """Whether people there can be asked whether a tool may be run."""
        return self._presenter is not None and self._presenter.can_decide

    @property
    def can_attach(self) -> bool:
        """Whether the client can attach again by itself."""
        has_handshake = self._presenter is None or self._presenter.has_handshake
        return has_handshake and not self.input_closed

    @property
    def last_turn(self) -> str | None:
        return next(reversed(self.own_turns), self._last_left_turn)

    @property
    def current_id(self) -> str | None:
        """Of the conversation it is in, here or at another server."""
        if self.conversation is not None:
            return self.conversation.session_id
        cursor = self.relay.cursor
        return None if cursor is None else cursor.session_id

    # The connection's life

    async def run(self) -> None:
        self.greet()
        try:
            while batch := await self.stream.receive():
                began = monotonic()
                for received in batch:
                    await self._take(received)
                    if self.stream.replies_pile_up:
                        await self.stream.drain()
                    if received is batch[-1] and not self.stream.has_received:
                        break  # waiting for more lets the others in
                    if monotonic() - began > _BATCH_SECONDS_MAX:
                        await anyio.lowlevel.checkpoint()  # others want to be served too
                        began = monotonic()
            await self._wait_for_own_turns()
        finally:
            self.connection.end_input()
            self.depart()
            self.relay.close()
            with anyio.CancelScope(shield=True):
                await self.uploads.abandon()

    def greet(self) -> None:
        self.stream.send(self.connection.send_text(self.server.admission.greeting))

    async def _take(self, received: Received) -> None:
        if isinstance(received, ConnectionRefused):
            self.send_away(received.reason, ErrorCode.MALFORMED)
            return
        presenter = self._presenter = self._presenter or presenter_for(self.connection, self.stream)
        admission = self.server.admission
        if admission.need_tokens:
            if self.is_authenticated and (wait := admission.frames[self.user].take(on_credit=True)):
                await anyio.sleep(wait)
            if not presenter.has_handshake:
                self.send_away(NO_TOKEN)
                return
        if not presenter.has_handshake and not self.is_authenticated:  # it sends no HELLO
            self.is_authenticated = True
            await self._enter_first()
        if isinstance(received, RequestRefused):
            presenter.expect(received.type)
            presenter.refuse(received.type, received.seq, received.error)
            if received.type == MessageType.FILE_METADATA:
                self.uploads.swallow(presenter.number(received.seq))
            if not self.is_authenticated:
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
        seq = presenter.number(received.seq)
        answer = Answer(presenter, message_type, seq, self._something_settled)
        current_id = self.current_id
        try:
            if not self.is_authenticated and not isinstance(request, Hello):
                raise RequestError(
                    ErrorCode.UNAUTHORIZED, "log in first: your HELLO was not accepted"
                )
            if self.relay.concerns(request, seq):
                await self.relay.forward(request, answer)
                return
            try:
                await self.handlers[type(request)](self, request, answer)
            except (ConversationHeld, WrittenElsewhere) as error:
                await self.use_relay().ask_owner(error, request, answer, current_id)
        except Exception as error:
            self.refuse(answer, error)

    def use_relay(self) -> Relay:
        if self.relay is NO_RELAY:
            self.relay = self.server.peers.relay_for(self)
        return self.relay

    async def _enter_first(self) -> None:
        """Of a client that can't name one: a fresh one, or the default of the settings."""
        rules = self.server.services.sessions
        if not rules.create:
            self.enter_fresh()
            return
        try:
            self.enter(await find_or_create(self.server.registry, rules.default, self.user))
        except ConversationHeld as held:
            await self.use_relay().enter(held, lambda session_id, model: None)

    async def _wait_for_own_turns(self) -> None:
        """The client has closed its side. Answers to its requests are still sent, since the
        client may read them (`nc -N` does)."""
        if self.conversation is not None:
            self.conversation.broadcast.stay_unseen(self)
        self.input_closed = True
        self.connection.end_input()
        await self.uploads.give_up()
        while (self.own_turns or self.connection.unanswered) and not self.stream.closed:
            self._settled = anyio.Event()
            await _unless_closed(self.stream, self._settled.wait)
        await self.stream.close()

    # The conversation this session is attached to

    def enter(
        self, conversation: Conversation | FreshConversation, *, observer: bool = False
    ) -> None:
        self.depart()
        self.conversation = conversation
        self.observer = observer
        self._last_delta = None
        conversation.broadcast.join(self, client_of(self, observer=observer))

    def enter_fresh(self) -> None:
        """It was in none, or that one is gone."""
        self.enter(self.server.registry.fresh(self.user))

    def depart(self) -> None:
        if self.current_id is None:
            return
        if self.conversation is not None:
            self.conversation.broadcast.leave(self)
        self._last_left_turn = self.last_turn
        self.own_turns.clear()
        self._something_settled()
        if self.conversation is not None:
            if isinstance(self.conversation, Conversation):
                self.conversation.touch()
            self.server.registry.left(self.conversation.session_id)
            self.conversation = None
        self.relay.leave()

    def here(self) -> Conversation:
        """The conversation it is in, which begins if it was fresh."""
        if self.conversation is None:
            raise RequestError(
                ErrorCode.NOT_FOUND,
                "you are in no conversation; switch to one, or give its session_id",
                field="session_id",
            )
        if isinstance(self.conversation, FreshConversation):
            self.conversation = self.server.registry.begin(self.conversation)
        return self.conversation

    def is_in(self, conversation: Conversation) -> bool:
        return self.conversation is not None and (
            self.conversation.broadcast is conversation.broadcast
        )

    async def id_of(self, wanted: str | None) -> str:
        """Of the conversation that a request names by its id or name, or of the one this
        session is attached to."""
        if wanted is None:
            return self.current_id or self.here().session_id
        if self.current_id == wanted:
            return wanted
        return await self.server.registry.resolve(wanted, self.user)

    async def meant(
        self,
        wanted: str | None,
        *,
        to_change: bool = False,
        create: bool | None = False,
        history: str | None = None,
        by_prefix: bool = False,
    ) -> Conversation:
        """The conversation that a request names by its id or name, or the one this session
        is attached to. `create`: it is made if it is not there; `None`: as the settings say.
        Who names none and is attached to none gets the default one of the settings."""
        registry, here = self.server.registry, self.conversation
        rules = self.server.services.sessions
        create = rules.create if create is None else create
        if wanted is None and here is None and create:
            wanted = rules.default
        if wanted is None or (here is not None and here.session_id == wanted):
            conversation = self.here()
        elif create:
            # Not by a prefix: `user_1` is not `user_12`, whether it is there or not.
            conversation = await find_or_create(registry, wanted, self.user, history=history)
        else:
            session_id = await registry.resolve(wanted, self.user, by_prefix=by_prefix)
            conversation = await registry.get(session_id, self.user)
        if to_change and self.is_in(conversation):
            self.check_may_speak()
        return conversation

    def answer_later(
        self, conversation: Conversation, work: Callable[[], Awaitable[Reply]], answer: Answer
    ) -> None:
        """Queues a job, which takes its place among the turns, and answers with its result."""
        conversation.add_job(
            work, done=answer.give, failed=lambda error: self.refuse(answer, error)
        )

    # Events

    def deliver(self, event: BroadcastEvent) -> None:
        match event.event:
            case TextDelta():
                self._last_delta = event
            case TurnFinished(turn_id=turn_id):
                self.own_turns.pop(turn_id, None)
                self._something_settled()
            case SessionEvent(event="deleted"):
                self.send_event(event)
                self.enter_fresh()
                return
            case SessionEvent(event="lagged"):
                cursor = None if self.can_attach else self._cursor()
                turns = dict(self.own_turns)
                self.send_event(event)
                self.depart()
                if cursor is not None:
                    self.use_relay().resume(cursor, turns)
                return
            case _:
                pass
        self.send_event(event)

    def _something_settled(self) -> None:
        if self._settled is not None:
            self._settled.set()

    def send_event(self, event: BroadcastEvent) -> None:
        if self._presenter is None or self._presenter.send_event(event):
            return
        cursor = self._cursor()
        self.depart()
        if cursor is None:
            self._presenter.lagged("", 0)
        else:
            self._presenter.lagged(cursor.session_id, cursor.seq)

    def _cursor(self) -> Cursor | None:
        """How far this client has followed the conversation it is in."""
        if self.conversation is None:
            return self.relay.cursor
        cursor = Cursor(self.conversation.session_id, self.conversation.head_seq)
        cursor.observer = self.observer
        if self._last_delta is not None:
            cursor.pass_on_delta(self._last_delta)
        return cursor

    def replay(self, frames: bytes) -> None:
        if self._presenter is not None:
            self._presenter.replay(frames)

    def dropped(self) -> None:
        self.stream.abort("an event could not be sent to it")

    def check_may_speak(self) -> None:
        if self.observer:
            raise RequestError(
                ErrorCode.FORBIDDEN,
                "you only watch this conversation; to take part, attach again without observer",
            )

    def count_failed_hello(self) -> None:
        """Strangers may try a few times, not for ever."""
        self.failed_hellos += 1
        if self.failed_hellos >= FAILED_TOKENS_MAX:
            self.stream.close_soon()

    def refuse(self, answer: Answer, error: Exception) -> None:
        answer.refuse(error_to_tell(error, log, "a request failed"))

    # The end of the connection

    def send_away(self, reason: str, code: ErrorCode = ErrorCode.UNAVAILABLE) -> None:
        """Sends the reason, then closes the connection."""
        with suppress(ProtocolError):  # nothing can be sent any more: just close
            if self._presenter is not None:
                self._presenter.last_words(RequestError(code, reason))
            else:
                self.stream.send(self.connection.send_text(reason))
        self.stream.close_soon()

    def hand_over(self) -> None:
        """Another server may have the conversation now: the client finds it there."""
        self.send_away("The server is shutting down.", ErrorCode.SHUTTING_DOWN)

    def check_timeouts(self, now: float) -> None:
        if self._presenter is not None and not self._presenter.is_ready:
            # The client waits for an answer, and sends nothing meanwhile.
            self._awaited_at = now
        silence = now - max(self.stream.last_received, self._awaited_at)
        if self.uploads.are_late(now):
            self.server.services.spawn(self.uploads.drop_late)
        admission, limits = self.server.admission, self.server.admission.limits
        must_log_in = admission.need_tokens and not self.is_authenticated
        if must_log_in and now - self._connected_at > limits.hello_seconds_max:
            self.send_away("say HELLO, with a token, sooner")
        elif self.keepalive is not None:
            if silence > self.keepalive * KEEPALIVE_FACTOR:
                self.send_away(f"you were silent for {silence:.0f} s")
        else:
            if self._presenter is None and self.connection.dialect is not None:
                self._presenter = presenter_for(self.connection, self.stream)
            if self._presenter is None:
                reason = too_silent(silence, limits)
            else:
                unsent = now - self.stream.last_sent
                reason = self._presenter.check_silence(silence, unsent, limits)
            if reason:
                self.send_away(reason)


def client_of(session: Session, *, observer: bool) -> ConnectedClient:
    if session.input_closed:
        return NO_CLIENT
    return ConnectedClient(
        client_id=session.client_id,
        user=session.user,
        client=session.client_name,
        observer=observer,
        can_decide=session.can_decide and not observer,
    )


async def _unless_closed(
    stream: FrameStream[Received], wait: Callable[[], Awaitable[object]]
) -> None:
    """Waits, but not longer than the connection lasts."""
    async with anyio.create_task_group() as race:

        async def watch() -> None:
            await stream.wait_closed()
            race.cancel_scope.cancel()

        race.start_soon(watch)
        await wait()
        race.cancel_scope.cancel()
