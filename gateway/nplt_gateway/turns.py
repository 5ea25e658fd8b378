"""Prompts in conversations: opens a session for a request, sends its prompt, follows the turn.

The turn belongs to its conversation: terminals that are attached see it as it is made, and a client
that goes away stops nothing, unless it asked for that (`X-Nplt-Cancel-On-Disconnect: true`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import Final, Protocol

import anyio

from nplt_gateway.api_request import ApiRequest
from nplt_gateway.client_messages import (
    AssistantMessage,
    CallResult,
    ClientCall,
    ClientFile,
    ClientMessage,
    SystemText,
    UserMessage,
    new_messages,
    system_text,
)
from nplt_gateway.errors import ApiError
from nplt_gateway.request_bodies import PromptBody, refused
from nplt_gateway.response_ids import ResponseId
from nplt_gateway.retries import JOIN_SECONDS_MAX, SentRequest, ids_of_key
from nplt_gateway.turn_reader import Stored, TurnPart, TurnReader
from nplt_gateway.unrecorded import UnrecordedTurn
from nplt_gateway.which_conversation import (
    CONVERSATION_HEADER,
    RECORDED_HEADER,
    Named,
    is_recorded,
)
from nplt_protocol import ErrorCode, JsonObject, RequestError
from nplt_protocol.messages import (
    Attach,
    Attached,
    Cancel,
    Cancelled,
    FileMetadata,
    GivenCall,
    GivenMessage,
    HistoryPage,
    HistoryRequest,
    OfferedTool,
    Prompt,
    Receipt,
    Redact,
    Redacted,
    Rollback,
    RolledBack,
    ToolOffering,
)
from nplt_protocol.resume import has_ended

_NEWEST_ENTRIES: Final = 50
_TOOLS_HEADER: Final = "x-nplt-tools"
_NOTICE_SECONDS_MAX: Final = 1.0
"""How long a repeated request waits until the break of the first connection is noticed."""
_KEY_HEADER: Final = "idempotency-key"
_CANCEL_HEADER: Final = "x-nplt-cancel-on-disconnect"


class Turn(Protocol):
    """A turn whose answer a client gets."""

    model: str

    @property
    def session_id(self) -> str:
        """The conversation; empty if it is not recorded."""
        ...

    @property
    def response_id(self) -> ResponseId: ...

    @property
    def is_queued(self) -> bool: ...

    async def next_parts(self) -> list[TurnPart]:
        """Returns the parts that came since the last call, at least one; waits for them. The last
        part is `Over`. A caller may give up waiting and call again. Raises `RequestError` if the
        answer failed without an end that is stored."""
        ...

    async def parts_so_far(self) -> list[TurnPart]:
        """Returns the parts that there are now, without waiting for more."""
        ...

    def finish(self) -> None:
        """The client has all of it."""
        ...

    async def close(self) -> None:
        """The client has gone, or has all of it."""
        ...


async def begin_turn(
    call: ApiRequest,
    body: PromptBody,
    digest: str,
    *,
    named: Named | None,
    after: ResponseId | None = None,
    records_unnamed: bool,
) -> Turn:
    """Sends the prompt of the request to its conversation, or its messages to the model alone."""
    messages = await call.compute(lambda: body.client_messages)
    await call.check_options(body.model, body.options)
    records = named is not None or after is not None or records_unnamed
    if not (records and is_recorded(call, body, system_text(messages))):
        if body.is_bound:
            raise refused("store", "what continues a conversation is stored; leave store out")
        unrecorded = UnrecordedTurn(call, messages, body)
        unrecorded.start(call.server.admission)
        return unrecorded
    turn = PromptedTurn(call)
    try:
        await turn.begin(messages, body, digest, named=named, after=after)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await turn.close()
        raise
    return turn


def headers_of(turn: Turn) -> dict[str, str]:
    if not turn.session_id:
        return {RECORDED_HEADER: "false"}
    return {CONVERSATION_HEADER: turn.session_id}


def offer_of(call: ApiRequest) -> ToolOffering:
    """Returns whose tools to offer. The server's are offered only if the client asks for it,
    because it does not expect calls that others run."""
    match call.header(_TOOLS_HEADER).lower():
        case "" | "client":
            return "client"
        case "server":
            return "server"
        case "both":
            return "both"
        case _:
            raise ApiError(
                400,
                f"{_TOOLS_HEADER} is client, server or both",
                code="invalid_value",
                param=_TOOLS_HEADER,
            )


class PromptedTurn:
    """A session, and the turn of the prompt that was sent through it. Close it when the client has
    gone or has all of it."""

    def __init__(self, call: ApiRequest) -> None:
        self._pipe = call.session()
        self._cancels = call.header(_CANCEL_HEADER).lower() == "true"
        self._offer: ToolOffering = offer_of(call)
        self._call = call
        self._sent: SentRequest | None = None
        self._is_open = False
        self._reader: TurnReader | None = None
        self.model = ""
        self.response_id = ResponseId(prompt_seq=0, turn_id="", session_id="")

    async def begin(
        self,
        messages: Sequence[ClientMessage],
        body: PromptBody,
        digest: str,
        *,
        named: Named | None,
        after: ResponseId | None = None,
    ) -> None:
        """Sends the prompt; `messages` are all that the client sent, and the new ones become the
        prompt. `after` is the response that it follows. Returns when the prompt is stored."""
        await self._pipe.__aenter__()
        self._is_open = True
        if after is not None:
            named = Named(reference=after.session_id, may_create=False)
        self._body_key = sha256(f"{named} {after}\n{digest}".encode()).hexdigest()
        ids: tuple[str, ...] = ()
        if key := self._call.header(_KEY_HEADER):
            ids = ids_of_key(key, self._call.server.services.clock())
        elif self._call.is_repeated:
            named, ids = await self._to_join(named, digest)
        try:
            await self._enter(named, ids)
        except RequestError as error:
            field = error.field if after is None else "after"
            wait = error.retry_after
            raise RequestError(error.code, error.message, field=field, retry_after=wait) from None
        message_id, *earlier_ids = ids or (f"request-{self._call.server.services.new_entry_id()}",)
        prompt = Prompt(
            text="",
            messages=await self._given(messages),
            model=body.model,
            options=body.options,
            metadata=body.metadata or {},
            message_id=message_id,
            earlier_ids=tuple(earlier_ids),
            body_sha256=digest,
            after=after.place if after is not None else None,
            system=system_text(messages) or None,
            tools=tuple(
                OfferedTool(
                    name=tool.name, description=tool.description, parameters=tool.parameters
                )
                for tool in body.client_tools
            ),
            offer=self._offer,
        )
        receipt = await self._pipe.ask(prompt, Receipt)
        self._call.set_id(receipt.turn_id)
        self._sent = self._call.sent.add(self._call.user, self._body_key, receipt, message_id)
        self.model = receipt.model or ""
        self.response_id = ResponseId(
            prompt_seq=receipt.seq, turn_id=receipt.turn_id, session_id=receipt.session_id
        )
        self._reader = TurnReader(self._pipe, self.response_id)
        if not receipt.duplicate and receipt.session_id == self._pipe.session_id:
            self._reader.begin_live()  # else it is a fork, to which the reader attaches

    async def _enter(self, named: Named | None, ids: Sequence[str]) -> None:
        """Attaches to the conversation. One that a request with a key begins has the key's id."""
        references = [*reversed(ids)] if named is None else []
        if named is not None:
            await self._attach(named.reference, create=named.may_create)
        elif not ids:
            self._pipe.enter_fresh()
        for reference in references:
            is_new = reference == ids[0]
            try:
                await self._attach(reference, create=is_new)
                return
            except RequestError:
                if is_new:
                    raise

    async def _attach(self, reference: str, *, create: bool) -> Attached:
        return await self._pipe.ask(Attach(session_id=reference, create=create), Attached)

    async def _to_join(
        self, named: Named | None, digest: str
    ) -> tuple[Named | None, tuple[str, ...]]:
        """Finds the turn that a request joins which its library has sent again: the conversation,
        and the id of the prompt. See `retries`."""
        first = None
        with anyio.move_on_after(_NOTICE_SECONDS_MAX):
            while first is None and self._call.sent.has(self._call.user, self._body_key):
                first = self._call.sent.to_join(self._call.user, self._body_key)
                if first is None:
                    await anyio.sleep(_NOTICE_SECONDS_MAX / 20)
        if first is not None:
            prompt, _ = await self._newest_prompt(first.session_id)
            if prompt.get("turn_id") == first.turn_id:
                joined = Named(reference=first.session_id, may_create=False)
                return joined, (first.message_id,)
        elif named is not None:
            with suppress(RequestError):  # there is no such conversation yet
                return named, await self._cut_off(named, digest)
        return named, ()

    async def _cut_off(self, named: Named, digest: str) -> tuple[str, ...]:
        """The id of the conversation's newest prompt, if the same body brought it to another server
        or before a restart, and no client can have the end of its turn."""
        attached = await self._attach(named.reference, create=False)
        prompt, last = await self._newest_prompt(attached.session_id)
        turn_id, message_id = str(prompt.get("turn_id")), prompt.get("message_id")
        if prompt.get("body_sha256") != digest or self._call.sent.knows(turn_id):
            return ()
        sent_at, now = prompt.get("timestamp"), self._call.server.services.clock()
        age = now - datetime.fromisoformat(str(sent_at))
        fault = last.get("error") if isinstance(last.get("error"), dict) else last
        was_cut = isinstance(fault, dict) and fault.get("code") == "interrupted"
        if age.total_seconds() > JOIN_SECONDS_MAX or (has_ended(turn_id, attached) and not was_cut):
            return ()
        return (message_id,) if isinstance(message_id, str) else ()

    async def _newest_prompt(self, session_id: str) -> tuple[JsonObject, JsonObject]:
        """The newest prompt of the conversation, and the last entry of its turn."""
        prompt: JsonObject = {}
        last: JsonObject = {}
        newest = HistoryRequest(session_id=session_id, limit=_NEWEST_ENTRIES, view="entries")
        for entry in (await self._pipe.ask(newest, HistoryPage)).messages:
            if entry.get("kind") == "model_input":
                prompt, last = entry, {}
            elif entry.get("turn_id") == prompt.get("turn_id"):
                last = entry
        return prompt, last

    async def _given(self, messages: Sequence[ClientMessage]) -> tuple[GivenMessage, ...]:
        """The list of messages for the server, which compares it with the record. A list that only
        refers to earlier answers can't be compared: what comes after them is new. Files are
        uploaded for the new messages; the record has the others."""
        listed: list[ClientMessage] = [
            each for each in messages if not isinstance(each, SystemText)
        ]
        new = [*new_messages(listed)]
        if any(isinstance(each, AssistantMessage) and each.is_reference for each in listed):
            listed = new
        earlier = len(listed) - len(new)
        given: list[GivenMessage] = []
        for place, message in enumerate(listed):
            match message:
                case UserMessage(text=text, files=files):
                    ids = await self._upload(files) if place >= earlier else ()
                    given.append(GivenMessage(role="user", content=text, attachments=ids))
                case AssistantMessage(text=text, calls=calls) if not message.is_empty:
                    given.append(
                        GivenMessage(role="assistant", content=text, tool_calls=_given_calls(calls))
                    )
                case CallResult(call_id=call_id, text=text):
                    given.append(GivenMessage(role="tool", content=text, tool_call_id=call_id))
                case _:
                    pass
        return tuple(given)

    async def _upload(self, files: Sequence[ClientFile]) -> tuple[str, ...]:
        """Stores the files in the conversation, and returns their ids."""
        ids: list[str] = []
        for file in files:
            announced = FileMetadata(
                filename=file.name, size=len(file.data), content_type=file.content_type
            )
            ids.append((await self._pipe.upload(announced, file.data)).file_id)
        return tuple(ids)

    async def next_parts(self) -> list[TurnPart]:
        assert self._reader is not None
        return await self._reader.next_parts()

    async def parts_so_far(self) -> list[TurnPart]:
        assert self._reader is not None
        return await self._reader.parts_so_far()

    @property
    def session_id(self) -> str:
        return self.response_id.session_id

    @property
    def is_queued(self) -> bool:
        return self._reader is not None and self._reader.is_queued

    def finish(self) -> None:
        if self._sent is not None:
            self._sent.finish()

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._sent is not None:
            self._sent.lose()  # unless it is finished
        try:
            reader = self._reader
            if self._cancels and reader is not None and not reader.is_over:
                with suppress(RequestError):
                    await self._pipe.ask(Cancel(turn_id=reader.turn_id), Cancelled)
        finally:
            await self._pipe.__aexit__(None, None, None)


