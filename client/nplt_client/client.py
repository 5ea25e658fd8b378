"""The client: one method per thing that can be asked of a server.

Made by `connect`, usable until that context is left. Methods may be called
from many tasks at once; each raises an `NpltError` that says who acts next.
Events come for one conversation at a time, the one this client is attached to
(`session_id`); `switch`, `new` and `attach` move it, and so does asking in
another conversation.

A lost connection is found again by itself, unless `connect` was told not to.
Turns and feeds go on where they were, without a gap and without a word said
twice. What was asked and not answered is asked again if that can't do anything
twice; what might raises `ConnectionLost`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar, Unpack
from uuid import uuid4

from nplt_client.asking import ask, ask_for_turn
from nplt_client.connection_states import ConnectionState
from nplt_client.errors import ProtocolViolation
from nplt_client.mailbox import EventFeed, Mailbox
from nplt_client.page_walks import all_hits, all_sessions, whole_file
from nplt_client.resuming import read_again
from nplt_client.switchboard import Switchboard
from nplt_client.turn import PromptFields, Turn
from nplt_client.uploads import upload
from nplt_protocol.events import Event
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import (
    ApprovalDecided,
    Attached,
    Cancelled,
    Cleared,
    ContextAccount,
    Detached,
    EpochBegun,
    FileStored,
    HistoryPage,
    Imported,
    ModelChoice,
    Pong,
    Receipt,
    Redacted,
    Reply,
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
from nplt_protocol.requests import (
    Approval,
    Attach,
    Cancel,
    ClearRequest,
    Compact,
    ContextRequest,
    Detach,
    HistoryRequest,
    Import,
    ModelSwitch,
    Ping,
    Prompt,
    Redact,
    Request,
    Rollback,
    SessionDelete,
    SessionFork,
    SessionNew,
    SessionSwitch,
    SessionUpdate,
    StatusRequest,
    Tools,
    Usage,
)

R = TypeVar("R", bound=Reply)


class Client:
    def __init__(self, switchboard: Switchboard, *, timeout: float) -> None:
        self._switchboard = switchboard
        self._timeout = timeout

    @property
    def welcome(self) -> Welcome:
        """What the server said of itself when we came, last."""
        return self._switchboard.welcome

    @property
    def connection(self) -> ConnectionState:
        """`Online`, `Reconnecting` or `Offline`."""
        return self._switchboard.connection

    def reconnect_now(self) -> None:
        """While `Reconnecting`: the next attempt comes now, not when patience says."""
        self._switchboard.hurry.set()

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
                replace_from=fields.get("replace_from"),
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
        return self._switchboard.listeners.feed()

    def started_here(self, turn_id: str | None) -> bool:
        """Whether a prompt of this very client started that turn."""
        return self._switchboard.listeners.started_here(turn_id)

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

    def sessions(self, query: str | None = None) -> AsyncIterator[SessionRow]:
        return all_sessions(self._call, query)

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

    async def update(
        self,
        session_id: str | None = None,
        *,
        system: str | None = None,
        archived: bool | None = None,
        pinned: bool | None = None,
    ) -> SessionRow:
        request = SessionUpdate(
            session_id=session_id, system=system, archived=archived, pinned=pinned
        )
        return await self._call(request, SessionRow)

    async def undelete(self, session_id: str) -> SessionRow:
        """An exact id: what is in the trash has no name any more."""
        return await self._call(SessionUpdate(session_id=session_id, deleted=False), SessionRow)

    async def fork(
        self, session_id: str | None = None, *, at_seq: int | None = None, name: str | None = None
    ) -> SessionCreated:
        """Another conversation that begins like this one, up to that entry; we stay here."""
        request = SessionFork(session_id=session_id, at_seq=at_seq, name=name)
        return await self._call(request, SessionCreated)

    def search(self, query: str) -> AsyncIterator[SearchHit]:
        """Conversations by their names first, then messages, newest first."""
        return all_hits(self._call, query)

    async def redact(self, seq: int, session_id: str | None = None) -> int:
        """Erases what that entry says, for good. Waits for the running turn."""
        request = Redact(seq=seq, session_id=session_id)
        return (await self._call(request, Redacted, waits=True)).seq

    async def import_document(self, source: str | Path | bytes | JsonObject) -> Imported:
        """`source`: a path, the bytes of a file, or a small document itself."""
        if isinstance(source, dict):
            return await self._call(Import(document=source), Imported, waits=True)
        line = await self._switchboard.line(timeout=self._timeout)
        stored = self._checked(
            await upload(line, source, filename=None, content_type=None, purpose="import"),
            FileStored,
        )
        return await self._call(Import(file_id=stored.file_id), Imported, waits=True)

    async def file_get(self, file_id: str, session_id: str | None = None) -> bytes:
        """All of a file that was uploaded."""
        return await whole_file(self._call, file_id, session_id)

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

    async def approve(
        self, approval_id: str, *, allow: bool = True, remember: bool = False
    ) -> ApprovalDecided:
        """Answers an `ApprovalRequest`. What it gives is what holds: who was first
        decided it. With `remember`, for all calls of that tool in the conversation."""
        decision: Literal["allow", "deny"] = "allow" if allow else "deny"
        request = Approval(approval_id=approval_id, decision=decision, remember=remember)
        return await self._call(request, ApprovalDecided)

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
        line = await self._switchboard.line(timeout=self._timeout)
        return self._checked(
            await upload(line, source, filename=filename, content_type=content_type), FileStored
        )

    # What a turn asks of its client

    async def send_prompt(self, prompt: Prompt, mailbox: Mailbox) -> Receipt:
        return await ask_for_turn(self._switchboard, prompt, mailbox, timeout=self._timeout)

    async def read_again(self, receipt: Receipt) -> list[Event]:
        line = await self._switchboard.line(timeout=self._timeout)
        return await read_again(line, receipt, is_over=True, timeout=self._timeout)

    def unfollow(self, turn_id: str) -> None:
        self._switchboard.listeners.unfollow(turn_id)

    async def _call(self, request: Request, expected: type[R], *, waits: bool = False) -> R:
        timeout = None if waits else self._timeout
        return self._checked(await ask(self._switchboard, request, timeout=timeout), expected)

    def _checked(self, reply: object, expected: type[R]) -> R:
        if not isinstance(reply, expected):
            raise ProtocolViolation(
                f"the server answered with {type(reply).__name__} instead of {expected.__name__}"
            )
        return reply
