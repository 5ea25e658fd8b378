"""`POST /v1/chat/completions`: an answer whole, or as chunks.

From the API reference: the first chunk names the role, calls come in pieces under their
index (id and name in the first), the last choice says why it stopped, and only with
`stream_options.include_usage` one more chunk without choices tells the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.vendors.answers import Answer, ApiName, Refusal, Text, Thinking, ToolCall
from tests.vendors.apis import Ids, Vendor
from tests.vendors.caching import SteppedPrefixes, Usage
from tests.vendors.chat_rules import check_chat, check_window
from tests.vendors.chat_shapes import REQUEST
from tests.vendors.faults import ErrorEvent
from tests.vendors.fields import JsonObject, check_shape
from tests.vendors.openai_api import OpenAI
from tests.vendors.openai_tools import SAY
from tests.vendors.sse import Event, Wire
from tests.vendors.tokens import canonical, tokens_of

_FINISH_REASONS = {
    "end": "stop",
    "tools": "tool_calls",
    "length": "length",
    "filter": "content_filter",
    "refusal": "stop",
    "stop_sequence": "stop",
    "pause": "stop",
}
_CREATED = 1_767_225_600


class ChatApi:
    name: ApiName = "chat"
    stranger = Event(name="surprise", data={"object": "surprise", "choices": []})
    ping: Event | None = None

    def __init__(self, openai: OpenAI, *, ids: Ids, cached_tokens_min: int) -> None:
        self.vendor: Vendor = openai
        self._openai = openai
        self._ids = ids
        self._cache = SteppedPrefixes(tokens_min=cached_tokens_min)

    def admit(self, body: object) -> Usage:
        request = check_shape(body, (), REQUEST, SAY)
        model = self._openai.model(request["model"])
        check_chat(request, model)
        prompt = "\n".join(map(canonical, [request.get("tools"), *request["messages"]]))
        check_window(tokens_of(prompt), model)
        return self._cache.take(model.name, prompt, counts_writes=model.charges_cache_writes)

    def whole(self, body: JsonObject, answer: Answer, usage: Usage) -> JsonObject:
        return {
            **self._head(body, "chat.completion"),
            "choices": [
                {
                    "index": 0,
                    "message": self._message(answer),
                    "finish_reason": _FINISH_REASONS[answer.stopped_by],
                    "logprobs": None,
                }
            ],
            "usage": _usage_json(answer, usage),
        }

    def events(self, body: JsonObject, answer: Answer, usage: Usage, wire: Wire) -> list[Event]:
        head = self._head(body, "chat.completion.chunk")
        asked = (body.get("stream_options") or {}).get("include_usage")
        if asked:
            head["usage"] = None
        events = []
        if wire.empty_choices:
            events.append(Event(data={**head, "choices": [], "prompt_filter_results": []}))
        deltas = map(self._signed(body, answer), self._deltas(answer, wire))
        events += [Event(data=_chunk(head, delta)) for delta in deltas]
        reason = _FINISH_REASONS[answer.stopped_by]
        events.append(Event(data=_chunk(head, {}, reason), end="stop"))
        if asked:
            final = {**head, "choices": [], "usage": _usage_json(answer, usage)}
            events.append(Event(data=final, end="done"))
        return [*events, Event(data="[DONE]", end="done")]

    def error_event(self, fault: ErrorEvent) -> Event:
        return Event(data=self._openai.error_body(self._openai.failure(500), ""))

    def _signed(self, body: JsonObject, answer: Answer) -> Callable[[JsonObject], JsonObject]:
        """Gemini signs the first call of an answer, where it begins."""
        first = next((part for part in answer.parts if isinstance(part, ToolCall)), None)
        if first is None or self._openai.model(body["model"]).vendor != "gemini":
            return lambda delta: delta
        extra = {"google": {"thought_signature": f"signature of {first.name}"}}

        def signed(delta: JsonObject) -> JsonObject:
            call = (delta.get("tool_calls") or [{}])[0]
            if call.get("index") != 0 or "id" not in call:
                return delta
            return {"tool_calls": [{**call, "extra_content": extra}]}

        return signed

    def _head(self, body: JsonObject, kind: str) -> JsonObject:
        return {
            "id": self._ids.new("chatcmpl-"),
            "object": kind,
            "created": _CREATED,
            "model": body["model"],
            "system_fingerprint": "fp_emulated",
        }

    def _message(self, answer: Answer) -> JsonObject:
        texts = [part.text for part in answer.parts if isinstance(part, Text)]
        refusals = [part.text for part in answer.parts if isinstance(part, Refusal)]
        message: JsonObject = {
            "role": "assistant",
            "content": "".join(texts) if texts else None,
            "refusal": "".join(refusals) if refusals else None,
        }
        calls = [self._call(part) for part in answer.parts if isinstance(part, ToolCall)]
        return {**message, "tool_calls": calls} if calls else message

    def _deltas(self, answer: Answer, wire: Wire) -> Iterator[JsonObject]:
        yield {"role": "assistant", "content": "", "refusal": None}
        calls = 0
        for part in answer.parts:
            match part:
                case Text(text):
                    yield from ({"content": piece} for piece in answer.pieces(text))
                case Refusal(text):
                    yield from ({"refusal": piece} for piece in answer.pieces(text))
                case Thinking(text) if wire.reasoning_field:
                    field = wire.reasoning_field
                    yield from ({field: piece} for piece in answer.pieces(text))
                case ToolCall():
                    yield from self._call_deltas(answer, part, calls)
                    calls += 1

    def _call_deltas(self, answer: Answer, part: ToolCall, index: int) -> Iterator[JsonObject]:
        opened = self._call(part)
        opened["function"]["arguments"] = ""
        yield {"tool_calls": [{"index": index, **opened}]}
        for piece in answer.pieces(part.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}

    def _call(self, part: ToolCall) -> JsonObject:
        return {
            "id": part.call_id or self._ids.new("call_"),
            "type": "function",
            "function": {"name": part.name, "arguments": part.arguments},
        }


def _chunk(head: JsonObject, delta: JsonObject, reason: str | None = None) -> JsonObject:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return {**head, "choices": [choice]}


def _usage_json(answer: Answer, usage: Usage) -> JsonObject:
    reasoning, output = output_tokens_of(answer)
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": output,
        "total_tokens": usage.input_tokens + output,
        "prompt_tokens_details": {
            "cached_tokens": usage.read_tokens,
            "cache_write_tokens": usage.written_tokens,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": 0},
    }


def output_tokens_of(answer: Answer) -> tuple[int, int]:
    """Of reasoning, and of all."""
    reasoning = sum(tokens_of(part.text) for part in answer.parts if isinstance(part, Thinking))
    texts = [part.text for part in answer.parts if isinstance(part, (Text, Refusal))]
    texts += [part.arguments for part in answer.parts if isinstance(part, ToolCall)]
    return reasoning, reasoning + sum(map(tokens_of, texts))