def _given_calls(calls: Sequence[ClientCall]) -> tuple[GivenCall, ...]:
    return tuple(
        GivenCall(id=call.call_id, name=call.name, arguments=call.arguments or "{}")
        for call in calls
    )


class StoredTurn:
    """A turn that an earlier request began, as its id names it."""

    def __init__(self, call: ApiRequest, wanted: ResponseId) -> None:
        self.response_id = wanted
        self.session_id = wanted.session_id
        self.model = ""
        self._pipe = call.session()
        self._reader = TurnReader(self._pipe, wanted)
        self._unread: list[TurnPart] = []
        self._is_open = False

    async def open(self) -> None:
        await self._pipe.__aenter__()
        self._is_open = True

    def finish(self) -> None:
        pass  # it is read again, and not made for this request

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._pipe.__aexit__(None, None, None)

    @property
    def is_queued(self) -> bool:
        return self._reader.is_queued

    async def next_parts(self) -> list[TurnPart]:
        parts, self._unread = self._unread, []
        return parts or await self._reader.next_parts()

    async def parts_so_far(self) -> list[TurnPart]:
        return await self._reader.parts_so_far()

    async def stored_prompt(self) -> JsonObject:
        """Raises `not_found` for a turn that was deleted. The parts are read again after this."""
        self._unread = await self.next_parts()
        first = self._unread[0]
        if not isinstance(first, Stored) or first.entry.get("redacted_at"):
            raise RequestError(ErrorCode.NOT_FOUND, "this response was deleted")
        return first.entry

    async def cancel(self) -> None:
        await self._pipe.ask(Attach(session_id=self.session_id), Attached)
        await self._pipe.ask(Cancel(turn_id=self.response_id.turn_id), Cancelled)

    async def delete(self) -> None:
        """Ends the turn, takes it back, and erases its contents for good."""
        await self.cancel()
        seqs: list[int] = []
        while not self._reader.is_over:
            for part in await self.next_parts():
                if isinstance(part, Stored) and not part.entry.get("redacted_at"):
                    seq = part.entry.get("seq")
                    seqs += [seq] if isinstance(seq, int) else []
        if not seqs:
            raise RequestError(ErrorCode.NOT_FOUND, "this response was deleted already")
        with suppress(RequestError):  # another client may have taken it back
            await self._pipe.ask(Rollback(turns=(self.response_id.turn_id,)), RolledBack)
        for seq in seqs:
            with suppress(RequestError):  # a fault, for example, has nothing to erase
                await self._pipe.ask(Redact(seq=seq), Redacted)
