"""The client: one method per thing that can be asked of a server.

Made by `connect`, usable until that context is left. Methods may be called
from many tasks at once; each raises an `NpltError` that says who acts next.
Events come for one conversation at a time, the one this client is attached to
(`session_id`); `switch`, `new` and `attach` move it, and so does asking in
another conversation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TypeVar, Unpack
from uuid import uuid4

from nplt_client.errors import ProtocolViolation
from nplt_client.mailbox import EventFeed, Mailbox
from nplt_client.switchboard import Switchboard
from nplt_client.turn import PromptFields, Turn
from nplt_client.uploads import upload
from nplt_protocol.replies import (
    Attached,
    Cancelled,
    Cleared,
    ContextAccount,
    Detached,
    EpochBegun,
    FileStored,
    HistoryPage,
    MessageRange,
    ModelChoice,
    Pong,
    Receipt,
    Reply,
    RolledBack,
    SessionCreated,
    SessionDeleted,
    SessionRow,
    SessionRows,
    Status,
    ToolList,
    UsageAccount,
    Welcome,
)
from nplt_protocol.requests import (
    Attach,
    Cancel,
    ClearRequest,
    Compact,
    ContextRequest,
    Detach,
    HistoryRequest,
    ModelSwitch,
    Ping,
    Prompt,
    Request,
    Rollback,
    SessionDelete,
    SessionList,
    SessionNew,
    SessionSwitch,
    SessionUpdate,
    StatusRequest,
    Tools,
    Usage,
)

R = TypeVar("R", bound=Reply)

SESSIONS_PER_PAGE = 100


class Client:
    def __init__(self, switchboard: Switchboard, welcome: Welcome, *, timeout: float) -> None:
        self.welcome = welcome
        self._switchboard = switchboard
        self._timeout = timeout

    @property
    def session_id(self) -> str:
        """The conversation this client stands in."""
        return self._switchboard.session_id

    # Asking a model

    def ask(self, prompt: str, **fields: Unpack[PromptFields]) -> Turn:
        return Turn(
            self,
            Prompt(
                text=prompt,
                message_id=fields.get("message_id") or uuid4().hex,
                session_id=fields.get("session_id"),
                model=fields.get("model"),
                metadata=fields.get("metadata") or {},
                attachments=tuple(fields.get("attachments", ())),
                options=fields.get("options") or {},
            ),
        )

    async def ask_text(self, prompt: str, **fields: Unpack[PromptFields]) -> str:
        """The whole answer. One that failed or was cut short raises instead."""
        async with self.ask(prompt, **fields) as turn:
            async for _ in turn:
                pass
            turn.raise_unless_completed()
            return turn.text

    async def cancel(self, turn_id: str | None = None) -> bool:
        """Without `turn_id`: the turn this connection started."""
        return (await self._call(Cancel(turn_id=turn_id), Cancelled)).cancelled

    def events(self) -> EventFeed:
        """Everything pushed for the attached conversation from now on.

        A reader that falls far behind finds a `SessionEvent` "lagged" where
        events are missing; the history has them.
        """
        return self._switchboard.feed()

    def started_here(self, turn_id: str | None) -> bool:
        """Whether a prompt of this very client started that turn."""
        return self._switchboard.started_here(turn_id)

    # Conversations

    async def history(
        self,
        limit: int = 20,
        *,
        before: int | None = None,
        after: int | None = None,
        around: int | None = None,
        session_id: str | None = None,
        roles: Sequence[str] | None = None,
    ) -> HistoryPage:
        request = HistoryRequest(
            session_id=session_id,
            before=before,
            after=after,
            around=around,
            limit=limit,
            roles=tuple(roles) if roles is not None else None,
        )
        return await self._call(request, HistoryPage)

    async def sessions(self, query: str | None = None) -> AsyncIterator[SessionRow]:
        cursor: str | None = None
        while True:
            request = SessionList(query=query, cursor=cursor, limit=SESSIONS_PER_PAGE)
            page = await self._call(request, SessionRows)
            for row in page.sessions:
                yield row
            if page.next_cursor is None or page.next_cursor == cursor:
                return
            cursor = page.next_cursor

    async def switch(self, id_or_name: str) -> Attached:
        """An exact id, else an exact name, else a prefix that only one id has."""
        return await self._call(SessionSwitch(session_id=id_or_name), Attached)

    async def new(
        self, name: str | None = None, *, system: str | None = None, model: str | None = None
    ) -> SessionCreated:
        return await self._call(SessionNew(name=name, system=system, model=model), SessionCreated)

    async def attach(
        self, session_id: str, *, after_seq: int | None = None, observer: bool = False
    ) -> Attached:
        """With `after_seq`, the entries since then arrive as events first."""
        request = Attach(session_id=session_id, after_seq=after_seq, observer=observer)
        return await self._call(request, Attached)

    async def detach(self) -> None:
        await self._call(Detach(), Detached)

    async def rename(self, name: str, session_id: str | None = None) -> SessionRow:
        return await self._call(SessionUpdate(name=name, session_id=session_id), SessionRow)

    async def delete(self, session_id: str) -> SessionDeleted:
        return await self._call(SessionDelete(session_id=session_id), SessionDeleted)

    async def clear(self) -> Cleared:
        """From here on the model is shown nothing older. Waits for the running turn."""
        return await self._call(ClearRequest(), Cleared, waits=True)

    # What a model is shown of it, and what that costs

    async def context(
        self, *, text: str | None = None, model: str | None = None, session_id: str | None = None
    ) -> ContextAccount:
        """What the next call would be sent, as if `text` were prompted now."""
        request = ContextRequest(session_id=session_id, model=model, text=text)
        return await self._call(request, ContextAccount)

    async def usage(self, session_id: str | None = None) -> UsageAccount:
        return await self._call(Usage(session_id=session_id), UsageAccount)

    async def tools(self, session_id: str | None = None) -> ToolList:
        return await self._call(Tools(session_id=session_id), ToolList)

    async def compact(self, session_id: str | None = None) -> EpochBegun:
        """Older turns are shown in less detail from here on. Waits for the running turn."""
        return await self._call(Compact(session_id=session_id), EpochBegun, waits=True)

    async def roll_back(self, to_seq: int) -> RolledBack:
        """What came after that entry stands no longer; a fact is added, nothing erased."""
        return await self._call(Rollback(to_seq=to_seq), RolledBack)

    # The server

    async def models(self) -> ModelChoice:
        return await self._call(ModelSwitch(), ModelChoice)

    async def switch_model(self, model: str) -> ModelChoice:
        return await self._call(ModelSwitch(model=model), ModelChoice)

    async def status(self) -> Status:
        return await self._call(StatusRequest(), Status)

    async def ping(self) -> None:
        await self._call(Ping(data=b"nplt"), Pong)

    async def upload(
        self,
        source: str | Path | bytes,
        *,
        filename: str | None = None,
        content_type: str | None = None,
    ) -> FileStored:
        """`source`: a path, or the bytes themselves together with a `filename`."""
        return self._checked(
            await upload(self._switchboard, source, filename=filename, content_type=content_type),
            FileStored,
        )

    # What a turn asks of its client

    async def send_prompt(self, prompt: Prompt, mailbox: Mailbox) -> Receipt:
        """Events come only for the attached conversation, so we go there first."""
        board = self._switchboard
        target = prompt.session_id or board.session_id
        if target != board.session_id or not board.attached:
            await self.attach(target)
        reply = await board.request(prompt, timeout=self._timeout, turn=mailbox)
        return self._checked(reply, Receipt)

    async def look_up(self, request: HistoryRequest) -> HistoryPage | MessageRange:
        if request.seq is not None:
            return await self._call(request, MessageRange)
        return await self._call(request, HistoryPage)

    def unfollow(self, turn_id: str) -> None:
        self._switchboard.unfollow(turn_id)

    async def _call(self, request: Request, expected: type[R], *, waits: bool = False) -> R:
        timeout = None if waits else self._timeout
        return self._checked(await self._switchboard.request(request, timeout=timeout), expected)

    def _checked(self, reply: object, expected: type[R]) -> R:
        if not isinstance(reply, expected):
            raise ProtocolViolation(
                f"the server answered with {type(reply).__name__} instead of {expected.__name__}"
            )
        return reply
