"""Holds the state of one connection: its user, its dialect, the conversation it is in.

A session reads frames, passes each request to its handler in `requests`, in order, and subscribes
to one conversation at a time. It never writes to a conversation's record itself.

Another server of the cluster may own a conversation. A session reaches it through the interfaces
`Peers` and `Relay`, which the package `relay` implements; a server without a cluster uses `NoPeers`
and `NoRelay`.
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
from msgspec.structs import replace

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
    Door,
    Hello,
    ModelSwitch,
    Prompt,
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
from nplt_server.conversations.services import Services
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.conversations.watchers import Watchers
from nplt_server.dialects import NO_TOKEN, PendingReply, Presenter, presenter_for, too_silent
from nplt_server.errors import error_to_tell
from nplt_storage.errors import ConversationHeld, WrittenElsewhere
from nplt_storage.files.format import LOCAL_USER
from nplt_storage.history import ConversationHistory

log = logging.getLogger(__name__)

_BATCH_SECONDS_MAX = 0.005
_CONNECTIONS = count(1)

RequestHandler = Callable[["Session", Any, PendingReply], Awaitable[None]]


class Relay(Protocol):
    """One client's access to conversations that other servers own."""

    @property
    def cursor(self) -> Cursor | None:
        """The client's position in the conversation it is in, if another server owns that."""
        ...

    def concerns(self, request: Request, seq: int) -> bool:
        """Whether the owner of that conversation must handle the request."""
        ...

    async def forward(self, request: Request, pending: PendingReply) -> None:
        """Forwards such a request to the owner. Returns when the reply is sent, or will be."""
        ...

    async def ask_owner(
        self,
        error: ConversationHeld | WrittenElsewhere,
        request: Request,
        pending: PendingReply,
        current_id: str | None,
    ) -> None:
        """Forwards to the owner a request that failed here because another server holds the
        conversation or has written to it; `current_id` is the conversation that the client was in.
        Raises the error if there is no server to ask."""
        ...

    async def enter(self, held: ConversationHeld, entered: Callable[[str, str], None]) -> None:
        """Attaches the client without a request of its own. `entered` gets the conversation's
        id and model, before any event is sent. Raises `held` if there is no server to ask."""
        ...

    def resume(self, cursor: Cursor, turns: Mapping[str, int]) -> None:
        """Attaches a client again at its cursor, because it can't do so itself, and sends it the
        rest of these turns."""
        ...

    def leave(self) -> None:
        """Detaches the client from the conversation."""
        ...

    def close(self) -> None: ...


