"""The client for code without async: the same names, blocking.

    with nplt_client.sync.connect() as client:
        print(client.ask_text("hello"))
        for event in client.ask("and then?"): ...

The connection lives in an event loop in a thread of its own; each call here is
handed over to it and waited for. A turn whose wait was interrupted by Ctrl+C
can be cancelled, or iterated on from where it stood.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from nplt_client import client as asynchronous
from nplt_client.connecting import connect as connect_asynchronously
from nplt_client.connection_states import ConnectionState
from nplt_client.mailbox import EventFeed as AsyncEventFeed
from nplt_client.patience import Patience
from nplt_client.settings import DEFAULT_CLIENT_NAME, DEFAULT_TIMEOUT_SECONDS, DEFAULT_URL
from nplt_client.turn import PromptFields
from nplt_client.turn import Turn as AsyncTurn
from nplt_protocol.events import Event, TurnFinished
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import (
    ApprovalDecided,
    Attached,
    Cleared,
    ContextAccount,
    EpochBegun,
    FileStored,
    HistoryPage,
    Imported,
    ModelChoice,
    Receipt,
    RolledBack,
    SearchHit,
    SessionCreated,
    SessionDeleted,
    SessionRow,
    Status,
    ToolList,
    UsageAccount,
    Welcome,
)

T = TypeVar("T")


@contextmanager
def connect(
    url: str = DEFAULT_URL,
    *,
    token: str | None = None,
    client_name: str = DEFAULT_CLIENT_NAME,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    reconnect: bool | Patience = True,
    on_connection: Callable[[ConnectionState], object] | None = None,
) -> Iterator[Client]:
    """`on_connection` is called in the thread of the connection: it must not ask
    anything of the client, nor take long."""
    opening = connect_asynchronously(
        url,
        token=token,
        client_name=client_name,
        timeout=timeout,
        reconnect=reconnect,
        on_connection=on_connection,
    )
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(opening) as client,
    ):
        yield Client(portal, client)


def _call(portal: BlockingPortal, work: Callable[[], Awaitable[T]]) -> T:
    future = portal.start_task_soon(work)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # for one that was interrupted while it waited
        raise


class _Pull:
    """The next event of a turn or a feed, asked for once even if waiting is interrupted."""

    def __init__(self, portal: BlockingPortal, source: AsyncTurn | AsyncEventFeed) -> None:
        self._portal = portal
        self._source = source
        self._asked: Future[Event | None] | None = None

    def next(self) -> Event:
        if self._asked is None:
            self._asked = self._portal.start_task_soon(self._one)
        event = self._asked.result()  # KeyboardInterrupt leaves it asked
        self._asked = None
        if event is None:
            raise StopIteration
        return event

    async def _one(self) -> Event | None:
        # StopAsyncIteration can't travel through a future.
        return await anext(self._source, None)


class Turn:
    """Iterable once. The prompt is sent on entering its `with`, or else when the
    first event is asked for."""

    def __init__(self, portal: BlockingPortal, turn: AsyncTurn) -> None:
        self._portal = portal
        self._turn = turn
        self._pull = _Pull(portal, turn)
        self._entering: Future[AsyncTurn] | None = None

    def __enter__(self) -> Turn:
        if self._entering is None:
            self._entering = self._portal.start_task_soon(self._turn.__aenter__)
        self._entering.result()  # KeyboardInterrupt leaves it under way: it is sent once
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Turn:
        return self

    def __next__(self) -> Event:
        return self.__enter__()._pull.next()

    def close(self) -> None:
        """Stops listening; the turn goes on at the server."""
        if self._entering is not None and self._entering.done() and not self._entering.exception():
            _call(self._portal, lambda: self._turn.__aexit__(None, None, None))

    @property
    def text(self) -> str:
        return self._turn.text

    @property
    def receipt(self) -> Receipt:
        return self._turn.receipt

    @property
    def finished(self) -> TurnFinished | None:
        return self._turn.finished

    @property
    def model(self) -> str | None:
        return self._turn.model

    @property
    def tool_calls(self) -> tuple[JsonObject, ...]:
        return self._turn.tool_calls

    def cancel(self) -> bool:
        return _call(self._portal, self._turn.cancel)

    def raise_unless_completed(self) -> None:
        self._turn.raise_unless_completed()


class EventFeed:
    def __init__(self, portal: BlockingPortal, feed: AsyncEventFeed) -> None:
        self._portal = portal
        self._feed = feed
        self._pull = _Pull(portal, feed)

    def __iter__(self) -> EventFeed:
        return self

    def __next__(self) -> Event:
        return self._pull.next()

    def close(self) -> None:
        _call(self._portal, self._feed.aclose)


class Client:
    def __init__(self, portal: BlockingPortal, client: asynchronous.Client) -> None:
        self._portal = portal
        self._client = client

    @property
    def welcome(self) -> Welcome:
        return self._client.welcome

    @property
    def session_id(self) -> str:
        return self._client.session_id

    @property
    def connection(self) -> ConnectionState:
        return self._client.connection

    def reconnect_now(self) -> None:
        self._portal.call(self._client.reconnect_now)

    def ask(self, prompt: str, **fields: Unpack[PromptFields]) -> Turn:
        return Turn(self._portal, self._portal.call(lambda: self._client.ask(prompt, **fields)))

    def ask_text(self, prompt: str, **fields: Unpack[PromptFields]) -> str:
        return self._do(lambda: self._client.ask_text(prompt, **fields))

    def cancel(self, turn_id: str | None = None) -> bool:
        return self._do(lambda: self._client.cancel(turn_id))

    def cancel_soon(self) -> None:
        """The same without waiting for the answer: a signal's handler may call it."""
        self._portal.start_task_soon(self._client.cancel)

    def events(self) -> EventFeed:
        return EventFeed(self._portal, self._portal.call(self._client.events))

    def started_here(self, turn_id: str | None) -> bool:
        return self._client.started_here(turn_id)

    def history(
        self,
        limit: int = 20,
        *,
        before: int | None = None,
        after: int | None = None,
        around: int | None = None,
        session_id: str | None = None,
        roles: tuple[str, ...] | None = None,
    ) -> HistoryPage:
        return self._do(
            lambda: self._client.history(
                limit,
                before=before,
                after=after,
                around=around,
                session_id=session_id,
                roles=roles,
            )
        )

    def sessions(self, query: str | None = None) -> list[SessionRow]:
        async def gather() -> list[SessionRow]:
            return [row async for row in self._client.sessions(query)]

        return self._do(gather)

    def switch(self, id_or_name: str) -> Attached:
        return self._do(lambda: self._client.switch(id_or_name))

    def new(
        self, name: str | None = None, *, system: str | None = None, model: str | None = None
    ) -> SessionCreated:
        return self._do(lambda: self._client.new(name, system=system, model=model))

    def attach(
        self, session_id: str, *, after_seq: int | None = None, observer: bool = False
    ) -> Attached:
        return self._do(
            lambda: self._client.attach(session_id, after_seq=after_seq, observer=observer)
        )

    def detach(self) -> None:
        self._do(self._client.detach)

    def rename(self, name: str, session_id: str | None = None) -> SessionRow:
        return self._do(lambda: self._client.rename(name, session_id))

    def update(
        self,
        session_id: str | None = None,
        *,
        system: str | None = None,
        archived: bool | None = None,
        pinned: bool | None = None,
    ) -> SessionRow:
        return self._do(
            lambda: self._client.update(session_id, system=system, archived=archived, pinned=pinned)
        )

    def undelete(self, session_id: str) -> SessionRow:
        return self._do(lambda: self._client.undelete(session_id))

    def fork(
        self, session_id: str | None = None, *, at_seq: int | None = None, name: str | None = None
    ) -> SessionCreated:
        return self._do(lambda: self._client.fork(session_id, at_seq=at_seq, name=name))

    def search(self, query: str, limit: int = 20) -> list[SearchHit]:
        async def gather() -> list[SearchHit]:
            hits: list[SearchHit] = []
            async for hit in self._client.search(query):
                hits.append(hit)
                if len(hits) >= limit:
                    break
            return hits

        return self._do(gather)

    def redact(self, seq: int, session_id: str | None = None) -> int:
        return self._do(lambda: self._client.redact(seq, session_id))

    def import_document(self, source: str | Path | bytes | JsonObject) -> Imported:
        return self._do(lambda: self._client.import_document(source))

    def file_get(self, file_id: str, session_id: str | None = None) -> bytes:
        return self._do(lambda: self._client.file_get(file_id, session_id))

    def delete(self, session_id: str) -> SessionDeleted:
        return self._do(lambda: self._client.delete(session_id))

    def clear(self) -> Cleared:
        return self._do(self._client.clear)

    def context(
        self, *, text: str | None = None, model: str | None = None, session_id: str | None = None
    ) -> ContextAccount:
        return self._do(lambda: self._client.context(text=text, model=model, session_id=session_id))

    def usage(self, session_id: str | None = None) -> UsageAccount:
        return self._do(lambda: self._client.usage(session_id))

    def tools(self, session_id: str | None = None) -> ToolList:
        return self._do(lambda: self._client.tools(session_id))

    def compact(self, session_id: str | None = None) -> EpochBegun:
        return self._do(lambda: self._client.compact(session_id))

    def roll_back(self, to_seq: int) -> RolledBack:
        return self._do(lambda: self._client.roll_back(to_seq))

    def approve(
        self, approval_id: str, *, allow: bool = True, remember: bool = False
    ) -> ApprovalDecided:
        return self._do(lambda: self._client.approve(approval_id, allow=allow, remember=remember))

    def models(self) -> ModelChoice:
        return self._do(self._client.models)

    def switch_model(self, model: str) -> ModelChoice:
        return self._do(lambda: self._client.switch_model(model))

    def status(self) -> Status:
        return self._do(self._client.status)

    def ping(self) -> None:
        self._do(self._client.ping)

    def upload(
        self,
        source: str | Path | bytes,
        *,
        filename: str | None = None,
        content_type: str | None = None,
    ) -> FileStored:
        return self._do(
            lambda: self._client.upload(source, filename=filename, content_type=content_type)
        )

    def _do(self, work: Callable[[], Awaitable[T]]) -> T:
        return _call(self._portal, work)
