"""Calls a model for a client that brings the whole conversation and wants nothing recorded.

The limits are those of a turn: the user's rate of prompts, the slots, the time of a call, the
length of an answer. A call that fails before its first piece is repeated, or another model is
asked, by the rules of the settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final, Literal

import anyio
import orjson
from msgspec import Struct

from nplt_gateway.answer_pieces import AnswerPiece, CallPiece, Ended, Reasoning, Text
from nplt_gateway.api_request import ApiRequest
from nplt_gateway.client_messages import ClientMessage, context_of
from nplt_gateway.turn_reader import Delta, Over, Stored, TurnPart
from nplt_protocol import ErrorCode, JsonObject, JsonValue, RequestError
from nplt_protocol.messages import TurnFinished
from nplt_protocol.stream import Notifier
from nplt_server.app import Server
from nplt_server.context.messages import ContextMessage
from nplt_server.errors import (
    AnswerCut,
    AnswerRejected,
    ProviderError,
    ProviderUnavailable,
    error_to_tell,
)
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.providers.accumulator import cleaned
from nplt_server.providers.retries import RequestForms
from nplt_server.providers.route import ModelRoute
from nplt_server.request_id import request_id
from nplt_server.tools import ToolDescription

log = logging.getLogger(__name__)

_WAITING_CHARACTERS_MAX: Final = 64 * 1024
"""The provider is not read while this much waits for the client."""


class UnrecordedCall(Struct, frozen=True, kw_only=True):
    model: str
    context: list[ContextMessage]
    tools: tuple[ToolDescription, ...]
    options: Mapping[str, JsonValue]


class UnrecordedAnswer:
    """A call that runs in a task of its own; the endpoint takes its pieces."""

    def __init__(self, server: Server, user: str, call: UnrecordedCall) -> None:
        self.model = call.model
        self._server = server
        self._services = server.services
        self._user = user
        self.call = call
        self.answer_id = self._services.new_entry_id()
        self._scope = anyio.CancelScope()
        self._pieces: list[AnswerPiece] = []
        self._waiting_characters = 0
        self._changed = Notifier(asyncio.get_running_loop())
        self._error: RequestError | None = None
        self._call_ids: dict[int, str] = {}
        self._usage: UsageReport | None = None
        self._stop_reason: str | None = None
        self._characters = 0

    @classmethod
    def of(
        cls,
        call: ApiRequest,
        messages: Sequence[ClientMessage],
        *,
        model: str | None,
        options: JsonObject,
        tools: tuple[ToolDescription, ...],
    ) -> UnrecordedAnswer:
        """Starts the call for a request. Raises `ApiError` and `RequestError`."""
        services = call.server.services
        chosen = services.router.choose(services.router.wished(model=model, role=None))
        schema = options.get("schema")
        context = context_of(
            messages,
            facts=services.context.models.facts(chosen),
            schema=orjson.dumps(schema).decode() if schema else "",
        )
        wanted = UnrecordedCall(model=chosen, context=context, tools=tools, options=options)
        answer = cls(call.server, call.user, wanted)
        call.set_id(answer.answer_id)
        answer.start()
        return answer

    def start(self) -> None:
        """Raises `RequestError` if the user has sent too many prompts, or the server stops."""
        if self._services.draining:
            raise RequestError(ErrorCode.SHUTTING_DOWN, "the server is shutting down")
        if self._server.admission.need_tokens:
            self._server.admission.take_prompt(self._user, self._services)
        self._services.spawn(self._run)

    async def next_pieces(self) -> list[AnswerPiece]:
        while not self._pieces:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        pieces, self._pieces, self._waiting_characters = self._pieces, [], 0
        self._changed.notify()
        return pieces

    def finish(self) -> None:
        pass

    async def close(self) -> None:
        self._scope.cancel()

    def _add(self, piece: AnswerPiece, characters: int) -> None:
        self._pieces.append(piece)
        self._waiting_characters += characters
        self._changed.notify()

    # The task

    async def _run(self) -> None:
        self._services.activity.begin()
        request_id.set(self.answer_id)
        try:
            with self._scope:
                await self._services.slots.take(self._user, self.answer_id)
                try:
                    await self._make()
                finally:
                    self._services.slots.give_back(self._user, self.answer_id)
        except Exception as error:
            self._error = error_to_tell(error, log, "a call without a conversation failed")
            code = self._error.code
            log.warning("an answer of %s without a conversation failed: %s", self.model, code)
        finally:
            self._error = self._error or RequestError(ErrorCode.UNAVAILABLE, "it was cancelled")
            self._services.activity.end()
            self._changed.notify()

    async def _make(self) -> None:
        router = self._services.router
        forms, tried, retries = RequestForms(), [self.model], 0
        while True:
            route = router.route_of(self.model)
            try:
                await self._attempt(route, forms, is_retry=retries > 0)
                break
            except ProviderError as failure:
                if self._characters:
                    raise
                error = forms.after(failure)
                if error is None:
                    continue
                seconds = router.retries.wait_before_retry(error, retries=retries)
                if seconds is None:
                    other = None
                    if error.reason in router.fallback_on:
                        avoid = route.id if error.of_provider else None
                        other = router.instead_of(tried, avoid=avoid)
                    if other is None:
                        raise error from None
                    route.metrics.fail_overs += 1
                    tried.append(other)
                    self.model, retries = other, 0
                    continue
            retries += 1
            route.metrics.retries += 1
            await anyio.sleep(seconds)
        usage = {} if self._usage is None else self._usage.as_json()
        self._add(Ended(stop_reason=self._stop_reason or "end", usage=usage, model=self.model), 0)

    async def _attempt(self, route: ModelRoute, forms: RequestForms, *, is_retry: bool) -> None:
        facts = self._services.context.models.facts(self.model)
        request = LlmRequest(
            invocation=route.invocation,
            context=self.call.context,
            tools=self.call.tools,
            options={**facts.options, **self.call.options},
            answer_tokens_max=facts.answer_tokens,
            is_retry=is_retry,
            form=forms.form,
        )
        seconds = self._services.limits.call_seconds_max
        self._stop_reason = None
        with anyio.CancelScope(deadline=monotonic() + seconds) as in_time:
            async with route.call_model(request) as deltas:
                async for delta in deltas:
                    self._apply(cleaned(delta))
                    if self._waiting_characters > _WAITING_CHARACTERS_MAX:
                        await self._until_taken()
        if in_time.cancelled_caught:
            late = f"the model did not finish within {seconds:g} s"
            raise ProviderUnavailable(late, timed_out=True)
        if self._stop_reason is None:
            raise AnswerCut

    async def _until_taken(self) -> None:
        while self._pieces:
            await self._changed.wait()

    def _apply(self, delta: ModelOutputDelta) -> None:
        match delta:
            case TextPiece(text=text):
                self._count(text)
                self._add(Text(text), len(text))
            case ReasoningPiece(text=text):
                self._count(text)
                self._add(Reasoning(text), len(text))
            case ToolCallPiece(index=index, tool_name=name, arguments=arguments):
                self._count(name + arguments)
                call_id = ""
                if index not in self._call_ids:
                    call_id = self._call_ids[index] = f"call_{self._services.new_entry_id()}"
                place = [*self._call_ids].index(index)
                piece = CallPiece(index=place, arguments=arguments, call_id=call_id, name=name)
                self._add(piece, len(arguments))
            case UsageReport():
                self._usage = delta
            case Stopped(reason=reason):
                self._stop_reason = reason
            case OpaquePiece():
                pass

    def _count(self, text: str) -> None:
        self._characters += len(text)
        most = self._services.limits.answer_bytes_max
        if self._characters > most:
            longer = f"the answer is longer than {most:,} bytes; ask for a shorter one"
            raise AnswerRejected(ErrorCode.TOO_LARGE, longer)


class UnrecordedTurn:
    """The same answer as the parts of a turn, for responses."""

    def __init__(self, answer: UnrecordedAnswer, *, metadata: JsonObject, created_at: str) -> None:
        self._answer = answer
        self._prompt: JsonObject = {
            "kind": "model_input",
            "timestamp": created_at,
            "metadata": metadata,
            "options": {**answer.call.options},
            "model": answer.model,
            "tools": [
                {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in answer.call.tools
            ],
        }
        self._has_begun = False
        self._lengths = {"text": 0, "reasoning": 0}
        self._calls: list[JsonObject] = []
        self.session_id = ""

    async def next_parts(self) -> list[TurnPart]:
        parts: list[TurnPart] = []
        if not self._has_begun:
            self._has_begun = True
            return [Stored(self._prompt)]
        for piece in await self._answer.next_pieces():
            match piece:
                case Text(text):
                    parts.append(self._delta("text", text))
                case Reasoning(text):
                    parts.append(self._delta("reasoning", text))
                case CallPiece():
                    self._add_call(piece)
                case Ended():
                    parts += self._end(piece)
        return parts

    def finish(self) -> None:
        self._answer.finish()

    async def close(self) -> None:
        await self._answer.close()

    def _delta(self, kind: Literal["text", "reasoning"], text: str) -> Delta:
        offset = self._lengths[kind]
        self._lengths[kind] += len(text)
        return Delta(kind=kind, call=0, offset=offset, text=text)

    def _add_call(self, piece: CallPiece) -> None:
        if piece.index == len(self._calls):
            self._calls.append(
                {
                    "tool_call_id": piece.call_id,
                    "tool_name": "",
                    "raw_arguments": "",
                    "by_client": True,
                }
            )
        call = self._calls[piece.index]
        call["tool_name"] = str(call["tool_name"]) + piece.name
        call["raw_arguments"] = str(call["raw_arguments"]) + piece.arguments

    def _end(self, ended: Ended) -> list[TurnPart]:
        provider, _, model = ended.model.partition("/")
        calls: list[JsonValue] = [*self._calls]
        output: JsonObject = {
            "kind": "model_output",
            "call": 0,
            "state": "completed",
            "tool_calls": calls,
            "usage": {**ended.usage},
            "invocation": {"provider": provider, "model": model},
        }
        finished = TurnFinished(
            session_id="", turn_id="", state="completed", seq=0, stop_reason=ended.stop_reason
        )
        return [Stored(output), Over(finished)]
