"""The asynchronous client: one method for each request a server understands.

`connect` opens a connection, reconnects when it is lost, and closes it at the end of
its `async with`. Lists that come in pages are read to their end. Requests that got no
reply are repeated only if they are idempotent (`wire.wire_session` decides).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Literal, TypedDict, TypeVar, Unpack
from uuid import uuid4

import anyio
from msgspec.structs import replace

from nplt_client.errors import (
    CannotConnect,
    ConnectionLost,
    NpltError,
    ProtocolViolation,
    RequestRefused,
    TimedOut,
)
from nplt_client.received_turn import ReceivedTurn
from nplt_client.settings import (
    DEFAULT_CLIENT_NAME,
    DEFAULT_TIMEOUT_SECONDS,
    Address,
    find_address,
    find_server,
    find_token,
)
from nplt_client.wire.reconnect_policy import ConnectionState, Patience
from nplt_client.wire.replay import PageGuard
from nplt_client.wire.transport import EventFeed, SessionRunner
from nplt_client.wire.wire_session import WATCH_LAGGED, FollowedTurn, WireSession
from nplt_protocol import messages
from nplt_protocol.json_text import JsonObject, JsonValue, answer_value

R = TypeVar("R", bound=messages.Reply)
Page = TypeVar("Page", messages.SessionRows, messages.SearchHits)

_ROWS_PER_PAGE = 100
_AT_REST = ("idle", "failed")
_STORE_AWAY_SECONDS = 1.0


class PromptFields(TypedDict, total=False):
    """The optional fields of a prompt."""

    session_id: str | None
    """The id or name of another conversation than the attached one."""
    create: bool
    """Creates that conversation if it does not exist."""
    history: str | None
    """The history of the server's settings that stores a new conversation."""
    model: str | None
    """The model that answers this prompt; the conversation keeps its own model."""
    role: str | None
    """The role, in the server's settings, whose model answers this prompt."""
    message_id: str | None
    metadata: JsonObject | None
    options: JsonObject | None
    attachments: tuple[str, ...]
    continues: bool
    """Asks the model to go on with its last answer, which was cut; the text may be empty."""
    replace_from: int | None
    """Edits or regenerates: rolls back this entry and all later ones first."""


class TurnSoFar:
    """The part of a turn that has been received, for this client and the blocking one."""

    _received: ReceivedTurn

    @property
    def text(self) -> str:
        """The answer so far; the stored answer once the turn is finished."""
        return self._received.text

    def json(self) -> JsonValue:
        """The answer to a prompt with `options={"schema": …}`, once the turn is finished."""
        self.raise_unless_completed()
        return answer_value(self._received.last_text)

    @property
    def receipt(self) -> messages.Receipt:
        receipt = self._received.receipt
        if receipt is None:
            raise RuntimeError("the turn has no receipt before `async with` was entered")
        return receipt

    @property
    def finished(self) -> messages.TurnFinished | None:
        return self._received.finished

    @property
    def model(self) -> str | None:
        return self._received.model

    @property
    def stop_reason(self) -> str | None:
        """Why the answer ended, once the turn is finished: `end` if it is whole."""
        return self._received.finished.stop_reason if self._received.finished else None

    @property
    def tool_calls(self) -> tuple[JsonObject, ...]:
        return tuple(self._received.tool_calls.values())

    def raise_unless_completed(self) -> None:
        self._received.raise_unless_completed()


class Turn(TurnSoFar):
    """One prompt, its events and its answer. `Client.ask` returns it.

        async with client.ask("hello") as turn:
            async for event in turn: ...

    Entering sends the prompt and waits for its receipt: then it is on the server's disk.
    Iterating yields the turn's events and ends after `TurnFinished`. Leaving early only stops
    following; the turn goes on at the server unless `cancel` is called. When the connection is
    lost the events pause, and resume after the last one received.
    """

    def __init__(self, client: Client, prompt: messages.Prompt) -> None:
        self._client = client
        self._runner = client._runner
        self._prompt = prompt
        self._turn: FollowedTurn | None = None
        self._received = ReceivedTurn()

    async def cancel(self) -> bool:
        """Returns False if the turn was over already."""
        return await self._client.cancel(self.receipt.turn_id)

    async def __aenter__(self) -> Turn:
        runner = self._runner
        self._turn = runner.session.ask(self._prompt, anyio.current_time())
        try:
            self._received.receipt = await runner.result(self._turn)
        except BaseException:
            runner.session.forget(self._turn)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._turn is not None:
            self._runner.session.forget(self._turn)

    def __aiter__(self) -> Turn:
        return self

    async def __anext__(self) -> messages.Event:
        if self._received.finished is not None:
            raise StopAsyncIteration
        receipt, turn = self.receipt, self._turn
        assert turn is not None
        event = await self._runner.next_event(turn.events)
        if event is None:
            raise StopAsyncIteration
        self._received.apply(event)
        if isinstance(event, messages.TurnFinished) and self._received.lacks_text:
            exchange = self._runner.session.read_turn(receipt, anyio.current_time())
            for stored in await self._runner.result(exchange):
                self._received.apply(stored)
        return event


