"""`connect`: from an address to a client that can be used, and back to nothing.

A class, not a generator, keeps the context: the reading task belongs to the
connection, and no scope of ours is ever open in the caller's code. However the
context is left, the task is over and the socket closed.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from nplt_client.client import Client
from nplt_client.errors import TimedOut
from nplt_client.settings import (
    DEFAULT_CLIENT_NAME,
    DEFAULT_TIMEOUT_SECONDS,
    DEFAULT_URL,
    SILENCE_SECONDS_MAX,
    Address,
    find_token,
    parse_url,
)
from nplt_client.switchboard import Switchboard
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
) -> Connecting:
    """`timeout` bounds connecting and every single reply, not the length of an answer.

    Without `token`, `NPLT_TOKEN` and `NPLT_TOKEN_FILE` are asked. A conversation
    in the url (`nplt://host:9999/my-notes`) is switched to.
    """
    hello = Hello(client=client_name, token=find_token(token))
    return Connecting(parse_url(url), hello, timeout=timeout)


class Connecting:
    """`async with` this."""

    def __init__(
        self,
        address: Address,
        hello: Hello,
        *,
        timeout: float,
        silence_seconds: float = SILENCE_SECONDS_MAX,
    ) -> None:
        self._address = address
        self._hello = hello
        self._timeout = timeout
        self._silence_seconds = silence_seconds
        self._switchboard: Switchboard | None = None

    async def __aenter__(self) -> Client:
        connection = ClientConnection(Dialect.STRUCTURED, INCOMING)
        stream = await self._open(connection)
        try:
            welcome, rest = await self._say_hello(stream, connection)
        except BaseException:
            stream.abort()
            await asyncio.sleep(0)  # a tick for the transport to let go of its socket
            raise
        self._switchboard = Switchboard(stream, connection, silence_seconds=self._silence_seconds)
        self._switchboard.start(welcome.session_id, rest)
        client = Client(self._switchboard, welcome, timeout=self._timeout)
        if self._address.session is not None:
            try:
                await client.switch(self._address.session)
            except BaseException:
                await self._switchboard.close()
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

    async def _open(self, connection: ClientConnection) -> FrameStream[Heard]:
        address, context = self._address, None
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
                timeout=self._timeout,
            )
        except (OSError, UnicodeError) as error:
            raise cannot_connect(address, error) from None

    async def _say_hello(
        self, stream: FrameStream[Heard], connection: ClientConnection
    ) -> tuple[Welcome, list[Heard]]:
        """WELCOME, and what came with it in the same batch."""
        stream.send(connection.send_hello(self._hello))
        try:
            async with asyncio.timeout(self._timeout):
                while batch := await stream.receive():
                    for place, item in enumerate(batch):
                        if welcome := welcome_in(item):
                            return welcome, batch[place + 1 :]
        except TimeoutError:
            raise TimedOut(
                f"{self._address} did not welcome us within {self._timeout:g} s"
            ) from None
        raise closed_before_welcome(self._address, connection.greeting)
