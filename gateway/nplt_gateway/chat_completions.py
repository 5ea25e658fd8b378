"""`POST /v1/chat/completions`.

Without a conversation named, the messages go to the model and nothing is recorded; every such
response says so (`X-Nplt-Recorded: false`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import Final

import anyio
import orjson
from starlette.responses import Response
from starlette.routing import BaseRoute

from nplt_gateway.api_request import ApiRequest, api_route
from nplt_gateway.bodies import JsonResponse
from nplt_gateway.errors import ApiError, as_api_error
from nplt_gateway.request_bodies import ChatBody
from nplt_gateway.sse import DONE, EventStream, data_event
from nplt_gateway.turn_reader import (
    Delta,
    Over,
    Stored,
    TurnPart,
    arguments_of,
    client_calls_of,
    failure_of,
    model_of,
)
from nplt_gateway.turns import Turn, begin_turn, headers_of
from nplt_gateway.which_conversation import foreign_chat, named_conversation
from nplt_protocol import JsonObject, JsonValue, RequestError
from nplt_protocol.messages import TurnFinished

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
    named = named_conversation(call) or foreign_chat(call, cache_key=body.prompt_cache_key)
    records = call.server.settings.http.record_unnamed
    turn = await begin_turn(call, body, digest, named=named, records_unnamed=records)
    completion = _Completion(turn, body)
    try:
        if not body.stream:
            whole = await call.unless_gone(_whole(completion, turn))
            turn.finish()
            await turn.close()
            return JsonResponse(whole, headers=headers_of(turn))
        first: list[JsonObject] = []
        with anyio.move_on_after(_HEAD_SECONDS_MAX):
            first = await call.unless_gone(_next_deltas(completion, turn))
        return EventStream(_stream(completion, turn, first), headers_of(turn))
    except BaseException:
        with anyio.CancelScope(shield=True):
            await turn.close()
        raise


async def _next_deltas(completion: _Completion, turn: Turn) -> list[JsonObject]:
    """Returns the next deltas; none if the completion has ended."""
    deltas: list[JsonObject] = []
    while not deltas and completion.end is None:
        deltas = completion.apply(await turn.next_parts())
    return deltas


async def _stream(
    completion: _Completion, turn: Turn, deltas: list[JsonObject]
) -> AsyncGenerator[bytes, None]:
    try:
        yield completion.first_chunk()
        while True:
            if deltas:
                yield b"".join(map(completion.chunk, deltas))
            if completion.end is not None:
                break
            deltas = await _next_deltas(completion, turn)
        yield b"".join((*completion.last_chunks(), DONE))
        turn.finish()
    except (ApiError, RequestError) as error:  # the head is sent
        yield data_event(as_api_error(error, _PARAMS).as_json())
    finally:
        with anyio.CancelScope(shield=True):
            await turn.close()


async def _whole(completion: _Completion, turn: Turn) -> JsonObject:
    deltas: list[JsonObject] = []
    while completion.end is None:
        deltas += await _next_deltas(completion, turn)
    return completion.whole(deltas)


class _Completion:
    """One answer as a chat completion: the texts of the turn's calls, and the calls of the client's
    tools."""

    def __init__(self, turn: Turn, body: ChatBody) -> None:
        self.end: TurnFinished | None = None
        self._model = turn.model
        self._id = f"chatcmpl-{turn.response_id.turn_id}"
        self._created = int(time.time())
        self._with_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._before, self._after = b"", b""
        self._last_call = -1
        self._tool_calls = 0

    def apply(self, parts: Iterable[TurnPart]) -> list[JsonObject]:
        """Returns the deltas of these parts. Raises `RequestError` if the turn has failed."""
        deltas: list[JsonObject] = []
        for part in parts:
            match part:
                case Delta(kind="reasoning"):
                    _join(deltas, "reasoning_content", part.text)
                case Delta():
                    if part.offset == 0 and 0 <= self._last_call < part.call:
                        _join(deltas, "content", "\n\n")
                    self._last_call = part.call
                    _join(deltas, "content", part.text)
                case Stored(entry):
                    deltas += map(self._call_delta, client_calls_of(entry))
                    self._model = model_of(entry) or self._model
                case Over(finished):
                    if finished.state != "completed":
                        raise failure_of(finished.error, finished.state)
                    self.end = finished
        return deltas

    def _call_delta(self, call: JsonObject) -> JsonObject:
        index, self._tool_calls = self._tool_calls, self._tool_calls + 1
        function: JsonObject = {"name": call["tool_name"], "arguments": arguments_of(call)}
        identity: JsonObject = {"id": call["tool_call_id"], "type": "function"}
        return {"tool_calls": [{"index": index, **identity, "function": function}]}

    # As a stream

    def first_chunk(self) -> bytes:
        # A chunk is this frame around its delta, which is all that is encoded for each.
        choice: JsonObject = {"index": 0, "delta": 0, "logprobs": None, "finish_reason": None}
        encoded = orjson.dumps({**self._frame("chat.completion.chunk"), "choices": [choice]})
        before, _, after = encoded.partition(b'"delta":0')
        self._before, self._after = b"data: " + before + b'"delta":', after + b"\n\n"
        return self.chunk({"role": "assistant", "content": ""})

    def chunk(self, delta: JsonObject) -> bytes:
        return self._before + orjson.dumps(delta) + self._after

    def last_chunks(self) -> Iterator[bytes]:
        frame = self._frame("chat.completion.chunk")
        yield data_event({**frame, "choices": [self._choice("delta", {})]})
        if self._with_usage:
            yield data_event({**frame, "choices": [], "usage": self._usage})

    # As a whole

    def whole(self, deltas: Sequence[JsonObject]) -> JsonObject:
        texts = {
            name: "".join(str(delta[name]) for delta in deltas if name in delta)
            for name in ("content", "reasoning_content")
        }
        calls: list[JsonValue] = []
        for delta in deltas:
            made = delta.get("tool_calls")
            for call in made if isinstance(made, list) else ():
                assert isinstance(call, dict)
                calls.append({name: value for name, value in call.items() if name != "index"})
        message: JsonObject = {
            "role": "assistant",
            "content": texts["content"] if texts["content"] or not calls else None,
            "refusal": None,
        }
        if texts["reasoning_content"]:
            message["reasoning_content"] = texts["reasoning_content"]
        if calls:
            message["tool_calls"] = calls
        frame = self._frame("chat.completion")
        return {**frame, "choices": [self._choice("message", message)], "usage": self._usage}

    def _frame(self, kind: str) -> JsonObject:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _choice(self, name: str, content: JsonObject) -> JsonObject:
        reason = "tool_calls" if self._tool_calls else self.end and self.end.stop_reason
        finish = _FINISH_REASONS.get(reason or "end", "stop")
        return {"index": 0, name: content, "logprobs": None, "finish_reason": finish}

    @property
    def _usage(self) -> JsonObject:
        usage: Mapping[str, JsonValue] = self.end.usage if self.end is not None else {}
        counts = {name: value for name, value in usage.items() if isinstance(value, int)}
        sent, made = counts.get("input_tokens", 0), counts.get("output_tokens", 0)
        return {
            "prompt_tokens": sent,
            "completion_tokens": made,
            "total_tokens": sent + made,
            "prompt_tokens_details": {"cached_tokens": counts.get("cached_tokens", 0)},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }


def _join(deltas: list[JsonObject], name: str, text: str) -> None:
    """Adds the text, to the last delta if that is of the same kind."""
    if deltas and name in deltas[-1]:
        deltas[-1][name] = str(deltas[-1][name]) + text
    else:
        deltas.append({name: text})


ROUTES: Final[tuple[BaseRoute, ...]] = (api_route("POST", "/v1/chat/completions", create, _PARAMS),)