class Watch:
    """The rows of all conversations that need attention, then every row that changes.

    `Client.watch` returns it. Of changes that follow each other before they are read, only the
    last of each conversation is given. When changes were missed, because the connection was lost
    or the reader was slow, the rows that need attention are given again, and so is each row that
    was given before and has changed meanwhile.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._changes = client._session.changes()
        self._given: dict[str, int] = {}
        """The conversations whose rows were given, each with a digest of the last row."""
        self._is_watching = False

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> messages.SessionChanged:
        if not self._is_watching:
            await self.begin()
        while True:
            event = await self._client._runner.next_event(self._changes)
            if event is None:
                raise StopAsyncIteration
            if isinstance(event, messages.SessionChanged):
                self._note(event)
                return event
            await self._begin_again()

    async def begin(self) -> None:
        """Begins to watch. From then on no change is missed."""
        guard, found = PageGuard(), set[str]()
        request = messages.Watch(limit=_ROWS_PER_PAGE)
        while True:
            page = await self._client._call(request, messages.Watching)
            found.update(row.session_id for row in page.sessions)
            cursor = guard.next_page(page.next_cursor)
            if cursor is None:
                break
            request = replace(request, cursor=cursor)
        self._is_watching = True
        if others := self._given.keys() - found:
            await self._read_again(others)

    async def _begin_again(self) -> None:
        try:
            await self.begin()
        except (ConnectionLost, TimedOut):
            pass  # the next connection begins again
        except RequestRefused as error:
            if error.code != "unavailable":
                raise
            await anyio.sleep(_STORE_AWAY_SECONDS)  # the store of the server is away
            self._changes.put(WATCH_LAGGED)

    async def _read_again(self, missing: set[str]) -> None:
        """Reads rows that may have changed while changes were missed. Those that changed last are
        first in the list, so its beginning is enough unless one was deleted."""
        for archived in (False, True):
            request = messages.SessionList(limit=_ROWS_PER_PAGE, archived=archived)
            async for page in self._client._pages(request, messages.SessionRows):
                for row in page.sessions:
                    if row.session_id in missing:
                        missing.discard(row.session_id)
                        if self._given.get(row.session_id) != _digest(row):
                            self._put(row.session_id, "state", row)
                if not missing:
                    return
        for session_id in missing:
            self._put(session_id, "deleted", None)

    def _put(self, session_id: str, what: str, row: messages.SessionRow | None) -> None:
        if session_id not in self._changes:
            change = messages.SessionChanged(session_id=session_id, what=what, row=row)
            self._changes.put(change)

    def _note(self, change: messages.SessionChanged) -> None:
        if change.row is None:
            self._given.pop(change.session_id, None)
        else:
            self._given[change.session_id] = _digest(change.row)

    async def aclose(self) -> None:
        """Stops watching."""
        self._changes.close()
        if self._is_watching and not self._client._session.is_watched:
            with suppress(NpltError):
                await self._client._call(messages.Watch(watch=False), messages.Watching)


def _digest(row: messages.SessionRow) -> int:
    """Changes with everything that is reported as a change of a row."""
    return hash(replace(row, last_accessed="", is_current=False, repair=None))


class HistoryFields(TypedDict, total=False):
    """The optional fields of a request for a page of the history."""

    before: int | None
    """Reads messages with a seq below this one; `after` and `around` are the alternatives.
    Without any of them the newest messages are read."""
    after: int | None
    around: int | None
    session_id: str | None
    """The id or name of another conversation than the attached one."""
    roles: Sequence[str] | None
    """The default is `("user", "assistant")`."""
    view: Literal["messages", "entries"]
    """`"entries"` returns every stored entry, with its kind."""
    detail: Literal["live", "summary", "gist"]
    """The level of detail: models are shown older messages as summary or gist."""
    order: Literal["turns", "log"]
    """The default is `"turns"`."""


class ConnectionFields(TypedDict, total=False):
    """The optional arguments of `connect`."""

    client_name: str
    """The name that the server shows to other clients."""
    history: str | None
    """The history of the server's settings that stores new conversations: the fresh one that
    every connection gets, and the one that `create` makes."""
    features: tuple[str, ...]
    """Further services that HELLO asks for: `redacted` lists the redacted prompts in
    `Client.welcome.redacted`."""
    timeout: float
    """Limits the seconds for connecting and for each reply, not the length of an answer."""
    reconnect: bool | Patience
    """False: a lost connection is not opened again. A `Patience` sets the delays, when to give
    up, and whether the first connection is retried too."""
    on_connection: Callable[[ConnectionState], object] | None
    """Called in the event loop with each change of `Client.connection`."""


class Client:
    """A connection to a server. `connect` makes it; it is usable until that context is left.

    Methods may be called from several tasks at once; a failure is an `NpltError`. Events are
    received for one conversation at a time, the attached one (`session_id`); `switch`, `new`
    and `attach` change it, and so does asking in another conversation.
    """

    def __init__(self, runner: SessionRunner) -> None:
        self._runner = runner
        self._session = runner.session
        self.list_is_incomplete = False
        """Whether the server was still reading its files when `sessions` was last called."""

    @property
    def welcome(self) -> messages.Welcome:
        """The WELCOME of the newest connection: the server's version, models and limits."""
        return self._session.welcome

    @property
    def connection(self) -> ConnectionState:
        """`Online`, `Reconnecting` or `Offline`."""
        return self._session.state

    def reconnect_now(self, address: Address | None = None) -> None:
        """Makes the next attempt now if the state is `Reconnecting`. A new `address` is used
        from then on."""
        self._runner.retry_now(address)

    @property
    def session_id(self) -> str:
        """The attached conversation."""
        return self._session.session_id

    @property
    def model(self) -> str:
        """The model that answers next in the attached conversation."""
        return self._session.model

    # Asking a model

    def ask(self, prompt: str, **fields: Unpack[PromptFields]) -> Turn:
        # `create=False` is not sent, so that the server's own setting decides.
        given = {key: one for key, one in fields.items() if one is not None and one is not False}
        request = replace(messages.Prompt(text=prompt, message_id=uuid4().hex), **given)
        return Turn(self, request)

    async def ask_text(self, prompt: str, **fields: Unpack[PromptFields]) -> str:
        """Returns the whole answer. Raises if it failed or was interrupted."""
        async with self.ask(prompt, **fields) as turn:
            async for _ in turn:
                pass
            turn.raise_unless_completed()
            return turn.text

    async def ask_json(
        self, prompt: str, schema: JsonObject, **fields: Unpack[PromptFields]
    ) -> JsonValue:
        """Returns the answer as a value that the server has validated against the JSON schema.
        Raises if it failed or was interrupted, and if no answer is valid."""
        fields["options"] = {**(fields.get("options") or {}), "schema": schema}
        async with self.ask(prompt, **fields) as turn:
            async for _ in turn:
                pass
            return turn.json()

    async def cancel(self, turn_id: str | None = None) -> bool:
        """Cancels a turn; by default the one that this connection started."""
        return (await self._call(messages.Cancel(turn_id=turn_id), messages.Cancelled)).cancelled

    async def ask_later(self, prompt: str, not_before: str | float) -> messages.Receipt:
        """Stores a prompt that the server runs later: at a time by RFC 3339, or after so many
        seconds. `cancel` cancels it."""
        if messages.LATER not in self.welcome.features:
            raise RequestRefused("This server has no prompts for later.", code="unsupported")
        request = messages.Prompt(text=prompt, message_id=uuid4().hex, not_before=not_before)
        return await self._call(request, messages.Receipt)

    def events(self) -> EventFeed:
        """Returns all events of the attached conversation from now on.

        A reader that falls far behind receives a `SessionEvent` "lagged" in place of the
        missing events; the history has them.
        """
        return EventFeed(self._runner)

    # What all conversations do, and what the user has seen

    def watch(self) -> Watch:
        """Returns the rows that need attention (a turn runs, waits, asks or failed, or answers are
        unread), then every row that changes:

            async for change in client.watch(): ...
        """
        return Watch(self)

    async def seen(
        self, seq: int, session_id: str | None = None, *, unread: bool = False
    ) -> messages.SeenMark:
        """Notes that the user has seen everything up to that entry; a number beyond the head means
        the head. With `unread` the mark may also move backward."""
        request = messages.Seen(seq=seq, session_id=session_id, unread=unread)
        return await self._call(request, messages.SeenMark)

    async def row(self, session_id: str) -> messages.SessionRow:
        """Returns the row of the conversation with that id or name."""
        return await self._call(messages.SessionUpdate(session_id=session_id), messages.SessionRow)

    async def wait(self, *session_ids: str, first: bool = False) -> list[messages.SessionRow]:
        """Waits until no turn of these conversations runs or waits any more, and returns their
        rows; with `first`, those of the ones that are at rest first. A turn that asks for an
        approval is waited for."""
        watch, rows = self.watch(), dict[str, messages.SessionRow]()
        try:
            await watch.begin()
            for wanted in session_ids:
                row = await self.row(wanted)
                rows[row.session_id] = row
            while True:
                resting = [row for row in rows.values() if row.state in _AT_REST]
                if len(resting) == len(rows) or (first and resting):
                    return resting
                change = await anext(watch)
                if change.session_id in rows and change.row is None:
                    raise RequestRefused(
                        f"the conversation {change.session_id} was deleted", code="not_found"
                    )
                if change.session_id in rows and change.row is not None:
                    rows[change.session_id] = change.row
        finally:
            await watch.aclose()

    def started_here(self, turn_id: str | None) -> bool:
        """Whether a prompt of this client started that turn."""
        return self._session.started_here(turn_id)

    # Conversations

    async def history(
        self, limit: int = 20, **fields: Unpack[HistoryFields]
    ) -> messages.HistoryPage:
        """Reads a page: each prompt with its answer, or with `order="log"` as they were
        stored."""
        request = replace(messages.HistoryRequest(limit=limit), **fields)
        return await self._call(request, messages.HistoryPage)

    async def message_text(
        self, seq: int, *, offset: int = 0, session_id: str | None = None
    ) -> messages.MessageRange:
        """Reads a part of a message that was too long for a page."""
        request = messages.HistoryRequest(session_id=session_id, seq=seq, offset=offset)
        return await self._call(request, messages.MessageRange)

    async def sessions(
        self, query: str | None = None, *, trash: bool = False
    ) -> AsyncIterator[messages.SessionRow]:
        """Lists the conversations; with `trash` the deleted ones, which `undelete` restores."""
        request = messages.SessionList(query=query, limit=_ROWS_PER_PAGE, trash=trash)
        async for page in self._pages(request, messages.SessionRows):
            self.list_is_incomplete = page.incomplete
            for row in page.sessions:
                yield row

    async def switch(
        self, id_or_name: str, *, create: bool = False, history: str | None = None
    ) -> messages.Attached:
        """Attaches to an exact id, else an exact name, else a unique prefix of an id, or to
        `@last`. With `create`, only an exact id or name counts, and a missing conversation is
        created in that `history` of the server's settings."""
        request = messages.SessionSwitch(session_id=id_or_name, create=create, history=history)
        return await self._call(request, messages.Attached)

    async def new(
        self,
        name: str | None = None,
        *,
        system: str | None = None,
        model: str | None = None,
        history: str | None = None,
    ) -> messages.SessionCreated:
        """Creates a conversation and attaches to it. `history` is the one of the server's
        settings that stores it."""
        request = messages.SessionNew(name=name, system=system, model=model, history=history)
        return await self._call(request, messages.SessionCreated)

    async def attach(
        self, session_id: str, *, after_seq: int | None = None, observer: bool = False
    ) -> messages.Attached:
        """With `after_seq`, the later entries are replayed as events first."""
        request = messages.Attach(session_id=session_id, after_seq=after_seq, observer=observer)
        return await self._call(request, messages.Attached)

    async def detach(self) -> None:
        await self._call(messages.Detach(), messages.Detached)

    async def rename(self, name: str, session_id: str | None = None) -> messages.SessionRow:
        return await self._call(
            messages.SessionUpdate(name=name, session_id=session_id), messages.SessionRow
        )

    async def update(
        self,
        session_id: str | None = None,
        *,
        system: str | None = None,
        archived: bool | None = None,
        pinned: bool | None = None,
    ) -> messages.SessionRow:
        request = messages.SessionUpdate(
            session_id=session_id, system=system, archived=archived, pinned=pinned
        )
        return await self._call(request, messages.SessionRow)

    async def undelete(self, session_id: str) -> messages.SessionRow:
        """Restores a conversation by its exact id: in the trash it has no name."""
        return await self._call(
            messages.SessionUpdate(session_id=session_id, deleted=False), messages.SessionRow
        )

    async def fork(
        self, session_id: str | None = None, *, at_seq: int | None = None, name: str | None = None
    ) -> messages.SessionCreated:
        """Copies the conversation, up to that entry, into a new one; does not attach to it."""
        request = messages.SessionFork(session_id=session_id, at_seq=at_seq, name=name)
        return await self._call(request, messages.SessionCreated)

    async def search(self, query: str) -> AsyncIterator[messages.SearchHit]:
        """Finds conversations by name first, then messages, newest first."""
        async for page in self._pages(messages.Search(query=query), messages.SearchHits):
            for hit in page.hits:
                yield hit

    async def _pages(
        self, request: messages.SessionList | messages.Search, expected: type[Page]
    ) -> AsyncIterator[Page]:
        guard = PageGuard()
        while True:
            page = await self._call(request, expected)
            yield page
            cursor = guard.next_page(page.next_cursor)
            if cursor is None:
                return
            request = replace(request, cursor=cursor)

    async def repair(self, session_id: str) -> messages.Repaired:
        """Makes a damaged conversation usable: keeps every entry that can be read."""
        return await self._call(messages.Repair(session_id=session_id), messages.Repaired)

    async def redact(self, seq: int, session_id: str | None = None) -> messages.Redacted:
        """Erases the content of that entry for good. Waits for the running turn."""
        request = messages.Redact(seq=seq, session_id=session_id)
        return await self._call(request, messages.Redacted, waits=True)

    async def import_document(self, source: str | Path | bytes | JsonObject) -> messages.Imported:
        """Imports a path, the bytes of a file, or a small document itself."""
        if isinstance(source, dict):
            request = messages.Import(document=source)
        else:
            reply = await self._runner.upload(source, purpose="import")
            request = messages.Import(file_id=_checked(reply, messages.FileStored).file_id)
        return await self._call(request, messages.Imported, waits=True)

    async def file_get(self, file_id: str, session_id: str | None = None) -> bytes:
        """Reads an uploaded file."""
        pieces: list[bytes] = []
        offset = 0
        while True:
            request = messages.FileGet(file_id=file_id, session_id=session_id, offset=offset)
            piece = (await self._call(request, messages.FilePiece)).data
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            offset += len(piece)

    async def delete(self, session_id: str) -> messages.SessionDeleted:
        return await self._call(
            messages.SessionDelete(session_id=session_id), messages.SessionDeleted
        )

    async def clear(self) -> messages.Cleared:
        """Hides all earlier entries from models. Waits for the running turn."""
        return await self._call(messages.ClearRequest(), messages.Cleared, waits=True)

    # Contexts, usage, rollback, approvals

    async def context(
        self,
        *,
        text: str | None = None,
        model: str | None = None,
        call: int | None = None,
        session_id: str | None = None,
    ) -> messages.ContextAccount:
        """Returns what the next call would send, as if `text` were prompted now; or, with `call`,
        what was sent for the output with that number (0: the last one)."""
        request = messages.ContextRequest(session_id=session_id, model=model, text=text, call=call)
        return await self._call(request, messages.ContextAccount)

    async def usage(self, session_id: str | None = None) -> messages.UsageAccount:
        return await self._call(messages.Usage(session_id=session_id), messages.UsageAccount)

    async def tools(self, session_id: str | None = None) -> messages.ToolList:
        return await self._call(messages.Tools(session_id=session_id), messages.ToolList)

    async def compact(self, session_id: str | None = None) -> messages.EpochBegun:
        """Shows models older turns in less detail. Waits for the running turn."""
        return await self._call(
            messages.Compact(session_id=session_id), messages.EpochBegun, waits=True
        )

    async def roll_back(
        self, to_seq: int | None = None, *, turns: Sequence[str] = ()
    ) -> messages.RolledBack:
        """Rolls back exactly those turns, or else everything after that entry. A rollback entry
        is appended, nothing is erased."""
        request = messages.Rollback(to_seq=to_seq, turns=tuple(turns))
        return await self._call(request, messages.RolledBack)

    async def redo(self) -> messages.RolledBack:
        """Undoes the last rollback, if there was no prompt since."""
        return await self._call(messages.Rollback(redo=True), messages.RolledBack)

    async def approve(
        self, approval_id: str, *, allow: bool = True, remember: bool = False
    ) -> messages.ApprovalDecided:
        """Decides an `ApprovalRequest`. The first decision counts; the reply says which it was.
        With `remember`, it applies to all calls of that tool in the conversation."""
        decision: Literal["allow", "deny"] = "allow" if allow else "deny"
        request = messages.Approval(approval_id=approval_id, decision=decision, remember=remember)
        return await self._call(request, messages.ApprovalDecided)

    # The server

    async def models(self, *, listed: bool = False) -> messages.ModelChoice:
        """Returns the models; with `listed` also the providers' own lists, as far as the server
        has read them."""
        return await self._call(messages.ModelSwitch(listed=listed), messages.ModelChoice)

    async def switch_model(
        self,
        model: str | None = None,
        *,
        role: str | None = None,
        options: JsonObject | None = None,
    ) -> messages.ModelChoice:
        """Sets the model of this conversation, by its name or role. `options` are the defaults
        of its prompts (`effort`, `temperature`, `output_tokens`); `None` resets one."""
        request = messages.ModelSwitch(model=model, role=role, options=options)
        return await self._call(request, messages.ModelChoice)

    async def status(self) -> messages.Status:
        return await self._call(messages.StatusRequest(), messages.Status)

    async def ping(self) -> None:
        await self._call(messages.Ping(data=b"nplt"), messages.Pong)

    async def upload(
        self,
        source: str | Path | bytes,
        *,
        filename: str | None = None,
        content_type: str | None = None,
    ) -> messages.FileStored:
        """Uploads a path, bytes together with a `filename`, or `mcp:SERVER/…`, which the server
        fetches itself."""
        reply = await self._runner.upload(source, filename=filename, content_type=content_type)
        return _checked(reply, messages.FileStored)

    async def _call(
        self, request: messages.Request, expected: type[R], *, waits: bool = False
    ) -> R:
        timeout = None if waits else self._session.timeout
        return _checked(await self._runner.request(request, timeout=timeout), expected)


