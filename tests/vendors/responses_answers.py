"""`POST /v1/responses`: an answer whole, or as events.

From the API reference: items one after the other, each added, filled in pieces and done;
the last event holds the whole response again. Reasoning is given encrypted where
`include` asks for it (its summary where `reasoning.summary` does), as before 2026; newer
servers give it unasked.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

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
from tests.vendors.chat_answers import output_tokens_of
from tests.vendors.fields import JsonObject
from tests.vendors.responses_rules import sealed_reasoning
from tests.vendors.seals import Seals
from tests.vendors.sse import Event

_CREATED = 1_767_225_600
_INCOMPLETE = {"length": "max_output_tokens", "filter": "content_filter"}


class AnsweredResponse:
    """One answer to one request, with ids and seals."""

    def __init__(
        self, body: JsonObject, answer: Answer, usage: Usage, *, ids: Ids, seals: Seals
    ) -> None:
        self._body, self._answer, self._usage = body, answer, usage
        self._ids, self._seals = ids, seals
        self._id = ids.new("resp_")
        self._items = [self._item(part) for part in answer.parts]

    def note_reasoning(self, led_to: MutableMapping[str, str]) -> None:
        """Which of the items came from which reasoning."""
        reasoning = None
        for item in self._items:
            if item["type"] == "reasoning":
                reasoning = item["id"]
            elif reasoning is not None and "id" in item:
                led_to[item["id"]] = reasoning

    def whole(self) -> JsonObject:
        incomplete = _INCOMPLETE.get(self._answer.stopped_by)
        reasoning, output = output_tokens_of(self._answer)
        return {
            **self._begun(),
            "status": "incomplete" if incomplete else "completed",
            "incomplete_details": {"reason": incomplete} if incomplete else None,
            "output": self._items,
            "usage": {
                "input_tokens": self._usage.input_tokens,
                "input_tokens_details": {
                    "cached_tokens": self._usage.read_tokens,
                    "cache_write_tokens": self._usage.written_tokens,
                },
                "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": reasoning},
                "total_tokens": self._usage.input_tokens + output,
            },
        }

    def events(self) -> list[Event]:
        whole = self.whole()
        event_list = [
            {"type": "response.created", "response": self._begun()},
            {"type": "response.in_progress", "response": self._begun()},
            *self._items_events(),
            {"type": f"response.{whole['status']}", "response": whole},
        ]
        last = len(event_list) - 1
        return [
            Event(
                name=data["type"],
                data={**data, "sequence_number": number},
                end="stop" if number == last else "",
            )
            for number, data in enumerate(event_list)
        ]

    def _begun(self) -> JsonObject:
        body = self._body
        return {
            "id": self._id,
            "object": "response",
            "created_at": _CREATED,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "metadata": {},
            "model": body["model"],
            "output": [],
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "temperature": body.get("temperature", 1.0),
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools", []),
            "top_p": body.get("top_p", 1.0),
            "store": body.get("store", True),
            "usage": None,
        }

    def _item(self, part: Part) -> JsonObject:
        match part:
            case Text(text):
                content: JsonObject = {"type": "output_text", "text": text, "annotations": []}
                return self._message(content)
            case Refusal(text):
                return self._message({"type": "refusal", "refusal": text})
            case ToolCall(name, arguments, call_id):
                return {
                    "type": "function_call",
                    "id": self._ids.new("fc_"),
                    "call_id": call_id or self._ids.new("call_"),
                    "name": name,
                    "arguments": arguments,
                    "status": "completed",
                }
            case Thinking(text):
                return self._reasoning(text)
            case UnknownItem(block):
                return block

    def _message(self, content: JsonObject) -> JsonObject:
        return {
            "type": "message",
            "id": self._ids.new("msg_"),
            "role": "assistant",
            "status": "completed",
            "content": [content],
        }

    def _reasoning(self, text: str) -> JsonObject:
        shown = (self._body.get("reasoning") or {}).get("summary")
        summary = [{"type": "summary_text", "text": text}] if shown else []
        item: JsonObject = {"type": "reasoning", "id": self._ids.new("rs_"), "summary": summary}
        if "reasoning.encrypted_content" in (self._body.get("include") or []):
            item["encrypted_content"] = self._seals.put_on(
                sealed_reasoning(self._body["model"], item)
            )
        return item

    def _items_events(self) -> Iterator[JsonObject]:
        for index, item in enumerate(self._items):
            yield from self._item_events(item, index)

    def _item_events(self, item: JsonObject, index: int) -> Iterator[JsonObject]:
        at_item = {"output_index": index}
        inner = {**at_item, "item_id": item.get("id", "")}
        added = item
        event_list: Iterator[JsonObject] = iter(())
        match item["type"]:
            case "message":
                added = {**item, "status": "in_progress", "content": []}
                event_list = self._content_events(item["content"][0], {**inner, "content_index": 0})
            case "function_call":
                added = {**item, "status": "in_progress", "arguments": ""}
                event_list = self._arguments_events(item["arguments"], inner)
            case "reasoning":
                added = {**item, "summary": []}
                added.pop("encrypted_content", None)
                event_list = self._summary_events(item["summary"], {**inner, "summary_index": 0})
        yield {"type": "response.output_item.added", **at_item, "item": added}
        yield from event_list
        yield {"type": "response.output_item.done", **at_item, "item": item}

    def _content_events(self, part: JsonObject, place: JsonObject) -> Iterator[JsonObject]:
        is_text = part["type"] == "output_text"
        name, text_field = ("output_text", "text") if is_text else ("refusal", "refusal")
        extra: JsonObject = {"logprobs": []} if is_text else {}
        empty = {**part, text_field: ""}
        yield {"type": "response.content_part.added", **place, "part": empty}
        for piece in self._answer.pieces(part[text_field]):
            yield {"type": f"response.{name}.delta", **place, **extra, "delta": piece}
        yield {"type": f"response.{name}.done", **place, **extra, text_field: part[text_field]}
        yield {"type": "response.content_part.done", **place, "part": part}

    def _arguments_events(self, arguments: str, place: JsonObject) -> Iterator[JsonObject]:
        name = "response.function_call_arguments"
        for piece in self._answer.pieces(arguments):
            yield {"type": f"{name}.delta", **place, "delta": piece}
        yield {"type": f"{name}.done", **place, "arguments": arguments}

    def _summary_events(self, summary: list[JsonObject], place: JsonObject) -> Iterator[JsonObject]:
        name = "response.reasoning_summary"
        for part in summary:
            yield {"type": f"{name}_part.added", **place, "part": {**part, "text": ""}}
            for piece in self._answer.pieces(part["text"]):
                yield {"type": f"{name}_text.delta", **place, "delta": piece}
            yield {"type": f"{name}_text.done", **place, "text": part["text"]}
            yield {"type": f"{name}_part.done", **place, "part": part}