class NoRelay:
    """The relay of a session that has used no conversation of another server."""

    cursor: Cursor | None = None

    def concerns(self, request: Request, seq: int) -> bool:
        return False

    async def forward(self, request: Request, pending: PendingReply) -> None:
        raise AssertionError("no request concerns it")

    async def ask_owner(
        self,
        error: ConversationHeld | WrittenElsewhere,
        request: Request,
        pending: PendingReply,
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
        """Whether other servers may open the conversations that this one releases."""
        ...

    @property
    def sessions(self) -> Collection[Session]:
        """The sessions of clients of other servers."""
        ...

    @property
    def secret_fingerprint(self) -> str:
        """Identifies the secret of the cluster without revealing it; empty if there is none."""
        ...

    @property
    def problems(self) -> Collection[str]:
        """The servers that can't be reached, one sentence each."""
        ...

    @property
    def relays_failed(self) -> int:
        """The number of requests that failed because their owner could not be reached."""
        ...

    async def meet(self, addresses: Collection[str]) -> None:
        """Finds out whether the servers with these addresses can be reached."""
        ...

    def relay_for(self, session: Session) -> Relay: ...

    async def accept(self, session: Session, hello: Hello, pending: PendingReply) -> None:
        """Handles the HELLO of another server. Returns when the link ends."""
        ...


class NoPeers:
    """The peers of a server that has no cluster."""

    can_take_over = False
    sessions: Collection[Session] = ()
    secret_fingerprint = ""
    problems: Collection[str] = ()
    relays_failed = 0

    async def meet(self, addresses: Collection[str]) -> None:
        pass

    def relay_for(self, session: Session) -> Relay:
        return NO_RELAY

    async def accept(self, session: Session, hello: Hello, pending: PendingReply) -> None:
        raise RequestError(ErrorCode.UNAUTHORIZED, "this server has no cluster.secret_file")


API_ID_PREFIX: Final = "conv_"
"""The API over HTTP writes this before the ids of conversations."""


@dataclass(kw_only=True, eq=False, repr=False)
class ServerState:
    """The state of the server that request handlers use."""

    services: Services
    session_manager: SessionManager
    watchers: Watchers
    admission: Admission
    peers: Peers = field(default_factory=NoPeers)
    sessions: set[Session] = field(default_factory=set)
    """The sessions of this server's own clients."""
    started_at: float = field(default_factory=monotonic)
    http_url: str | None = None
    """The address at which this server can be reached by HTTP."""


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
    door: Door = "nplt"
    """How its prompts come."""
    challenge: str | None = None
    """The challenge that another server must answer to open a link."""
    conversation: Conversation | FreshConversation | None = None
    relay: Relay = NO_RELAY
    """Replaces `NO_RELAY` when a request first needs a conversation of another server."""
    own_turns: dict[str, int] = field(default_factory=dict)
    """The turns this session started and still gets events of, oldest first, with the seq of each
    prompt."""
    _last_delta: BroadcastEvent | None = None
    """The last text delta sent to this client, for its cursor."""
    _presenter: Presenter | None = None
    _last_left_turn: str | None = None
    _settled: anyio.Event | None = None
    _connected_at: float = field(default_factory=monotonic)
    _awaited_at: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self.address = self.stream.peer[0] if self.stream.peer else ""
        self.uploads = Uploads(self.server.services, self.server.session_manager)

    # Properties for other parts of the server

    @property
    def is_undecided(self) -> bool:
        """Whether it may be closed to make room for others."""
        if self.server.admission.need_tokens:
            return not self.is_authenticated
        return self.connection.dialect is None

    @property
    def can_decide(self) -> bool:
        """Whether the client can decide approvals of tool calls."""
        return self._presenter is not None and self._presenter.can_decide

    @property
    def can_attach(self) -> bool:
        """Whether the client can attach again by itself."""
        has_handshake = self._presenter is None or self._presenter.has_handshake
        return has_handshake and not self.input_closed

    @property
    def is_present(self) -> bool:
        """Whether other clients see that this one is attached."""
        return True

    @property
    def last_turn(self) -> str | None:
        return next(reversed(self.own_turns), self._last_left_turn)

    @property
    def current_id(self) -> str | None:
        """The id of the conversation it is in, owned here or by another server."""
        if self.conversation is not None:
            return self.conversation.session_id
        cursor = self.relay.cursor
        return None if cursor is None else cursor.session_id

    @property
    def conversation_history(self) -> ConversationHistory | None:
        """The history of the conversation it is attached to; `None` if nothing is stored there, or
        if another server of the cluster has it."""
        conversation = self.conversation
        return conversation.history if isinstance(conversation, Conversation) else None

    # Requests

    async def run(self) -> None:
        self.greet()
        try:
            while batch := await self.stream.receive():
                began = monotonic()
                for received in batch:
                    await self.receive(received)
                    if self.stream.replies_pile_up:
                        await self.stream.drain()
                    if received is batch[-1] and not self.stream.has_received:
                        break  # waiting for more input lets other tasks run
                    if monotonic() - began > _BATCH_SECONDS_MAX:
                        await anyio.lowlevel.checkpoint()  # lets other connections run
                        began = monotonic()
            await self._wait_for_own_turns()
        finally:
            await self.end()

    async def end(self) -> None:
        """Leaves the conversation and drops what the client has not finished."""
        self.connection.end_input()
        self.depart()
        self.server.watchers.leave(self)
        self.relay.close()
        with anyio.CancelScope(shield=True):
            await self.uploads.abandon()

    def greet(self) -> None:
        self.stream.send(self.connection.send_text(self.server.admission.greeting))

    def authenticate(self, token: str | None) -> str | None:
        """Returns the user whose token it is, or `None`."""
        return self.server.admission.authenticate(token)

    async def receive(self, received: Received) -> None:
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
            self.door = "plain"
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
        if type(request) is Prompt:
            request = self.with_origin(request)
        # A model switch typed as a chat text gets the reply of a switch.
        is_switch = isinstance(request, ModelSwitch)
        message_type = MessageType.MODEL_SWITCH if is_switch else received.type
        presenter.expect(message_type)
        seq = presenter.number(received.seq)
        pending = PendingReply(presenter, message_type, seq, self._something_settled)
        current_id = self.current_id
        try:
            if not self.is_authenticated and not isinstance(request, Hello):
                raise RequestError(
                    ErrorCode.UNAUTHORIZED, "log in first: your HELLO was not accepted"
                )
            named = getattr(request, "session_id", None)
            if named is not None and named.startswith(API_ID_PREFIX):
                request = await self._with_own_id(request, named)
            if self.relay.concerns(request, seq):
                await self.relay.forward(request, pending)
                return
            try:
                await self.handlers[type(request)](self, request, pending)
            except (ConversationHeld, WrittenElsewhere) as error:
                await self.use_relay().ask_owner(error, request, pending, current_id)
        except Exception as error:
            self.refuse(pending, error)

    async def _with_own_id(self, request: Request, named: str) -> Request:
        """Replaces an id as the API over HTTP writes it (`conv_…`) by this server's own. A
        conversation whose own id or name is the same text takes precedence."""
        if await self.server.session_manager.lookup(named, self.user) is not None:
            return request
        with_own: Any = request  # each request that got here has a session_id
        own: Request = replace(with_own, session_id=named.removeprefix(API_ID_PREFIX))
        return own

    def with_origin(self, prompt: Prompt) -> Prompt:
        """Adds the way the prompt came and the name of its client."""
        return replace(prompt, door=self.door, client=self.client_name or None)

    def use_relay(self) -> Relay:
        if self.relay is NO_RELAY:
            self.relay = self.server.peers.relay_for(self)
        return self.relay

    async def _enter_first(self) -> None:
        """Attaches a client that can't name a conversation to a fresh one, or to the default one of
        the settings."""
        rules = self.server.services.sessions
        if not rules.create:
            self.enter_fresh()
            return
        try:
            self.enter(await find_or_create(self.server.session_manager, rules.default, self.user))
        except ConversationHeld as held:
            await self.use_relay().enter(held, lambda session_id, model: None)

    async def _wait_for_own_turns(self) -> None:
        """Sends the outstanding replies and events after the client has closed its side, because it
        may still read them (`nc -N` does)."""
        if self.conversation is not None:
            self.conversation.broadcast.stay_unseen(self)
        self.input_closed = True
        self.connection.end_input()
        await self.uploads.give_up()
        while (self.own_turns or self.connection.open_requests) and not self.stream.closed:
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
        """Attaches the client to a fresh conversation, if it is in none or its own was deleted."""
        self.enter(self.server.session_manager.fresh(self.user))

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
            self.server.session_manager.left(self.conversation.session_id)
            self.conversation = None
        self.relay.leave()

    def here(self) -> Conversation:
        """Returns the conversation it is in; a fresh one becomes a real one."""
        if self.conversation is None:
            raise RequestError(
                ErrorCode.NOT_FOUND,
                "you are in no conversation; switch to one, or give its session_id",
                field="session_id",
            )
        if isinstance(self.conversation, FreshConversation):
            self.conversation = self.server.session_manager.begin(self.conversation)
        return self.conversation

    def is_in(self, conversation: Conversation) -> bool:
        return self.conversation is not None and (
            self.conversation.broadcast is conversation.broadcast
        )

    async def id_of(self, wanted: str | None) -> str:
        """Returns the id of the conversation that a request names by id or name, or of the one this
        session is attached to."""
        if wanted is None:
            return self.current_id or self.here().session_id
        if self.current_id == wanted:
            return wanted
        return await self.server.session_manager.resolve(wanted, self.user)

    async def find_conversation(
        self,
        wanted: str | None,
        *,
        to_change: bool = False,
        create: bool | None = False,
        history: str | None = None,
        by_prefix: bool = False,
    ) -> Conversation:
        """Returns the conversation that a request names by id or name, or the one this session is
        attached to. With `create` it is created if it does not exist; `None` leaves that to the
        settings. A request that names none, of a session that is attached to none, gets the default
        conversation of the settings."""
        session_manager, here = self.server.session_manager, self.conversation
        rules = self.server.services.sessions
        create = rules.create if create is None else create
        if wanted is None and here is None and create:
            wanted = rules.default
        if wanted is None or (here is not None and here.session_id == wanted):
            conversation = self.here()
        elif create:
            # A prefix is not resolved here: `user_1` never means `user_12`.
            conversation = await find_or_create(session_manager, wanted, self.user, history=history)
        else:
            session_id = await session_manager.resolve(wanted, self.user, by_prefix=by_prefix)
            conversation = await session_manager.get(session_id, self.user)
        if to_change and self.is_in(conversation):
            self.check_may_speak()
        return conversation

    def reply_later(
        self,
        conversation: Conversation,
        work: Callable[[], Awaitable[Reply]],
        pending: PendingReply,
    ) -> None:
        """Queues a job among the turns, and replies with its result."""
        conversation.add_job(
            work, done=pending.send, failed=lambda error: self.refuse(pending, error)
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
        self.server.services.counters[self.user].lagged += 1
        cursor = self._cursor()
        self.depart()
        if cursor is None:
            self._presenter.lagged("", 0)
        else:
            self._presenter.lagged(cursor.session_id, cursor.seq)

    def send_change(self, event: BroadcastEvent) -> bool:
        return self._presenter is None or self._presenter.send_event(event)

    def watch_again(self) -> None:
        if self._presenter is not None:
            self.server.services.counters[self.user].lagged += 1
            self._presenter.lagged("", 0, watch=True)

    def _cursor(self) -> Cursor | None:
        """Returns the client's position in the conversation it is in."""
        if self.conversation is None:
            return self.relay.cursor
        cursor = Cursor(self.conversation.session_id, self.conversation.head_seq)
        cursor.observer = self.observer
        if self._last_delta is not None:
            cursor.note_delta(self._last_delta)
        return cursor

    def replay(self, frames: bytes) -> None:
        if self._presenter is not None and frames:
            self.server.services.counters[self.user].replays += 1
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
        """Closes the connection after a few failed attempts."""
        self.failed_hellos += 1
        if self.failed_hellos >= FAILED_TOKENS_MAX:
            self.stream.close_soon()

    def refuse(self, pending: PendingReply, error: Exception) -> None:
        pending.refuse(error_to_tell(error, log, "a request failed"))

    # The end of the connection

    def send_away(self, reason: str, code: ErrorCode = ErrorCode.UNAVAILABLE) -> None:
        """Sends the reason, then closes the connection."""
        with suppress(ProtocolError):  # the connection can't send any more
            if self._presenter is not None:
                self._presenter.last_words(RequestError(code, reason))
            else:
                self.stream.send(self.connection.send_text(reason))
        self.stream.close_soon()

    def reattach_elsewhere(self) -> None:
        """Disconnects the client, which reconnects and finds the conversation at another server."""
        self.send_away("The server is shutting down.", ErrorCode.SHUTTING_DOWN)

    def check_timeouts(self, now: float) -> None:
        if self._presenter is not None and not self._presenter.is_ready:
            # The client sends nothing while it waits for a reply.
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
    if session.input_closed or not session.is_present:
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
    """Calls `wait`, and cancels it if the connection closes."""
    async with anyio.create_task_group() as race:

        async def watch() -> None:
            await stream.wait_closed()
            race.cancel_scope.cancel()

        race.start_soon(watch)
        await wait()
        race.cancel_scope.cancel()
