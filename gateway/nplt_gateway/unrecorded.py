"""Calls a model for a client that brings the whole conversation and wants nothing recorded.

The limits are those of a turn: the user's rate of prompts, the slots, the time of a call, the
length of an answer. A call that fails before its first piece is repeated, or another model is
asked, by the rules of the settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Final

import anyio
import orjson
from msgspec.structs import replace

from nplt_gateway.api_request import ApiRequest
from nplt_gateway.client_messages import ClientMessage, context_of
from nplt_gateway.request_bodies import PromptBody
from nplt_gateway.response_ids import ResponseId
from nplt_gateway.turn_reader import Delta, DeltaKind, Over, Stored, TurnPart
from nplt_protocol import ErrorCode, JsonObject, RequestError
from nplt_protocol.messages import TurnFinished
from nplt_protocol.stream import Notifier
from nplt_server.connections.admission import Admission
from nplt_server.errors import AnswerCut, ProviderError, ProviderUnavailable, error_to_tell
from nplt_server.providers import LlmRequest, ModelOutputDelta, ReasoningPiece, TextPiece
from nplt_server.providers.accumulator import ModelOutputAccumulator, cleaned
from nplt_server.providers.retries import RequestForms
from nplt_server.providers.route import ModelRoute
from nplt_server.request_id import request_id
from nplt_storage.codec import entry_as_json

log = logging.getLogger(__name__)

_WAITING_CHARACTERS_MAX: Final = 64 * 1024
"""The provider is not read while this much waits for the client."""


class UnrecordedTurn:
    """A call that runs in a task of its own. Its parts are those of a turn with one call; the
    calls of the client's tools come with the output, as for a turn that is recorded."""

    session_id = ""
    is_queued = False

    def __init__(
        self, call: ApiRequest, messages: Sequence[ClientMessage], body: PromptBody
    ) -> None:
        """Raises `ApiError` and `RequestError`."""
        self._services = services = call.server.services
        self._user = call.user
        self._options, self._tools = body.options, body.client_tools
        self.model = services.router.choose(services.router.wished(model=body.model, role=None))
        schema = self._options.get("schema")
        self._context = context_of(
            messages,
            facts=services.context.models.facts(self.model),
            schema=orjson.dumps(schema).decode() if schema else "",
        )
        self.turn_id = services.new_entry_id()
        self._output = self._new_output()
        self._parts: list[TurnPart] = [Stored(self._prompt(body.metadata or {}))]
        self._waiting_characters = 0
        self._lengths: dict[DeltaKind, int] = {"text": 0, "reasoning": 0}
        self._changed = Notifier(asyncio.get_running_loop())
        self._scope = anyio.CancelScope()
        self._error: RequestError | None = None
        call.set_id(self.turn_id)

    @property
    def response_id(self) -> ResponseId:
        return ResponseId(prompt_seq=0, turn_id=self.turn_id, session_id="unrecorded")

    def _prompt(self, metadata: JsonObject) -> JsonObject:
        """The prompt as it would be stored, without its text."""
        return {
            "kind": "model_input",
            "timestamp": datetime.now(UTC).isoformat(),
            "metadata": metadata,
            "options": self._options,
            "model": self.model,
            "tools": [
                {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in self._tools
            ],
        }

    def _new_output(self) -> ModelOutputAccumulator:
        return ModelOutputAccumulator(answer_bytes_max=self._services.limits.answer_bytes_max)

    def start(self, admission: Admission) -> None:
        """Raises `RequestError` if the user has sent too many prompts, or the server stops."""
        if self._services.draining:
            raise RequestError(ErrorCode.SHUTTING_DOWN, "the server is shutting down")
        if admission.need_tokens:
            admission.take_prompt(self._user, self._services)
        self._services.spawn(self._run)

    async def next_parts(self) -> list[TurnPart]:
        while not self._parts:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        parts, self._parts, self._waiting_characters = self._parts, [], 0
        self._changed.notify()
        return parts

    async def parts_so_far(self) -> list[TurnPart]:
        return await self.next_parts() if self._parts else []

    def finish(self) -> None:
        pass  # nothing is kept that could be read again

    async def close(self) -> None:
        self._scope.cancel()

    # The task

    async def _run(self) -> None:
        self._services.activity.begin()
        request_id.set(self.turn_id)
        try:
            with self._scope:
                await self._services.slots.take(self._user, self.turn_id)
                try:
                    await self._make()
                finally:
                    self._services.slots.give_back(self._user, self.turn_id)
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
                if self._output.has_begun:
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
        self._end(route)

    async def _attempt(self, route: ModelRoute, forms: RequestForms, *, is_retry: bool) -> None:
        facts = self._services.context.models.facts(self.model)
        request = LlmRequest(
            invocation=route.invocation,
            context=self._context,
            tools=self._tools,
            options={**facts.options, **self._options},
            answer_tokens_max=facts.answer_tokens,
            is_retry=is_retry,
            form=forms.form,
        )
        seconds = self._services.limits.call_seconds_max
        self._output = self._new_output()
        with anyio.CancelScope(deadline=monotonic() + seconds) as in_time:
            async with route.call_model(request) as deltas:
                async for delta in deltas:
                    self._take(cleaned(delta))
                    if self._waiting_characters > _WAITING_CHARACTERS_MAX:
                        await self._until_taken()
        if in_time.cancelled_caught:
            late = f"the model did not finish within {seconds:g} s"
            raise ProviderUnavailable(late, timed_out=True)
        if self._output.stop_reason is None:
            raise AnswerCut

    async def _until_taken(self) -> None:
        while self._parts:
            await self._changed.wait()

    def _take(self, delta: ModelOutputDelta) -> None:
        self._output.apply(delta)
        match delta:
            case TextPiece(text=text):
                self._add("text", text)
            case ReasoningPiece(text=text):
                self._add("reasoning", text)
            case _:
                pass

    def _add(self, kind: DeltaKind, text: str) -> None:
        self._parts.append(Delta(kind=kind, call=0, offset=self._lengths[kind], text=text))
        self._lengths[kind] += len(text)
        self._waiting_characters += len(text)
        self._changed.notify()

    def _end(self, route: ModelRoute) -> None:
        output = self._output.entry(
            turn_id=self.turn_id,
            call=0,
            invocation=route.invocation,
            new_call_id=lambda: f"call_{self._services.new_entry_id()}",
        )
        calls = tuple(replace(call, by_client=True) for call in output.tool_calls)
        finished = TurnFinished(
            session_id="",
            turn_id=self.turn_id,
            state="completed",
            seq=0,
            usage={**(output.usage or {})},
            stop_reason=output.stop_reason,
        )
        stored = entry_as_json(replace(output, tool_calls=calls))
        self._parts += [Stored({**stored, "call": 0}), Over(finished)]
        self._changed.notify()
