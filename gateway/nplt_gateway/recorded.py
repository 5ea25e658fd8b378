"""Prompts in conversations: opens a session for a request, sends its prompt, follows the turn.

The turn belongs to its conversation: terminals that are attached see it as it is made, and a client
that goes away stops nothing, unless it asked for that (`X-Nplt-Cancel-On-Disconnect: true`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from nplt_gateway.answer_pieces import AnswerPiece, CallPiece, Ended, Reasoning, Text
from nplt_gateway.api_request import ApiRequest
from nplt_gateway.client_messages import ClientMessage, UserMessage
from nplt_gateway.session_pipe import PipeClosed, SessionPipe
from nplt_gateway.turn_reader import Delta, Over, Stored, TurnPart, TurnReader
from nplt_gateway.which_conversation import Named
from nplt_protocol import ErrorCode, JsonObject, RequestError
from nplt_protocol.messages import (
    Attach,
    Attached,
    Cancel,
    Cancelled,
    FileMetadata,
    Prompt,
    Receipt,
)

log = logging.getLogger(__name__)

_CANCEL_HEADER: Final = "x-nplt-cancel-on-disconnect"


class PromptedTurn:
    """A session, and the turn of the prompt that was sent through it. Close it when the client has
    gone or has all of it."""

    def __init__(self, call: ApiRequest) -> None:
        self._pipe = SessionPipe(
            call.server, call.user, client=call.client, address=call.connection.address
        )
        self._cancels = call.header(_CANCEL_HEADER).lower() == "true"
        self._is_open = False
        self.receipt: Receipt | None = None
        self.reader: TurnReader | None = None

    async def open(self) -> SessionPipe:
        await self._pipe.__aenter__()
        self._is_open = True
        return self._pipe

    async def enter(self, named: Named | None) -> None:
        """Attaches the session to that conversation, or to one that the prompt creates."""
        if named is None:
            self._pipe.enter_fresh()
            return
        attach = Attach(session_id=named.reference, create=named.may_create)
        await self._pipe.ask(attach, Attached)

    async def prompt(self, prompt: Prompt) -> Receipt:
        receipt = self.receipt = await self._pipe.ask(prompt, Receipt)
        self.reader = TurnReader(self._pipe, receipt.session_id, receipt.turn_id, receipt.seq)
        if not receipt.duplicate:
            self.reader.begin_live()
        return receipt

    async def upload(self, messages: Sequence[ClientMessage]) -> tuple[str, ...]:
        """Stores the files of the messages in the conversation, and returns their ids."""
        ids: list[str] = []
        for message in messages:
            for file in message.files if isinstance(message, UserMessage) else ():
                announced = FileMetadata(
                    filename=file.name, size=len(file.data), content_type=file.content_type
                )
                ids.append((await self._pipe.upload(announced, file.data)).file_id)
        return tuple(ids)

    async def next_parts(self) -> list[TurnPart]:
        assert self.reader is not None
        try:
            return await self.reader.next_parts()
        except PipeClosed as closed:
            raise closed.error from None

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            reader = self.reader
            if self._cancels and reader is not None and not reader.is_over:
                with suppress(RequestError, PipeClosed):
                    await self._pipe.ask(Cancel(turn_id=reader.turn_id), Cancelled)
        finally:
            await self._pipe.__aexit__(None, None, None)


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
