"""Two clients behind one interface.

Both clients run the same `WireSession`, so each scenario runs against both: the asynchronous
client (in a thread of its own) and the blocking client of the commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from anyio.from_thread import start_blocking_portal

from nplt_client import sync
from nplt_client.client import opened
from nplt_client.received_turn import ReceivedTurn
from nplt_client.settings import parse_url
from nplt_client.wire.blocking import BlockingConnection, Deadline
from nplt_client.wire.reconnect_policy import Patience
from nplt_client.wire.wire_session import WireSession
from nplt_protocol.messages import (
    Cancel,
    Cancelled,
    Event,
    Hello,
    Prompt,
    SessionCreated,
    SessionNew,
    Status,
    StatusRequest,
    TextDelta,
    TurnFinished,
)

TIMEOUT_SECONDS = 40.0


@dataclass(frozen=True, kw_only=True)
class AskResult:
    events: list[Event]
    text: str
    finished: TurnFinished | None

    @property
    def pieces(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, TextDelta)]


class ClientUnderTest(Protocol):
    @property
    def session_id(self) -> str: ...
    def ask(self, text: str, *, message_id: str = "m-1") -> AskResult: ...
    def cancel(self) -> bool: ...
    def status(self) -> Status: ...
    def new(self) -> SessionCreated: ...


class OpenClient(Protocol):
    def __call__(
        self,
        url: str,
        *,
        patience: Patience | None = None,
        silence_seconds: float = 30.0,
        timeout: float = TIMEOUT_SECONDS,
    ) -> AbstractContextManager[ClientUnderTest]: ...


class AsynchronousClient:
    def __init__(self, client: sync.Client) -> None:
        self._client = client
        self.cancel = client.cancel
        self.status = client.status
        self.new = client.new

    @property
    def session_id(self) -> str:
        return self._client.session_id

    def ask(self, text: str, *, message_id: str = "m-1") -> AskResult:
        with self._client.ask(text, message_id=message_id) as turn:
            events = list(turn)
            return AskResult(events=events, text=turn.text, finished=turn.finished)


class BlockingClient:
    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection

    @property
    def session_id(self) -> str:
        return self._connection.session.session_id

    def ask(self, text: str, *, message_id: str = "m-1") -> AskResult:
        connection, received = self._connection, ReceivedTurn()
        turn = connection.ask(Prompt(text=text, message_id=message_id))
        receipt = connection.result(turn)
        events = list(connection.events(turn))
        for event in events:
            received.apply(event)
        for event in connection.read_turn(receipt) if received.lacks_text else ():
            received.apply(event)
        return AskResult(events=events, text=received.text, finished=received.finished)

    def cancel(self) -> bool:
        return self._connection.request(Cancel(), Cancelled).cancelled

    def status(self) -> Status:
        return self._connection.request(StatusRequest(), Status)

    def new(self) -> SessionCreated:
        return self._connection.request(SessionNew(), SessionCreated)


@contextmanager
def open_asynchronous(
    url: str,
    *,
    patience: Patience | None = None,
    silence_seconds: float = 30.0,
    timeout: float = TIMEOUT_SECONDS,
) -> Iterator[ClientUnderTest]:
    address = parse_url(url)
    session = WireSession(
        address, Hello(), patience=patience, timeout=timeout, silence_seconds=silence_seconds
    )
    context = opened(address, session)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(context) as client,
    ):
        yield AsynchronousClient(sync.Client(portal, client))


@contextmanager
def open_blocking(
    url: str,
    *,
    patience: Patience | None = None,
    silence_seconds: float = 30.0,
    timeout: float = TIMEOUT_SECONDS,
) -> Iterator[ClientUnderTest]:
    with BlockingConnection(
        parse_url(url),
        Hello(),
        deadline=Deadline(timeout),
        patience=patience,
        silence_seconds=silence_seconds,
    ) as connection:
        connection.open()
        yield BlockingClient(connection)
