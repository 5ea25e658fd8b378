"""`POST /v1/chat/completions`.

Without a conversation named, the messages go to the model and nothing is recorded; every such
response says so (`X-Nplt-Recorded: false`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

import anyio
import orjson
from msgspec import Struct, field
from starlette.responses import Response
from starlette.routing import BaseRoute

from nplt_gateway.answer_pieces import Answer, AnswerPiece, CallPiece, Ended, Reasoning, Text
from nplt_gateway.api_request import ApiRequest, api_route
from nplt_gateway.bodies import JsonResponse
from nplt_gateway.chat_body import ChatBody
from nplt_gateway.client_messages import (
    ClientMessage,
    system_text,
)
from nplt_gateway.errors import ApiError, as_api_error
from nplt_gateway.recorded import NewPrompt, PromptedTurn, RecordedAnswer
from nplt_gateway.sse import DONE, EventStream, data_event
from nplt_gateway.unrecorded import UnrecordedAnswer
from nplt_gateway.which_conversation import (
    CONVERSATION_HEADER,
    RECORDED_HEADER,
    Named,
    foreign_chat,
    is_task,
    named_conversation,
    of_retries,
)
from nplt_protocol import JsonObject, JsonValue, RequestError

_HEAD_SECONDS_MAX: Final = 10.0
"""A failure within this time has its own status; later it is an event of the stream."""
_FINISH_REASONS: Final = {
    "end": "stop",
    "length": "length",
    "window": "length",
    "tool_calls": "tool_calls",
    "filter": "content_filter",
    "refusal": "content_filter",
}
_PARAMS: Final = {
    "options.schema": "response_format",
    "options.effort": "reasoning_effort",
    "options.output_tokens": "max_completion_tokens",
    "options.temperature": "temperature",
    "options.top_p": "top_p",
    "options.stop": "stop",
    "options.seed": "seed",
    "options.tool_choice": "tool_choice",
    "options.parallel_tool_calls": "parallel_tool_calls",
    "text": "messages",
}


async def create(call: ApiRequest) -> Response:
    body, digest = await call.body(ChatBody)
    body.check()
    messages = await call.compute(lambda: body.client_messages)
    named = named_conversation(call) or foreign_chat(call, cache_key=body.prompt_cache_key)
    new = named or of_retries(call)
    try:
        await call.check_options(body.model, body.options)
        if not _is_recorded(call, body, messages, named):
            answer: Answer = UnrecordedAnswer.of(
                call,
                messages,
                model=body.model,
                options=body.options,
                tools=body.client_tools,
            )
            return await _respond(call, body, answer, {RECORDED_HEADER: "false"})
        turn = PromptedTurn(call)
        try:
            await turn.open()
            await turn.find_repeated(named, digest)
            await turn.enter(new)
            receipt = await turn.prompt(
                NewPrompt(
                    messages=messages,
                    model=body.model,
                    options=body.options,
                    metadata=body.metadata or {},
                    tools=body.client_tools,
                    body_sha256=digest,
                )
            )
        except BaseException:
            with anyio.CancelScope(shield=True):
                await turn.close()
            raise
        answer = RecordedAnswer(turn, receipt)
        return await _respond(call, body, answer, {CONVERSATION_HEADER: receipt.session_id})
    except RequestError as error:
        raise as_api_error(error, _PARAMS) from None


def _is_recorded(
    call: ApiRequest, body: ChatBody, messages: Sequence[ClientMessage], named: Named | None
) -> bool:
    rules = call.server.settings.http
    if is_task(call, system_text(messages), has_tools=bool(body.tools)):
        return False
    if body.store is False and not rules.store_unstored:
        return False
    return named is not None or rules.record_unnamed


async def _respond(
    call: ApiRequest, body: ChatBody, answer: Answer, head: dict[str, str]
) -> Response:
    rendering = _Rendering(answer, body)
    try:
        if not body.stream:
            whole = await call.unless_gone(_whole(rendering, answer))
            answer.finish()
            await answer.close()
            return JsonResponse(whole, headers=head)
        first: list[AnswerPiece] = []
        with anyio.move_on_after(_HEAD_SECONDS_MAX):
            first = await call.unless_gone(answer.next_pieces())
        return EventStream(_stream(rendering, answer, first), head)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await answer.close()
        raise


async def _stream(
    rendering: _Rendering, answer: Answer, pieces: list[AnswerPiece]
) -> AsyncGenerator[bytes, None]:
    try:
        yield rendering.first_chunk()
        while True:
            if pieces:
                yield b"".join(rendering.chunks(pieces))
                if isinstance(pieces[-1], Ended):
                    break
            pieces = await answer.next_pieces()
        yield DONE
        answer.finish()
    except (ApiError, RequestError) as error:  # the head is sent
        yield data_event(as_api_error(error, _PARAMS).as_json())
    finally:
        with anyio.CancelScope(shield=True):
            await answer.close()


async def _whole(rendering: _Rendering, answer: Answer) -> JsonObject:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[_WholeCall] = []
    while True:
        for piece in await answer.next_pieces():
            match piece:
                case Text(text):
                    texts.append(text)
                case Reasoning(text):
                    thoughts.append(text)
                case CallPiece():
                    if piece.index == len(calls):
                        calls.append(_WholeCall(call_id=piece.call_id))
                    calls[piece.index].name += piece.name
                    calls[piece.index].arguments.append(piece.arguments)
                case Ended():
                    message: JsonObject = {
                        "role": "assistant",
                        "content": "".join(texts) if texts or not calls else None,
                        "refusal": None,
                    }
                    if thoughts:
                        message["reasoning_content"] = "".join(thoughts)
                    if calls:
                        message["tool_calls"] = [each.as_json() for each in calls]
                    return rendering.whole(message, piece)


class _WholeCall(Struct):
    call_id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def as_json(self) -> JsonObject:
        return {
            "id": self.call_id,
            "type": "function",
            "function": {"name": self.name, "arguments": "".join(self.arguments)},
        }


class _Rendering:
    """Writes the pieces of one answer as chunks."""

    def __init__(self, answer: Answer, body: ChatBody) -> None:
        self._answer = answer
        self._id = f"chatcmpl-{answer.answer_id}"
        self._created = int(time.time())
        self._with_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._before, self._after = b"", b""

    def first_chunk(self) -> bytes:
        # A chunk is this frame around its delta, which is all that is encoded for each.
        frame = self._frame("chat.completion.chunk", self._answer.model)
        choice: JsonObject = {"index": 0, "delta": 0, "logprobs": None, "finish_reason": None}
        encoded = orjson.dumps({**frame, "choices": [choice]})
        before, _, after = encoded.partition(b'"delta":0')
        self._before, self._after = b"data: " + before + b'"delta":', after + b"\n\n"
        return self._chunk({"role": "assistant", "content": ""})

    def chunks(self, pieces: Sequence[AnswerPiece]) -> Iterator[bytes]:
        for kind, group in groupby(pieces, type):
            if kind is Text or kind is Reasoning:
                name = "content" if kind is Text else "reasoning_content"
                text = "".join(each.text for each in group if isinstance(each, Text | Reasoning))
                yield self._chunk({name: text})
                continue
            for piece in group:
                if isinstance(piece, CallPiece):
                    yield self._chunk({"tool_calls": [_call_delta(piece)]})
                elif isinstance(piece, Ended):
                    yield from self._end(piece)

    def _chunk(self, delta: JsonObject) -> bytes:
        return self._before + orjson.dumps(delta) + self._after

    def _end(self, end: Ended) -> Iterator[bytes]:
        frame = self._frame("chat.completion.chunk", end.model)
        choice: JsonObject = {
            "index": 0,
            "delta": {},
            "logprobs": None,
            "finish_reason": _finish_reason(end),
        }
        yield data_event({**frame, "choices": [choice]})
        if self._with_usage:
            yield data_event({**frame, "choices": [], "usage": _usage(end.usage)})

    def whole(self, message: JsonObject, end: Ended) -> JsonObject:
        choice: JsonObject = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _finish_reason(end),
        }
        frame = self._frame("chat.completion", end.model)
        return {**frame, "choices": [choice], "usage": _usage(end.usage)}

    def _frame(self, kind: str, model: str) -> JsonObject:
        return {"id": self._id, "object": kind, "created": self._created, "model": model}


def _call_delta(piece: CallPiece) -> JsonObject:
    function: JsonObject = {"arguments": piece.arguments}
    delta: JsonObject = {"index": piece.index, "function": function}
    if piece.name:
        function["name"] = piece.name
    if piece.call_id:
        delta.update(id=piece.call_id, type="function")
    return delta


def _finish_reason(end: Ended) -> str:
    return _FINISH_REASONS.get(end.stop_reason, "stop")


def _usage(usage: Mapping[str, JsonValue]) -> JsonObject:
    counts = {name: value for name, value in usage.items() if isinstance(value, int)}
    sent, made = counts.get("input_tokens", 0), counts.get("output_tokens", 0)
    return {
        "prompt_tokens": sent,
        "completion_tokens": made,
        "total_tokens": sent + made,
        "prompt_tokens_details": {"cached_tokens": counts.get("cached_tokens", 0)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


ROUTES: Final[tuple[BaseRoute, ...]] = (api_route("POST", "/v1/chat/completions", create),)
