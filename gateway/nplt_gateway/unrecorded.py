"""Calls a model for a client that brings the whole conversation and wants nothing recorded.

The limits are those of a turn: the user's rate of prompts, the slots, the time of a call, the
length of an answer. A call that fails before its first piece is repeated, or another model is
asked, by the rules of the settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from time import monotonic
from typing import Final

import anyio
from msgspec import Struct

from nplt_gateway.answer_pieces import AnswerPiece, CallPiece, Ended, Reasoning, Text
from nplt_protocol import ErrorCode, JsonValue, RequestError
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
        self._call = call
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

    async def close(self) -> None:
        self._scope.cancel()

    def _add(self, piece: AnswerPiece, characters: int) -> None:
        self._pieces.append(piece)
        self._waiting_characters += characters
        self._changed.notify()

    # The task

    async def _run(self) -> None:
        self._services.activity.begin()
        try:
            with self._scope:
                await self._services.slots.take(self._user, self.answer_id)
                try:
                    await self._make()
                finally:
                    self._services.slots.give_back(self._user, self.answer_id)
        except Exception as error:
            self._error = error_to_tell(error, log, "a call without a conversation failed")
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
            context=self._call.context,
            tools=self._call.tools,
            options={**facts.options, **self._call.options},
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
