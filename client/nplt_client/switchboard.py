"""What stays when connections come and go: who listens, and where we stand.

There is a line to the server, or one is being looked for, or it is over. Those
who listen to events notice nothing of a change of lines: the cursor knows what
they have heard, and the next line goes on from there. So it does for a client
that read too slowly and was sent out by the server (`lagged`).

Which conversation we stand in is learned here, from the replies themselves,
because such a reply is a barrier: the events before it belong to the old
conversation, those after it to the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from nplt_client.connection_states import ConnectionState, Offline, Online
from nplt_client.cursor import Cursor
from nplt_client.errors import ConnectionLost, NpltError, ProtocolViolation, RequestRefused
from nplt_client.line import Line, Listener, Waiting
from nplt_client.listeners import Listeners
from nplt_client.patience import Backoff, Patience, worth_another_try
from nplt_client.reconnecting import keep_trying
from nplt_client.resuming import take_up
from nplt_protocol.connection import Heard
from nplt_protocol.events import Event, SessionEvent
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import (
    Attached,
    Detached,
    Receipt,
    Reply,
    SessionCreated,
    SessionDeleted,
    Welcome,
)
from nplt_protocol.requests import Detach


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialled:
    """A connection that was welcomed, and what came right behind WELCOME."""

    line: Line
    welcome: Welcome
    heard: Iterable[Heard]


Dial: TypeAlias = Callable[[Listener], Awaitable[Dialled]]


class Switchboard:
    def __init__(
        self,
        dial: Dial,
        *,
        patience: Patience | None,
        timeout: float,
        on_connection: Callable[[ConnectionState], object] | None = None,
    ) -> None:
        self.connection: ConnectionState = Offline(reason="not connected yet")
        self.attached = True
        self.listeners = Listeners()
        self.hurry = asyncio.Event()
        """Set: whoever waits before the next attempt waits no longer."""
        self._dial = dial
        self._patience = patience
        self._timeout = timeout
        self._on_connection = on_connection
        self._backoff = Backoff(patience or Patience())
        self._welcome: Welcome | None = None
        self._cursor = Cursor(session_id="")
        self._never_stored: set[str] = set()
        self._is_homeless = False
        """The conversation was deleted: the server put us into a fresh one."""
        self._line: Line | None = None
        self._is_ready = asyncio.Event()
        self._recovery: asyncio.Task[None] | None = None
        self._end: NpltError | None = None

    @property
    def session_id(self) -> str:
        return self._cursor.session_id

    @property
    def welcome(self) -> Welcome:
        assert self._welcome is not None
        return self._welcome

    # Lines come and go

    async def open(self) -> None:
        try:
            await self._connect()
        except NpltError as error:
            patience = self._patience
            if patience is None or not patience.from_the_start or not worth_another_try(error):
                raise
            await self._keep_trying(error)

    async def close(self) -> None:
        """Nothing is left running, however the connection ended."""
        over = ConnectionLost("this client was closed")
        self._finish(over, feeds_end_quietly=True)
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.wait({self._recovery})
        if self._line is not None:
            await self._line.close(over)

    async def line(self, *, timeout: float | None) -> Line:
        """The one that can be talked on, once there is one."""
        try:
            async with asyncio.timeout(timeout):
                await self._is_ready.wait()
        except TimeoutError:
            raise ConnectionLost("not connected, and still looking for the server") from None
        if self._end is not None:
            raise self._end
        assert self._line is not None
        return self._line

    async def outlive(self, line: Line, error: ConnectionLost) -> None:
        """Returns when another line may come; raises when none will. A server that
        refuses because it shuts down keeps its line for a while."""
        if self._patience is None or self._end is not None:
            raise error
        try:
            async with asyncio.timeout(self._timeout):
                await line.ended()
        except TimeoutError:
            raise error from None

    async def _connect(self) -> None:
        dialled = await self._dial(self)
        line, is_first = dialled.line, self._welcome is None
        try:
            line.start(dialled.heard)
            self._welcome = dialled.welcome
            if is_first or self._is_homeless:
                self._stand_in(Cursor(session_id=dialled.welcome.session_id))
            else:
                await self._return_to_place(line)
            self._use(line)
        except BaseException:
            await line.close(ConnectionLost("it could not be taken up again"))
            raise

    def _use(self, line: Line) -> None:
        line.check_alive()
        self._line = line
        self._is_ready.set()
        self._say(Online())

    async def _return_to_place(self, line: Line) -> None:
        if not self.attached:
            await line.request(Detach(), timeout=self._timeout)
            return
        old = self._cursor
        try:
            await take_up(line, old.attach(), self.listeners, timeout=self._timeout)
        except RequestRefused as refusal:
            was_heard_of = old.seq > 0 or bool(self.listeners.turns)
            self.listeners.close_turns(refusal)
            self._stand_in(Cursor(session_id=self.welcome.session_id))
            if not was_heard_of:
                self._never_stored.add(old.session_id)  # it was only reserved
                return
            what = "deleted" if refusal.code == "not_found" else "quarantined"
            self.listeners.put_to_feeds(SessionEvent(session_id=old.session_id, event=what))

    async def _return_on(self, line: Line) -> None:
        """The server sent us out; the line still stands."""
        try:
            await self._return_to_place(line)
            self._use(line)
        except NpltError as error:
            if self._patience is None or not worth_another_try(error):
                raise
            await self._keep_trying(error)

    async def _keep_trying(self, lost: NpltError) -> None:
        await keep_trying(self._connect, self._backoff, lost=lost, say=self._say, hurry=self.hurry)

    def _recover(self, work: Awaitable[None]) -> None:
        self._is_ready.clear()

        async def until_done() -> None:
            try:
                await work
            except NpltError as error:
                self._finish(error)
            except Exception as error:
                # The edge: a mistake of ours must fail those who wait.
                violation = ProtocolViolation(f"coming back failed: {error!r}")
                violation.__cause__ = error
                self._finish(violation)
            finally:
                self._recovery = None

        self._recovery = asyncio.create_task(until_done(), name="nplt-client-recovery")

    def _say(self, state: ConnectionState) -> None:
        self.connection = state
        if self._on_connection is None:
            return
        try:
            self._on_connection(state)
        except Exception as error:
            # Theirs, not ours: it is reported, and the connection goes on.
            told = {"message": "on_connection failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)

    def _finish(self, error: NpltError, *, feeds_end_quietly: bool = False) -> None:
        if self._end is None:
            self._end = error
            self.listeners.close(error, feeds_end_quietly=feeds_end_quietly)
            self._is_ready.set()
            self._say(Offline(reason=error.message))

    # What a line tells

    def lost(self, error: NpltError) -> None:
        if self._end is not None or self._recovery is not None or self._line is None:
            return  # whoever is at work with that line learns it from the line
        if self._patience is None or not worth_another_try(error):
            self._finish(error)
        else:
            self._recover(self._keep_trying(error))

    def replied(self, waiting: Waiting | None, reply: Reply | JsonObject) -> None:
        match reply:
            case Attached():
                request = None if waiting is None else waiting.request
                self._stand_in(self._cursor.moved(reply, request))
            case SessionCreated():
                self._stand_in(Cursor(session_id=reply.session_id))
            case SessionDeleted():
                self._stand_in(Cursor(session_id=reply.current_session_id))
            case Detached():
                self.attached = False
                self.listeners.leave_turns_except(None)
            case Receipt() if waiting is not None and waiting.turn is not None:
                if reply.session_id != self.session_id:  # somebody deleted the old place
                    self._cursor = Cursor(session_id=reply.session_id, seq=reply.seq - 1)
                    self._is_homeless = False
                self.listeners.follow(reply, waiting.turn)
            case _:
                pass

    def heard(self, event: Event) -> None:
        if isinstance(event, SessionEvent) and event.session_id == self.session_id:
            if event.event == "lagged" and self._line is not None and self._recovery is None:
                self._recover(self._return_on(self._line))
                return
            self._is_homeless |= event.event == "deleted"
        new = self._cursor.take(event)
        if new is not None:
            self.listeners.put(new)

    def was_never_stored(self, session_id: str) -> bool:
        """A conversation that was only reserved for us, by a server that is no more."""
        return session_id in self._never_stored

    def _stand_in(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.attached = True
        self._is_homeless = False
        self.listeners.leave_turns_except(cursor.session_id)
