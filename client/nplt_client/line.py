"""One connection, many who wait for replies on it.

A single task reads. It never waits for anybody, and when the connection ends,
for whatever reason, everything that still waits fails at once with that reason:
nothing hangs. A server that has been silent is asked for a sign of life. What
replies and events mean is for the `Listener` to say; it hears them in the order
of the wire, a reply before its asker does, because some replies are barriers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from nplt_client.errors import (
    ConnectionLost,
    NpltError,
    ProtocolViolation,
    TimedOut,
    error_from_report,
)
from nplt_client.liveness import Liveness, Verdict
from nplt_client.mailbox import Mailbox
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
from nplt_protocol.events import Event
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import Reply
from nplt_protocol.requests import Ping, Request
from nplt_protocol.stream import FrameStream


@dataclass(slots=True, kw_only=True)
class Waiting:
    seq: int
    request: Request
    reply: asyncio.Future[Reply | JsonObject]
    turn: Mailbox | None


class Listener(Protocol):
    def replied(self, waiting: Waiting | None, reply: Reply | JsonObject) -> None:
        """`waiting`: who asked, unless they don't wait any more."""
        ...

    def heard(self, event: Event) -> None: ...

    def lost(self, error: NpltError) -> None:
        """Nothing more comes; whoever waited for a reply was told before."""
        ...


class Line:
    def __init__(
        self,
        stream: FrameStream[Heard],
        connection: ClientConnection,
        listener: Listener,
        *,
        silence_seconds: float,
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._listener = listener
        self._silence_seconds = silence_seconds
        self._waiting: dict[int, Waiting] = {}
        self._end: NpltError | None = None
        self._ended = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    def start(self, heard: Iterable[Heard]) -> None:
        """`heard`: what came right behind WELCOME."""
        for item in heard:
            self._dispatch(item)
        self._reader = asyncio.create_task(self._read_on(), name="nplt-client-reader")

    async def close(self, error: NpltError) -> None:
        """Nothing is left running, however the connection ended."""
        self._finish(error)
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait({self._reader})
        await self._stream.close()

    async def ended(self) -> None:
        await self._ended.wait()

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
        reply = asyncio.get_running_loop().create_future()
        waiting = Waiting(seq=seq, request=request, reply=reply, turn=turn)
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

    # Reading

    async def _read_on(self) -> None:
        try:
            await self._read_until_the_end()
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
                waiting = self._waiting.get(item.seq)
                self._listener.replied(waiting, item.reply)
                if waiting is not None and not waiting.reply.done():
                    waiting.reply.set_result(item.reply)
            case ErrorReceived():
                waiting = self._waiting.get(item.seq)
                if waiting is not None and not waiting.reply.done():
                    waiting.reply.set_exception(error_from_report(item.report))
            case EventReceived():
                self._listener.heard(item.event)
            case ConnectionRefused():
                raise ProtocolViolation(item.reason)
            case _:
                pass

    def _finish(self, error: NpltError) -> None:
        if self._end is not None:
            return
        self._end = error
        self._ended.set()
        for waiting in self._waiting.values():
            if not waiting.reply.done():
                waiting.reply.set_exception(error)
        self._listener.lost(error)