def _checked(reply: object, expected: type[R]) -> R:
    if not isinstance(reply, expected):
        raise ProtocolViolation(
            f"the server answered with {type(reply).__name__} instead of {expected.__name__}"
        )
    return reply


def connect(
    url: str | Address | None = None,
    *,
    token: str | None = None,
    session: str | None = None,
    create: bool = False,
    **fields: Unpack[ConnectionFields],
) -> AbstractAsyncContextManager[Client]:
    """Connects to a server. Without `url` it is the one that the commands find: `NPLT_SERVER`,
    `client.toml`, or the server of this user that runs on this machine; none is started.
    Without `token`, `NPLT_TOKEN` and `NPLT_TOKEN_FILE` are read.

    `session`, or the path of the url (`nplt://host:9999/my-notes`), is the id or name of the
    conversation to attach to; with `create` it is created if it does not exist. The default
    is a fresh one. A connection that is lost later is opened again.
    """
    address = url if isinstance(url, Address) else find_address(url)
    reconnect = fields.get("reconnect", True)
    patience = (Patience() if reconnect else None) if isinstance(reconnect, bool) else reconnect
    hello = messages.Hello(
        client=fields.get("client_name", DEFAULT_CLIENT_NAME),
        token=find_token(token, address=address),
        history=fields.get("history"),
        features=fields.get("features", (messages.LATER,)),
    )
    timeout = fields.get("timeout", DEFAULT_TIMEOUT_SECONDS)
    wire_session = WireSession(address, hello, patience=patience, timeout=timeout)
    return opened(
        address,
        wire_session,
        begin_in=session or address.session,
        create=create,
        on_connection=fields.get("on_connection"),
    )


@asynccontextmanager
async def opened(
    address: Address,
    session: WireSession,
    *,
    begin_in: str | None = None,
    create: bool = False,
    on_connection: Callable[[ConnectionState], object] | None = None,
) -> AsyncIterator[Client]:
    """Runs the connection's task in a task group, and yields the client."""
    if address.is_default and find_server() is None:
        raise CannotConnect(
            "no server of yours runs on this machine; to start one: nplt server start"
        )
    runner = SessionRunner(session, address, on_connection=on_connection)
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            await runner.open(tasks)
            client = Client(runner)
            if begin_in is not None:
                await client.switch(begin_in, create=create, history=session.history)
            yield client
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            failure = error  # the task raises nothing, so no exception group is needed
        finally:
            runner.close()
    if failure is not None:
        raise failure
