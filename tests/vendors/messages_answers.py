"""An answer as Anthropic's Messages API gives it: whole, or as a stream of events.

From the API reference: one content block after the other, each with start, deltas and
stop; a thinking block's signature is its last delta; what stopped the model and how many
tokens it said comes in `message_delta`.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson
from tests.vendors.answers import (
    Answer,
    Part,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    UnknownItem,
)
from tests.vendors.apis import Ids
from tests.vendors.caching import Usage
from tests.vendors.fields import JsonObject
from tests.vendors.messages_thinking import Conversation, conversation_of
from tests.vendors.models import ClaudeModel
from tests.vendors.seals import Seals
from tests.vendors.sse import Event, Wire
from tests.vendors.tokens import tokens_of

_STOP_REASONS = {
    "end": "end_turn",
    "tools": "tool_use",
    "length": "max_tokens",
    "filter": "refusal",
    "refusal": "refusal",
    "stop_sequence": "stop_sequence",
    "pause": "pause_turn",
}


class AnsweredMessage:
    """One answer to one request, with ids and signatures."""

    def __init__(
        self, body: JsonObject, answer: Answer, usage: Usage, *, ids: Ids, seals: Seals,
        model: ClaudeModel,
    ) -> None:  # fmt: skip
        self._body, self._answer, self._usage = body, answer, usage
        self._ids, self._seals = ids, seals
        self._omits_thinking = _display(body, model) == "omitted"
        self._id = ids.new("msg_")
        conversation = conversation_of(body)
        self._blocks: list[tuple[Part, JsonObject]] = []
        for part in answer.parts:
            block = self._block(part, conversation)
            if block is not None:
                conversation.add("assistant", block)
                self._blocks.append((part, block))

    def whole(self) -> JsonObject:
        message = self._message([block for _, block in self._blocks])
        return {**message, **self._stopped(), "usage": self._usage_json(self._output_tokens_of())}

    def events(self, wire: Wire) -> list[Event]:
        start = {**self._message([]), "usage": self._usage_json(1, empty=wire.late_usage)}
        listed = [_event("message_start", message=start)]
        for index, (part, block) in enumerate(self._blocks):
            opened, deltas = self._in_pieces(part, block)
            listed.append(_event("content_block_start", index=index, content_block=opened))
            listed += [_event("content_block_delta", index=index, delta=delta) for delta in deltas]
            listed.append(_event("content_block_stop", index=index))
        final = _event(
            "message_delta", delta=self._stopped(), usage=self._usage_json(self._output_tokens_of())
        )
        done = _event("message_stop")
        return [
            *listed,
            Event(name=final.name, data=final.data, end="stop"),
            Event(name=done.name, data=done.data, end="done"),
        ]

    def _block(self, part: Part, conversation: Conversation) -> JsonObject | None:
        match part:
            case Text(text):
                return {"type": "text", "text": text}
            case Thinking(_, redacted=True):
                data = self._seals.put_on(conversation.binding(""))
                return {"type": "redacted_thinking", "data": data}
            case Thinking(text):
                shown = "" if self._omits_thinking else text
                signature = self._seals.put_on(conversation.binding(shown))
                return {"type": "thinking", "thinking": shown, "signature": signature}
            case ToolCall(name, arguments, call_id):
                call_id = call_id or self._ids.new("toolu_")
                given = _parsed(arguments)
                return {"type": "tool_use", "id": call_id, "name": name, "input": given}
            case UnknownItem(block):
                return block
            case Refusal():
                return None  # told by the stop reason alone

    def _in_pieces(
        self, part: Part, block: JsonObject
    ) -> tuple[JsonObject, Iterator[JsonObject] | list[JsonObject]]:
        pieces = self._answer.pieces
        match block["type"]:
            case "text":
                deltas = [{"type": "text_delta", "text": each} for each in pieces(block["text"])]
                return {"type": "text", "text": ""}, deltas
            case "thinking":
                deltas = [
                    {"type": "thinking_delta", "thinking": each}
                    for each in pieces(block["thinking"])
                ]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
                return {"type": "thinking", "thinking": "", "signature": ""}, deltas
            case "tool_use":
                assert isinstance(part, ToolCall)
                deltas = [
                    {"type": "input_json_delta", "partial_json": each}
                    for each in ["", *pieces(part.arguments)]
                ]
                return {**block, "input": {}}, deltas
            case _:
                return block, []

    def _message(self, content: list[JsonObject]) -> JsonObject:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._body["model"],
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _stopped(self) -> JsonObject:
        reason = _STOP_REASONS[self._answer.stopped_by]
        stopped: JsonObject = {"stop_reason": reason, "stop_sequence": None}
        if reason == "stop_sequence":
            stopped["stop_sequence"] = self._body.get("stop_sequences", ["###"])[0]
        if reason == "refusal":
            texts = [part.text for part in self._answer.parts if isinstance(part, Refusal)]
            explanation = " ".join(texts) or None
            stopped["stop_details"] = {
                "type": "refusal", "category": None, "explanation": explanation
            }  # fmt: skip
        return stopped

    def _usage_json(self, output_tokens_of: int, *, empty: bool = False) -> JsonObject:
        usage = Usage(input_tokens=0) if empty else self._usage
        return {
            "input_tokens": usage.input_tokens - usage.read_tokens - usage.written_tokens,
            "cache_read_input_tokens": usage.read_tokens,
            "cache_creation_input_tokens": usage.written_tokens,
            "output_tokens": output_tokens_of,
        }

    def _output_tokens_of(self) -> int:
        return 1 + sum(
            tokens_of(part.arguments if isinstance(part, ToolCall) else part.text)
            for part in self._answer.parts
            if not isinstance(part, UnknownItem)
        )


def _event(name: str, **fields: object) -> Event:
    return Event(name=name, data={"type": name, **fields})


def _display(body: JsonObject, model: ClaudeModel) -> str:
    """Models that think adaptively only show nothing of it unless asked to."""
    asked: str | None = body.get("thinking", {}).get("display")
    return asked or ("summarized" if "enabled" in model.thinking_kinds else "omitted")


def _parsed(arguments: str) -> JsonObject:
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return given if isinstance(given, dict) else {}
