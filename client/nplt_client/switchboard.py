"""One connection, many who wait: replies go to their askers, events to their readers.

A single task reads. It never waits for anybody, and when the connection ends,
for whatever reason, everything that still waits fails at once with that reason:
nothing hangs. A server that has been silent is asked for a sign of life.

Which conversation we stand in is learned here, from the replies themselves,
because such a reply is a barrier: the events before it belong to the old
conversation, those after it to the new one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakSet

from nplt_client.errors import (
    ConnectionLost,
    MovedElsewhere,
    NpltError,
    ProtocolViolation,
    TimedOut,
    error_from_report,
)
from nplt_client.liveness import Liveness, Verdict
from nplt_client.mailbox import EventFeed, Mailbox, forget_when_full
from nplt_client.verdicts import cannot_send
from nplt_protocol.client_connection import ClientConnection
from nplt_protocol.connection import (
    ConnectionRefused,
    ErrorReceived,
    EventReceived,
    Heard,
    ReplyReceived,
)
from nplt_protocol.errors import LocalProtocolError
from nplt_protocol.events import Event, SessionEvent
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import (
    Attached,
    Detached,
    Receipt,
    Reply,
    SessionCreated,
    SessionDeleted,
)
from nplt_protocol.requests import Ping, Request
from nplt_protocol.stream import FrameStream

OWN_TURNS_REMEMBERED = 1_000


@dataclass(slots=True, kw_only=True)
class Waiting:
    seq: int
    reply: asyncio.Future[Reply | JsonObject]
    turn: Mailbox | None


@dataclass(slots=True, kw_only=True)
class _Followed:
    session_id: str
    mailbox: Mailbox


class Switchboard:
    def __init__(
        self, stream: FrameStream[Heard], connection: ClientConnection, *, silence_seconds: float
    ) -> None:
        self.session_id = ""
        self.attached = True
        self._stream = stream
        self._connection = connection
        self._silence_seconds = silence_seconds
        self._waiting: dict[int, Waiting] = {}
        self._turns: dict[str, _Followed] = {}
        self._feeds: WeakSet[Mailbox] = WeakSet()
        self._own_turns: deque[str] = deque(maxlen=OWN_TURNS_REMEMBERED)
        self._end: NpltError | None = None
        self._reader: asyncio.Task[None] | None = None

    def start(self, session_id: str, heard: Iterable[Heard]) -> None:
        """`heard`: what came right behind WELCOME."""
        self.session_id = session_id
        for item in heard:
            self._dispatch(item)
        self._reader = asyncio.create_task(self._read_on(), name="nplt-client-reader")

    async def close(self) -> None:
        """Nothing is left running, however the connection ended."""
        self._finish(ConnectionLost("this client was closed"), feeds_end_quietly=True)
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait({self._reader})
        await self._stream.close()

    # Asking

    async def request(
        self, request: Request, *, timeout: float | None, turn: Mailbox | None = None
    ) -> Reply | JsonObject:
        return await self.reply_to(self.begin(request, turn=turn), timeout=timeout)

    def begin(self, request: Request, *, turn: Mailbox | None = None) -> Waiting:
        """Sends; the reply is waited for from this moment on."""
        self.check_alive()
        try:
            seq, data = self._connection.send(request)
        except LocalProtocolError as error:
            raise cannot_send(request, error) from None
        waiting = Waiting(seq=seq, reply=asyncio.get_running_loop().create_future(), turn=turn)
        self._waiting[seq] = waiting
        self._stream.send(data)
        return waiting

    async def send_piece(self, piece: bytes, *, of: Waiting) -> None:
        self.check_alive()
        self._stream.send(self._connection.send_file_data(of.seq, piece))
        await self._stream.drain()

    async def reply_to(self, waiting: Waiting, *, timeout: float | None) -> Reply | JsonObject:
        try:
            async with asyncio.timeout(timeout):
                return await waiting.reply
        except TimeoutError:
            raise TimedOut(f"the server did not answer within {timeout:g} s") from None
        finally:
            self.forget(waiting)

    def forget(self, waiting: Waiting) -> None:
        self._waiting.pop(waiting.seq, None)
        if not waiting.reply.cancel() and not waiting.reply.cancelled():
            waiting.reply.exception()  # looked at, so that nobody complains it wasn't

    def check_alive(self) -> None:
        if self._end is not None:
            raise self._end

    # Listening

    def feed(self) -> EventFeed:
        mailbox = Mailbox(forget_when_full)
        if self._end is not None:
            mailbox.close(self._end)
        self._feeds.add(mailbox)
        return EventFeed(mailbox)

    def unfollow(self, turn_id: str) -> None:
        self._turns.pop(turn_id, None)

    def started_here(self, turn_id: str | None) -> bool:
        return turn_id in self._own_turns

    # Reading

    async def _read_on(self) -> None:
        try:
            await self._read_until_the_end()
        except asyncio.CancelledError:
            raise
        except NpltError as error:
            self._finish(error)
        except Exception as error:
            # The edge: a mistake of ours must fail those who wait, not leave them waiting.
            violation = ProtocolViolation(f"reading failed: {error!r}")
            violation.__cause__ = error
            self._finish(violation)
        finally:
            self._finish(ConnectionLost("the connection to the server ended"))
            self._stream.abort()

    async def _read_until_the_end(self) -> None:
        now = asyncio.get_running_loop().time
        liveness = Liveness(self._silence_seconds, now=now())
        while True:
            try:
                async with asyncio.timeout(liveness.seconds_left(now())):
                    batch = await self._stream.receive()
            except TimeoutError:
                liveness.heard(self._stream.last_received)
                self._look_for_life(liveness.judge(now()))
                continue
            if not batch:
                raise ConnectionLost("the server closed the connection")
            liveness.heard(now())
            for item in batch:
                self._dispatch(item)

    def _look_for_life(self, verdict: Verdict) -> None:
        if verdict == "lost":
            raise ConnectionLost("the server has fallen silent")
        if verdict == "ask":
            self._stream.send(self._connection.send(Ping())[1])

    def _dispatch(self, item: Heard) -> None:
        match item:
            case ReplyReceived():
                self._take_reply(item.seq, item.reply)
            case ErrorReceived():
                waiting = self._waiting.get(item.seq)
                if waiting is not None and not waiting.reply.done():
                    waiting.reply.set_exception(error_from_report(item.report))
            case EventReceived():
                self._take_event(item.event)
            case ConnectionRefused():
                raise ProtocolViolation(item.reason)
            case _:
                pass

    def _take_reply(self, seq: int, reply: Reply | JsonObject) -> None:
        waiting = self._waiting.get(seq)
        match reply:
            case Attached() | SessionCreated():
                self._stand_in(reply.session_id)
            case SessionDeleted():
                self._stand_in(reply.current_session_id)
            case Detached():
                self.attached = False
                self._leave_turns_except(None)
            case Receipt() if waiting is not None and waiting.turn is not None:
                # It tells where we stand: somebody else may have deleted the old place.
                self.session_id = reply.session_id
                # At once, not when the asker wakes up: its events may be in this very batch.
                self._own_turns.append(reply.turn_id)
                self._turns[reply.turn_id] = _Followed(
                    session_id=reply.session_id, mailbox=waiting.turn
                )
            case _:
                pass
        if waiting is not None and not waiting.reply.done():
            waiting.reply.set_result(reply)

    def _take_event(self, event: Event) -> None:
        followed = self._turns.get(getattr(event, "turn_id", None) or "")
        if followed is not None:
            followed.mailbox.put(event)
        for feed in tuple(self._feeds):
            feed.put(event)
        if isinstance(event, SessionEvent) and event.event == "lagged":
            self.attached = False
            self._close_turns(
                ConnectionLost("this client read too slowly and missed events; see the history")
            )

    def _stand_in(self, session_id: str) -> None:
        self.session_id = session_id
        self.attached = True
        self._leave_turns_except(session_id)

    def _leave_turns_except(self, session_id: str | None) -> None:
        left = [turn for turn in self._turns.values() if turn.session_id != session_id]
        for turn in left:
            turn.mailbox.close(
                MovedElsewhere("this client went to another conversation; the turn goes on there")
            )

    def _close_turns(self, error: NpltError) -> None:
        for turn in self._turns.values():
            turn.mailbox.close(error)

    def _finish(self, error: NpltError, *, feeds_end_quietly: bool = False) -> None:
        if self._end is not None:
            return
        self._end = error
        for waiting in self._waiting.values():
            if not waiting.reply.done():
                waiting.reply.set_exception(error)
        self._close_turns(error)
        for feed in tuple(self._feeds):
            feed.close(None if feeds_end_quietly else error)
