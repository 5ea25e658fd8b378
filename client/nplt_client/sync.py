"""The client for code without async: the same names, blocking.

    with nplt_client.sync.connect() as client:
        print(client.ask_text("hello"))
        for event in client.ask("and then?"): ...

The connection runs in an event loop in its own thread; each call is passed to it and blocks
until it is done. After Ctrl+C interrupted a turn's wait, the turn can be cancelled or read on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from nplt_client.client import Client as AsyncClient
from nplt_client.client import ConnectionFields, PromptFields, TurnSoFar
from nplt_client.client import Turn as AsyncTurn
from nplt_client.client import Watch as AsyncWatch
from nplt_client.client import connect as connect_asynchronously
from nplt_client.settings import Address
from nplt_client.wire.reconnect_policy import ConnectionState
from nplt_client.wire.transport import EventFeed as AsyncEventFeed
from nplt_protocol import messages

P = ParamSpec("P")
T = TypeVar("T")
Source = TypeVar("Source", bound=AsyncTurn | AsyncEventFeed | AsyncWatch)


@contextmanager
def connect(
    url: str | Address | None = None,
    *,
    token: str | None = None,
    session: str | None = None,
    create: bool = False,
    **fields: Unpack[ConnectionFields],
) -> Iterator[Client]:
    """Connects to a server, as the asynchronous `connect` does. `on_connection` is called in
    the thread of the connection: it must neither call the client nor block."""
    opening = connect_asynchronously(url, token=token, session=session, create=create, **fields)
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
        future.cancel()  # in case KeyboardInterrupt ended the wait
        raise


class _Events(Generic[Source]):
    """Iterates over the events of a turn or a feed. None is lost if a wait is interrupted."""

    def __init__(self, portal: BlockingPortal, source: Source) -> None:
        self._portal = portal
        self._source = source
        self._asked: Future[messages.Event | None] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> messages.Event:
        if self._asked is None:
            self._asked = self._portal.start_task_soon(self._one)
        event = self._asked.result()  # after KeyboardInterrupt the next call gets this one
        self._asked = None
        if event is None:
            raise StopIteration
        return event

    async def _one(self) -> messages.Event | None:
        # A future can't raise StopAsyncIteration.
        return await anext(self._source, None)


class Turn(_Events[AsyncTurn], TurnSoFar):
    """A turn, to be iterated over once. The prompt is sent on entering its `with`, or else at
    the first iteration."""

    def __init__(self, portal: BlockingPortal, turn: AsyncTurn) -> None:
        super().__init__(portal, turn)
        self._received = turn._received
        self._entering: Future[AsyncTurn] | None = None

    def __enter__(self) -> Turn:
        if self._entering is None:
            self._entering = self._portal.start_task_soon(self._source.__aenter__)
        self._entering.result()  # after KeyboardInterrupt the prompt is not sent again
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> messages.Event:
        self.__enter__()
        return super().__next__()

    def close(self) -> None:
        """Stops following the turn, which goes on at the server."""
        if self._entering is not None and self._entering.done() and not self._entering.exception():
            _call(self._portal, lambda: self._source.__aexit__(None, None, None))

    def cancel(self) -> bool:
        return _call(self._portal, self._source.cancel)


class EventFeed(_Events[AsyncEventFeed]):
    def close(self) -> None:
        _call(self._portal, self._source.aclose)


class Watch(_Events[AsyncWatch]):
    """The rows of all conversations, as they change."""

    def __next__(self) -> messages.SessionChanged:
        change = super().__next__()
        assert isinstance(change, messages.SessionChanged)
        return change

    def close(self) -> None:
        """Stops watching."""
        _call(self._portal, self._source.aclose)


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Awaitable[T]],
) -> Callable[Concatenate[Client, P], T]:
    """Turns a method of the asynchronous client into one that waits for the result."""

    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _call(self._portal, lambda: method(self._client, *args, **kwargs))

    return call


class Client:
    def __init__(self, portal: BlockingPortal, client: AsyncClient) -> None:
        self._portal = portal
        self._client = client

    @property
    def welcome(self) -> messages.Welcome:
        return self._client.welcome

    @property
    def session_id(self) -> str:
        return self._client.session_id

    @property
    def model(self) -> str:
        return self._client.model

    @property
    def connection(self) -> ConnectionState:
        return self._client.connection

    def reconnect_now(self) -> None:
        self._portal.call(self._client.reconnect_now)

    def ask(self, prompt: str, **fields: Unpack[PromptFields]) -> Turn:
        return Turn(self._portal, self._portal.call(lambda: self._client.ask(prompt, **fields)))

    def events(self) -> EventFeed:
        return EventFeed(self._portal, self._portal.call(self._client.events))

    def watch(self) -> Watch:
        return Watch(self._portal, self._portal.call(self._client.watch))

    def started_here(self, turn_id: str | None) -> bool:
        return self._client.started_here(turn_id)

    def sessions(
        self, query: str | None = None, *, trash: bool = False
    ) -> list[messages.SessionRow]:
        async def gather() -> list[messages.SessionRow]:
            return [row async for row in self._client.sessions(query, trash=trash)]

        return _call(self._portal, gather)

    def search(self, query: str, limit: int = 20) -> list[messages.SearchHit]:
        async def gather() -> list[messages.SearchHit]:
            hits: list[messages.SearchHit] = []
            async for hit in self._client.search(query):
                hits.append(hit)
                if len(hits) >= limit:
                    break
            return hits

        return _call(self._portal, gather)

    seen = _blocking(AsyncClient.seen)
    row = _blocking(AsyncClient.row)
    wait = _blocking(AsyncClient.wait)
    ask_text = _blocking(AsyncClient.ask_text)
    ask_json = _blocking(AsyncClient.ask_json)
    cancel = _blocking(AsyncClient.cancel)
    history = _blocking(AsyncClient.history)
    message_text = _blocking(AsyncClient.message_text)
    switch = _blocking(AsyncClient.switch)
    new = _blocking(AsyncClient.new)
    attach = _blocking(AsyncClient.attach)
    detach = _blocking(AsyncClient.detach)
    rename = _blocking(AsyncClient.rename)
    update = _blocking(AsyncClient.update)
    undelete = _blocking(AsyncClient.undelete)
    fork = _blocking(AsyncClient.fork)
    redact = _blocking(AsyncClient.redact)
    repair = _blocking(AsyncClient.repair)
    import_document = _blocking(AsyncClient.import_document)
    file_get = _blocking(AsyncClient.file_get)
    delete = _blocking(AsyncClient.delete)
    clear = _blocking(AsyncClient.clear)
    context = _blocking(AsyncClient.context)
    usage = _blocking(AsyncClient.usage)
    tools = _blocking(AsyncClient.tools)
    compact = _blocking(AsyncClient.compact)
    roll_back = _blocking(AsyncClient.roll_back)
    redo = _blocking(AsyncClient.redo)
    approve = _blocking(AsyncClient.approve)
    models = _blocking(AsyncClient.models)
    switch_model = _blocking(AsyncClient.switch_model)
    status = _blocking(AsyncClient.status)
    ping = _blocking(AsyncClient.ping)
    upload = _blocking(AsyncClient.upload)
