"""The two shells of a client's session behind one interface.

What holds for the session holds for both, so its scenarios run against each: the
asynchronous client (in a thread of its own) and the blocking one of the commands.
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

SECONDS_MAX = 40.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    events: list[Event]
    text: str
    finished: TurnFinished | None

    @property
    def pieces(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, TextDelta)]


class Shell(Protocol):
    @property
    def session_id(self) -> str: ...
    def ask(self, text: str, *, message_id: str = "m-1") -> Answer: ...
    def cancel(self) -> bool: ...
    def status(self) -> Status: ...
    def new(self) -> SessionCreated: ...


class OpenShell(Protocol):
    def __call__(
        self,
        url: str,
        *,
        patience: Patience | None = None,
        silence_seconds: float = 30.0,
        timeout: float = SECONDS_MAX,
    ) -> AbstractContextManager[Shell]: ...


class AsynchronousShell:
    def __init__(self, client: sync.Client) -> None:
        self._client = client
        self.cancel = client.cancel
        self.status = client.status
        self.new = client.new

    @property
    def session_id(self) -> str:
        return self._client.session_id

    def ask(self, text: str, *, message_id: str = "m-1") -> Answer:
        with self._client.ask(text, message_id=message_id) as turn:
            events = list(turn)
            return Answer(events=events, text=turn.text, finished=turn.finished)


class BlockingShell:
    def __init__(self, session: BlockingConnection) -> None:
        self._session = session

    @property
    def session_id(self) -> str:
        return self._session.session.session_id

    def ask(self, text: str, *, message_id: str = "m-1") -> Answer:
        session, record = self._session, ReceivedTurn()
        turn = session.ask(Prompt(text=text, message_id=message_id))
        receipt = session.result(turn)
        events = list(session.events(turn))
        for event in events:
            record.apply(event)
        for event in session.read_turn(receipt) if record.lacks_text else ():
            record.apply(event)
        return Answer(events=events, text=record.text, finished=record.finished)

    def cancel(self) -> bool:
        return self._session.request(Cancel(), Cancelled).cancelled

    def status(self) -> Status:
        return self._session.request(StatusRequest(), Status)

    def new(self) -> SessionCreated:
        return self._session.request(SessionNew(), SessionCreated)


@contextmanager
def open_asynchronous(
    url: str,
    *,
    patience: Patience | None = None,
    silence_seconds: float = 30.0,
    timeout: float = SECONDS_MAX,
) -> Iterator[Shell]:
    address = parse_url(url)
    session = WireSession(
        address, Hello(), patience=patience, timeout=timeout, silence_seconds=silence_seconds
    )
    context = opened(address, session)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(context) as client,
    ):
        yield AsynchronousShell(sync.Client(portal, client))


@contextmanager
def open_blocking(
    url: str,
    *,
    patience: Patience | None = None,
    silence_seconds: float = 30.0,
    timeout: float = SECONDS_MAX,
) -> Iterator[Shell]:
    with BlockingConnection(
        parse_url(url),
        Hello(),
        deadline=Deadline(timeout),
        patience=patience,
        silence_seconds=silence_seconds,
    ) as session:
        session.open()
        yield BlockingShell(session)
