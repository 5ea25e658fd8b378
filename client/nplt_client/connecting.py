"""`connect`: from an address to a client that can be used, and back to nothing.

A class, not a generator, keeps the context: the reading task belongs to the
connection, and no scope of ours is ever open in the caller's code. However the
context is left, the task is over and the socket closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from nplt_client.client import Client
from nplt_client.connection_states import ConnectionState
from nplt_client.errors import TimedOut
from nplt_client.line import Line, Listener
from nplt_client.patience import Patience
from nplt_client.settings import (
    DEFAULT_CLIENT_NAME,
    DEFAULT_TIMEOUT_SECONDS,
    DEFAULT_URL,
    SILENCE_SECONDS_MAX,
    Address,
    find_token,
    parse_url,
)
from nplt_client.switchboard import Dialled, Switchboard
from nplt_client.verdicts import INCOMING, cannot_connect, closed_before_welcome, welcome_in
from nplt_protocol.client_connection import ClientConnection
from nplt_protocol.connection import Dialect, Heard
from nplt_protocol.replies import Welcome
from nplt_protocol.requests import Hello
from nplt_protocol.stream import FrameStream, open_stream


def connect(
    url: str = DEFAULT_URL,
    *,
    token: str | None = None,
    client_name: str = DEFAULT_CLIENT_NAME,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    reconnect: bool | Patience = True,
    on_connection: Callable[[ConnectionState], object] | None = None,
) -> Connecting:
    """`timeout` bounds connecting and every single reply, not the length of an answer.

    Without `token`, `NPLT_TOKEN` and `NPLT_TOKEN_FILE` are asked. A conversation
    in the url (`nplt://host:9999/my-notes`) is switched to. A connection that is
    lost later is looked for again, unless `reconnect` is False; a `Patience`
    says how soon, how long, and whether that also holds for the first one.
    `on_connection` is told each change of `Client.connection`, in the event loop.
    """
    address = parse_url(url)
    hello = Hello(client=client_name, token=find_token(token, address=address))
    patience = (Patience() if reconnect else None) if isinstance(reconnect, bool) else reconnect
    dialler = Dialler(address, hello, timeout=timeout)
    return Connecting(dialler, patience=patience, on_connection=on_connection)


class Dialler:
    """Opens connections to one address, as one user."""

    def __init__(
        self,
        address: Address,
        hello: Hello,
        *,
        timeout: float,
        silence_seconds: float = SILENCE_SECONDS_MAX,
    ) -> None:
        self.address = address
        self.timeout = timeout
        self._hello = hello
        self._silence_seconds = silence_seconds

    async def dial(self, listener: Listener) -> Dialled:
        connection = ClientConnection(Dialect.STRUCTURED, INCOMING)
        stream = await self._open(connection)
        try:
            welcome, heard = await self._say_hello(stream, connection)
        except BaseException:
            stream.abort()
            await asyncio.sleep(0)  # a tick for the transport to let go of its socket
            raise
        line = Line(stream, connection, listener, silence_seconds=self._silence_seconds)
        return Dialled(line=line, welcome=welcome, heard=heard)

    async def _open(self, connection: ClientConnection) -> FrameStream[Heard]:
        address, context = self.address, None
        if address.tls:
            import ssl

            context = ssl.create_default_context()
        try:
            return await open_stream(
                address.host,
                address.port,
                connection,
                limits=INCOMING,
                ssl=context,
                timeout=self.timeout,
            )
        except (OSError, UnicodeError) as error:
            raise cannot_connect(address, error) from None

    async def _say_hello(
        self, stream: FrameStream[Heard], connection: ClientConnection
    ) -> tuple[Welcome, list[Heard]]:
        """WELCOME, and what came with it in the same batch."""
        stream.send(connection.send_hello(self._hello))
        try:
            async with asyncio.timeout(self.timeout):
                while batch := await stream.receive():
                    for place, item in enumerate(batch):
                        if welcome := welcome_in(item, self._hello):
                            return welcome, batch[place + 1 :]
        except TimeoutError:
            raise TimedOut(f"{self.address} did not welcome us within {self.timeout:g} s") from None
        raise closed_before_welcome(self.address, connection.greeting)


class Connecting:
    """`async with` this."""

    def __init__(
        self,
        dialler: Dialler,
        *,
        patience: Patience | None,
        on_connection: Callable[[ConnectionState], object] | None = None,
    ) -> None:
        self._dialler = dialler
        self._patience = patience
        self._on_connection = on_connection
        self._switchboard: Switchboard | None = None

    async def __aenter__(self) -> Client:
        dialler = self._dialler
        board = self._switchboard = Switchboard(
            dialler.dial,
            patience=self._patience,
            timeout=dialler.timeout,
            on_connection=self._on_connection,
        )
        client = Client(board, timeout=dialler.timeout)
        try:
            await board.open()
            if dialler.address.session is not None:
                await client.switch(dialler.address.session)
        except BaseException:
            await board.close()
            raise
        return client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._switchboard is not None:
            await self._switchboard.close()
