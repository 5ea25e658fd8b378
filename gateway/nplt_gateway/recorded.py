"""Prompts in conversations: opens a session for a request, sends its prompt, follows the turn.

The turn belongs to its conversation: terminals that are attached see it as it is made, and a client
that goes away stops nothing, unless it asked for that (`X-Nplt-Cancel-On-Disconnect: true`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final

import anyio
from msgspec import Struct

from nplt_gateway.answer_pieces import AnswerPiece, CallPiece, Ended, Reasoning, Text
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
from nplt_gateway.response_ids import ResponseId
from nplt_gateway.retries import SentRequest
from nplt_gateway.session_pipe import PipeClosed, SessionPipe
from nplt_gateway.turn_reader import Delta, Over, Stored, TurnPart, TurnReader
from nplt_gateway.which_conversation import IDEMPOTENCY_HEADER, Named
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
    SessionCreated,
    SessionFork,
    ToolOffering,
)
from nplt_server.tools import ToolDescription

log = logging.getLogger(__name__)

_PAGE_ENTRIES: Final = 200
_TOOLS_HEADER: Final = "x-nplt-tools"
_NOTICE_SECONDS_MAX: Final = 1.0
"""How long a repeated request waits until the break of the first connection is noticed."""
_CANCEL_HEADER: Final = "x-nplt-cancel-on-disconnect"


class NewPrompt(Struct, frozen=True, kw_only=True):
    """The part of a request that concerns the conversation."""

    messages: Sequence[ClientMessage]
    """All messages that the client sent. The new ones become the prompt."""
    model: str | None
    options: JsonObject
    metadata: JsonObject
    tools: tuple[ToolDescription, ...]
    body_sha256: str


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
        self._pipe = SessionPipe(
            call.server, call.user, client=call.client, address=call.connection.client_address
        )
        self._cancels = call.header(_CANCEL_HEADER).lower() == "true"
        key = call.header(IDEMPOTENCY_HEADER)
        self._message_id = f"request-{sha256(key.encode()).hexdigest()[:48]}" if key else None
        self._offer: ToolOffering = offer_of(call)
        self._call = call
        self._repeated: SentRequest | None = None
        self._body_key = ""
        self._sent: SentRequest | None = None
        self._is_open = False
        self.reader: TurnReader | None = None

    async def open(self) -> SessionPipe:
        await self._pipe.__aenter__()
        self._is_open = True
        return self._pipe

    async def find_repeated(self, named: Named | None, body_sha256: str) -> bool:
        """Returns True if the request repeats an earlier one, whose turn it then joins. OpenAI's
        library must mark it as repeated, the client must not have received the whole answer, and
        the turn must be the newest of its conversation."""
        self._body_key = sha256(f"{named}\n{body_sha256}".encode()).hexdigest()
        if self._message_id is not None or not self._call.is_repeated:
            return False
        first = None
        with anyio.move_on_after(_NOTICE_SECONDS_MAX):
            while first is None:
                first = self._call.sent.to_join(self._call.user, self._body_key)
                if first is None:
                    await anyio.sleep(_NOTICE_SECONDS_MAX / 20)
        if first is None:
            return False
        newest = HistoryRequest(session_id=first.session_id, limit=1, roles=("user",))
        page = await self._pipe.ask(newest, HistoryPage)
        if not page.messages or page.messages[-1].get("turn_id") != first.turn_id:
            return False
        self._repeated, self._message_id = first, first.message_id
        return True

    async def enter(self, named: Named | None) -> None:
        """Attaches the session to that conversation, or to one that the prompt creates."""
        if self._repeated is not None:
            named = Named(reference=self._repeated.session_id, may_create=False)
        if named is None:
            self._pipe.enter_fresh()
            return
        attach = Attach(session_id=named.reference, create=named.may_create)
        await self._pipe.ask(attach, Attached)

    async def after(self, previous: ResponseId) -> Named:
        """The conversation of that response, or a fork of it if turns came after the response."""
        page = await self._pipe.ask(
            HistoryRequest(
                session_id=previous.session_id,
                after=previous.prompt_seq - 1,
                limit=_PAGE_ENTRIES,
                view="entries",
            ),
            HistoryPage,
        )
        last_seq = 0
        for entry in page.messages:
            seq, kind = entry.get("seq"), entry.get("kind")
            if entry.get("turn_id") == previous.turn_id and isinstance(seq, int):
                last_seq = seq
            elif kind == "model_input" and last_seq:
                fork = SessionFork(session_id=previous.session_id, at_seq=last_seq)
                made = await self._pipe.ask(fork, SessionCreated)
                return Named(reference=made.session_id, may_create=False)
        if not last_seq:
            gone = f"there is no response {str(previous)!r}"
            raise RequestError(ErrorCode.NOT_FOUND, gone, field="previous_response_id")
        return Named(reference=previous.session_id, may_create=False)

    async def prompt(self, new: NewPrompt) -> Receipt:
        if self._message_id is None:
            self._message_id = f"request-{self._call.server.services.new_entry_id()}"
        prompt = Prompt(
            text="",
            messages=await self._given(new.messages),
            model=new.model,
            options=new.options,
            metadata=new.metadata,
            message_id=self._message_id,
            body_sha256=new.body_sha256,
            system=system_text(new.messages) or None,
            tools=tuple(
                OfferedTool(
                    name=tool.name, description=tool.description, parameters=tool.parameters
                )
                for tool in new.tools
            ),
            offer=self._offer,
        )
        receipt = await self._pipe.ask(prompt, Receipt)
        self._call.set_id(receipt.turn_id)
        self._sent = self._call.sent.add(self._call.user, self._body_key, receipt, self._message_id)
        self.reader = TurnReader(self._pipe, receipt.session_id, receipt.turn_id, receipt.seq)
        if not receipt.duplicate and receipt.session_id == self._pipe.session_id:
            self.reader.begin_live()  # else it is a fork, to which the reader attaches
        return receipt

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
                case AssistantMessage(text=text, calls=calls):
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
        assert self.reader is not None
        return await _parts(self.reader.next_parts())

    async def parts_so_far(self) -> list[TurnPart]:
        assert self.reader is not None
        return await _parts(self.reader.parts_so_far())

    @property
    def is_queued(self) -> bool:
        return self.reader is not None and self.reader.is_queued

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
            reader = self.reader
            if self._cancels and reader is not None and not reader.is_over:
                with suppress(RequestError, PipeClosed):
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
        self._id = wanted
        self._pipe = SessionPipe(
            call.server, call.user, client=call.client, address=call.connection.client_address
        )
        self._reader = TurnReader(self._pipe, wanted.session_id, wanted.turn_id, wanted.prompt_seq)
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
        return parts or await _parts(self._reader.next_parts())

    async def parts_so_far(self) -> list[TurnPart]:
        return await _parts(self._reader.parts_so_far())

    async def stored_prompt(self) -> JsonObject:
        """Raises `not_found` for a turn that was deleted. The parts are read again after this."""
        self._unread = await self.next_parts()
        first = self._unread[0]
        if not isinstance(first, Stored) or first.entry.get("redacted_at"):
            raise RequestError(ErrorCode.NOT_FOUND, "this response was deleted")
        return first.entry

    async def cancel(self) -> None:
        await self._pipe.ask(Attach(session_id=self._id.session_id), Attached)
        await self._pipe.ask(Cancel(turn_id=self._id.turn_id), Cancelled)

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
            await self._pipe.ask(Rollback(turns=(self._id.turn_id,)), RolledBack)
        for seq in seqs:
            with suppress(RequestError):  # a fault, for example, has nothing to erase
                await self._pipe.ask(Redact(seq=seq), Redacted)


async def _parts(reading: Awaitable[list[TurnPart]]) -> list[TurnPart]:
    try:
        return await reading
    except PipeClosed as closed:
        raise closed.error from None


class RecordedAnswer:
    """The turn as one answer: the texts of its calls, and the calls of the client's tools."""

    def __init__(self, turn: PromptedTurn, receipt: Receipt) -> None:
        self.model = receipt.model or ""
        self.answer_id = receipt.turn_id
        self._turn = turn
        self._last_call = -1
        self._calls = 0
        self._reasoning_sent = 0

    async def next_pieces(self) -> list[AnswerPiece]:
        while True:
            pieces: list[AnswerPiece] = []
            for part in await self._turn.next_parts():
                self._add(part, pieces)
            if pieces:
                return pieces

    def finish(self) -> None:
        self._turn.finish()

    async def close(self) -> None:
        await self._turn.close()

    def _add(self, part: TurnPart, pieces: list[AnswerPiece]) -> None:
        match part:
            case Delta(kind="reasoning"):
                pieces.append(Reasoning(part.text))
            case Delta():
                if part.offset == 0 and 0 <= self._last_call < part.call:
                    pieces.append(Text("\n\n"))
                self._last_call = part.call
                pieces.append(Text(part.text))
            case Stored(entry):
                pieces.extend(self._calls_of(entry))
                self.model = model_of(entry) or self.model
            case Over(finished):
                if finished.state != "completed":
                    raise failure_of(finished.error, finished.state)
                reason = "tool_calls" if self._calls else finished.stop_reason
                usage = finished.usage
                pieces.append(Ended(stop_reason=reason or "end", usage=usage, model=self.model))

    def _calls_of(self, entry: JsonObject) -> list[AnswerPiece]:
        pieces: list[AnswerPiece] = []
        for call in client_calls_of(entry):
            pieces.append(
                CallPiece(
                    index=self._calls,
                    call_id=str(call["tool_call_id"]),
                    name=str(call["tool_name"]),
                    arguments=arguments_of(call),
                )
            )
            self._calls += 1
        return pieces


def client_calls_of(entry: JsonObject) -> list[JsonObject]:
    """The calls of an output that its client is to run."""
    calls = entry.get("tool_calls") if entry.get("kind") == "model_output" else None
    listed = calls if isinstance(calls, list) else []
    return [call for call in listed if isinstance(call, dict) and call.get("by_client")]


def arguments_of(call: JsonObject) -> str:
    """The arguments as the model wrote them."""
    return str(call.get("raw_arguments") or "{}")


def model_of(entry: JsonObject) -> str | None:
    invocation = entry.get("invocation")
    if not isinstance(invocation, dict):
        return None
    return f"{invocation.get('provider')}/{invocation.get('model')}"


def failure_of(error: JsonObject | None, state: str) -> RequestError:
    """The error for a turn that failed or was cancelled."""
    known = error or {}
    message = str(known.get("message") or f"the answer is not complete ({state})")
    if known.get("code") == "cancelled" or state == "interrupted":
        return RequestError(ErrorCode.UNAVAILABLE, f"the answer was interrupted: {message}")
    try:
        code = ErrorCode(str(known.get("code")))
    except ValueError:
        code = ErrorCode.INTERNAL
    return RequestError(code, message)
