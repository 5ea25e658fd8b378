"""Builds a response and the events of its stream from the parts of a turn, without I/O.

The same parts give the same response, whether they are live or read from the record, and each event
has the same number (`response_ids`). A call of a model gives up to three kinds of items: its
reasoning, its message, and its calls of tools. Tools that the server has run are items of type
`mcp_call`, which clients show and do not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import orjson
from msgspec import Struct, convert

from nplt_gateway.client_messages import SealedReasoning
from nplt_gateway.response_ids import (
    CREATED,
    ENDED,
    FIRST_CALL,
    FIRST_RESULT,
    IN_PROGRESS,
    REASONING,
    SEALED,
    TEXT,
    ResponseId,
    conversation_id,
    number_of_closing,
    number_of_opening,
    number_of_text,
)
from nplt_gateway.turn_reader import Delta, Over, Stored, TurnPart, arguments_of, model_of
from nplt_protocol import JsonObject, JsonValue
from nplt_protocol.messages import TurnFinished

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

_INCOMPLETE: Final = {
    "length": "max_output_tokens",
    "window": "max_output_tokens",
    "filter": "content_filter",
}


class _Item(Struct):
    """An item of the output, as far as it is known."""

    item_id: str
    kind: Literal["reasoning", "message", "function_call", "mcp_call"]
    call: int
    part: int
    texts: list[str]
    length: int = 0
    is_open: bool = True
    status: str = "in_progress"
    fields: dict[str, JsonValue] = {}

    @property
    def text(self) -> str:
        self.texts = ["".join(self.texts)]
        return self.texts[0]

    def as_json(self, *, is_new: bool = False) -> JsonObject:
        """`is_new`: the item is sent without its contents, which have events of their own."""
        shown: JsonObject = {"id": self.item_id, "type": self.kind, "status": self.status}
        if self.kind == "reasoning":
            text: list[JsonValue] = [{"type": "summary_text", "text": self.text}]
            is_blank = is_new or self.part == SEALED
            return {**shown, "summary": [] if is_blank else text, **self.fields}
        if self.kind == "message":
            content: list[JsonValue] = [output_text(self.text)]
            return {**shown, "role": "assistant", "content": [] if is_new else content}
        return {**shown, **self.fields, "arguments": "" if is_new else self.text}


def output_text(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponseBuilder:
    def __init__(
        self,
        response_id: ResponseId,
        *,
        request: Mapping[str, JsonValue] | None = None,
        seals_reasoning: bool = False,
    ) -> None:
        """`request`: fields of the response that only the request knows. `seals_reasoning`: the
        client keeps what only the model can read of its reasoning."""
        self._id = response_id
        self._seals_reasoning = seals_reasoning
        self._request = request or {}
        self._prompt: JsonObject = {}
        self._items: list[_Item] = []
        self._usage: dict[str, int] = {}
        self._model = ""
        self._finished: TurnFinished | None = None
        self._ended_at: int | None = None
        self.is_queued = False

    @property
    def is_over(self) -> bool:
        return self._finished is not None

    @property
    def is_deleted(self) -> bool:
        return bool(self._prompt.get("redacted_at"))

    def begin(self) -> Iterator[JsonObject]:
        """The first two events."""
        for kind, number in (("created", CREATED), ("in_progress", IN_PROGRESS)):
            response = self.response(status="in_progress", is_new=True)
            yield _event(f"response.{kind}", number, response=response)

    def apply(self, part: TurnPart) -> Iterator[JsonObject]:
        """Takes the next part and returns its events."""
        match part:
            case Delta():
                yield from self._delta(part)
            case Stored(entry):
                yield from self._stored(entry)
            case Over(finished):
                for item in self._items:
                    if item.is_open:
                        yield from self._close(item, "incomplete")
                self._finished = finished
                kind = {"completed": "completed", "failed": "failed"}
                name = kind.get(self.status, "incomplete")
                yield _event(f"response.{name}", ENDED, response=self.response())

    # The parts

    def _delta(self, delta: Delta) -> Iterator[JsonObject]:
        if delta.kind == "reasoning":
            if self._item(delta.call, TEXT) is not None:
                return  # models think before they answer; the item has what comes later
            item = self._item(delta.call, REASONING)
            if item is None:
                item = self._add(delta.call, REASONING, "reasoning", "rs")
                yield from self._open(item)
        else:
            yield from self._close_reasoning(delta.call)
            item = self._item(delta.call, TEXT)
            if item is None:
                item = self._add(delta.call, TEXT, "message", "msg")
                yield from self._open(item)
        new = delta.text[max(item.length - delta.offset, 0) :]
        if not new or not item.is_open:
            return  # a call that was repeated thinks again
        item.texts.append(new)
        item.length += len(new)
        name = "reasoning_summary_text" if item.kind == "reasoning" else "output_text"
        extra: JsonObject = {} if item.kind == "reasoning" else {"logprobs": []}
        yield self._of_item(
            item,
            f"response.{name}.delta",
            number_of_text(item.call, item.part, item.length),
            delta=new,
            **extra,
        )

    def _stored(self, entry: JsonObject) -> Iterator[JsonObject]:
        usage = entry.get("usage")
        for name, count in usage.items() if isinstance(usage, dict) else ():
            if isinstance(count, int) and not isinstance(count, bool):
                self._usage[name] = self._usage.get(name, 0) + count
        self._ended_at = _seconds(entry.get("timestamp")) or self._ended_at
        match entry.get("kind"):
            case "model_input":
                self._prompt = entry
            case "model_output":
                yield from self._output(entry)
            case "tool_results":
                yield from self._results(entry)
            case _:
                pass

    def _output(self, entry: JsonObject) -> Iterator[JsonObject]:
        call = entry.get("call")
        call = call if isinstance(call, int) else 0
        self._model = model_of(entry) or self._model
        is_whole = entry.get("state") == "completed" and not entry.get("rejected")
        message = self._item(call, TEXT)
        yield from self._close_reasoning(call, "completed" if is_whole or message else "incomplete")
        if message is not None:
            yield from self._close(message, "completed" if is_whole else "incomplete")
        thoughts, reasoning = self._item(call, REASONING), entry.get("reasoning")
        if thoughts is not None and reasoning:
            thoughts.texts = [str(reasoning)]
        calls = entry.get("tool_calls")
        for place, each in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(each, dict):
                yield from self._tool_call(call, place, each)
        if self._seals_reasoning and entry.get("parts"):
            sealed = self._add(call, SEALED, "reasoning", "rs", SEALED)
            sealed.fields = {"encrypted_content": str(convert(entry, SealedReasoning))}
            yield from self._open(sealed)
            yield from self._close(sealed, "completed")

    def _tool_call(self, call: int, place: int, asked: JsonObject) -> Iterator[JsonObject]:
        is_clients, name = bool(asked.get("by_client")), str(asked.get("tool_name"))
        part = FIRST_CALL + place
        if is_clients:
            item = self._add(call, part, "function_call", "fc", place)
            item.fields = {"call_id": asked.get("tool_call_id"), "name": name}
        else:
            item = self._add(call, part, "mcp_call", "mcp", place)
            server, _, tool = name.rpartition("__")
            item.fields = {"name": tool, "server_label": server or "nplt", "output": None}
            item.fields["error"] = None
        yield from self._open(item)
        item.texts, item.length = [arguments_of(asked)], len(arguments_of(asked))
        kind = "function_call_arguments" if is_clients else "mcp_call_arguments"
        yield self._of_item(
            item,
            f"response.{kind}.delta",
            number_of_text(call, part, item.length),
            delta=item.text,
        )
        yield self._of_item(
            item,
            f"response.{kind}.done",
            number_of_closing(call, part),
            arguments=item.text,
            **({"name": name} if is_clients else {}),
        )
        if is_clients:
            yield from self._close(item, "completed")

    def _results(self, entry: JsonObject) -> Iterator[JsonObject]:
        """Closes the calls of the server's tools."""
        call, results = entry.get("call"), entry.get("tool_calls")
        for place, result in enumerate(results if isinstance(results, list) else ()):
            item = self._item(call if isinstance(call, int) else 0, FIRST_CALL + place)
            if item is None or item.kind != "mcp_call" or not isinstance(result, dict):
                continue
            is_good = result.get("status") == "success"
            item.fields["output" if is_good else "error"] = result.get("result")
            item.part = FIRST_RESULT + place  # the number of its end is after all the calls
            yield from self._close(item, "completed" if is_good else "failed")

    # Items

    def _item(self, call: int, part: int) -> _Item | None:
        found = (each for each in reversed(self._items) if (each.call, each.part) == (call, part))
        return next(found, None)

    def _add(self, call: int, part: int, kind: Any, prefix: str, place: int | None = None) -> _Item:
        item_id = self._id.item(prefix, call, place)
        item = _Item(item_id=item_id, kind=kind, call=call, part=part, texts=[])
        self._items.append(item)
        return item

    def _open(self, item: _Item) -> Iterator[JsonObject]:
        yield _event(
            "response.output_item.added",
            number_of_opening(item.call, item.part),
            output_index=self._items.index(item),
            item=item.as_json(is_new=True),
        )
        number = number_of_opening(item.call, item.part, 1)
        if item.part == SEALED:
            return
        if item.kind == "reasoning":
            part: JsonObject = {"type": "summary_text", "text": ""}
            yield self._of_item(item, "response.reasoning_summary_part.added", number, part=part)
        elif item.kind == "message":
            empty = output_text("")
            yield self._of_item(item, "response.content_part.added", number, part=empty)

    def _close_reasoning(self, call: int, status: str = "completed") -> Iterator[JsonObject]:
        item = self._item(call, REASONING)
        if item is not None and item.is_open:
            yield from self._close(item, status)

    def _close(self, item: _Item, status: str) -> Iterator[JsonObject]:
        item.status = status
        if not item.is_open:
            return
        item.is_open = False
        numbers = [number_of_closing(item.call, item.part, step) for step in range(4)]
        text = item.text
        if item.kind == "reasoning" and item.part != SEALED:
            name, part = "reasoning_summary_text", {"type": "summary_text", "text": text}
            yield self._of_item(item, f"response.{name}.done", numbers[0], text=text)
            name = "response.reasoning_summary_part.done"
            yield self._of_item(item, name, numbers[1], part=part)
        elif item.kind == "message":
            name = "response.output_text.done"
            yield self._of_item(item, name, numbers[0], text=text, logprobs=[])
            whole = output_text(text)
            yield self._of_item(item, "response.content_part.done", numbers[1], part=whole)
        yield _event(
            "response.output_item.done",
            numbers[2],
            output_index=self._items.index(item),
            item=item.as_json(),
        )

    def _of_item(self, item: _Item, event: str, number: int, **fields: Any) -> JsonObject:
        place: JsonObject = {"item_id": item.item_id, "output_index": self._items.index(item)}
        if item.kind == "reasoning":
            place["summary_index"] = 0
        elif item.kind == "message":
            place["content_index"] = 0
        return _event(event, number, **place, **fields)

    # The response

    @property
    def status(self) -> Status:
        end = self._finished
        if end is None:
            return "queued" if self.is_queued else "in_progress"
        if end.state == "failed":
            return "failed"
        if end.state == "interrupted":
            is_cancelled = (end.error or {}).get("message") == "cancelled"
            return "cancelled" if is_cancelled else "incomplete"
        return "incomplete" if end.stop_reason in _INCOMPLETE else "completed"

    def response(self, *, status: Status | None = None, is_new: bool = False) -> JsonObject:
        status = status or self.status
        options = self._prompt.get("options")
        options = options if isinstance(options, dict) else {}
        ended = self._finished if not is_new else None
        reason: JsonValue = None
        if ended is not None and status == "incomplete":
            reason = {"reason": _INCOMPLETE.get(ended.stop_reason or "", "interrupted")}
        error: JsonValue = None
        if ended is not None and status == "failed":
            fault = ended.error or {}
            error = {"code": fault.get("code"), "message": fault.get("message")}
        return {
            "id": str(self._id),
            "object": "response",
            "created_at": _seconds(self._prompt.get("timestamp")) or 0,
            "completed_at": self._ended_at if status == "completed" else None,
            "status": status,
            "background": False,
            "conversation": {"id": conversation_id(self._id.session_id)},
            "error": error,
            "incomplete_details": reason,
            "instructions": None,
            "max_output_tokens": options.get("output_tokens"),
            "max_tool_calls": None,
            "metadata": self._prompt.get("metadata") or {},
            "model": self._model or self._prompt.get("model") or self._request.get("model") or "",
            "output": [] if is_new else [item.as_json() for item in self._items],
            "parallel_tool_calls": options.get("parallel_tool_calls", True),
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "previous_response_id": None,
            "prompt_cache_key": None,
            "reasoning": {"effort": options.get("effort"), "summary": None},
            "safety_identifier": None,
            "service_tier": "default",
            "store": True,
            "temperature": options.get("temperature", 1.0),
            "text": {"format": _format(options.get("schema"))},
            "tool_choice": _tool_choice(options.get("tool_choice")),
            "tools": _tools(self._prompt.get("tools")),
            "top_logprobs": 0,
            "top_p": options.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": None if ended is None else usage_as_json(self._usage),
            "user": None,
            **{name: value for name, value in self._request.items() if name != "model"},
        }


def _event(event: str, number: int, **fields: Any) -> JsonObject:
    return {"type": event, "sequence_number": number, **fields}


def usage_as_json(usage: Mapping[str, int]) -> JsonObject:
    sent, made = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    return {
        "input_tokens": sent,
        "input_tokens_details": {"cached_tokens": usage.get("cached_tokens", 0)},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": sent + made,
    }


def _format(schema: JsonValue) -> JsonObject:
    if not isinstance(schema, dict):
        return {"type": "text"}
    return {
        "type": "json_schema",
        "name": "answer",
        "description": None,
        "schema": schema,
        "strict": True,
    }


def _tool_choice(choice: JsonValue) -> JsonValue:
    if isinstance(choice, dict):
        return {"type": "function", "name": choice.get("name")}
    return choice or "auto"


def _tools(tools: JsonValue) -> list[JsonValue]:
    return [
        {
            "type": "function",
            "name": tool.get("name"),
            "description": tool.get("description") or None,
            "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
            "strict": False,
        }
        for tool in (tools if isinstance(tools, list) else ())
        if isinstance(tool, dict)
    ]


def _seconds(timestamp: JsonValue) -> int | None:
    if not isinstance(timestamp, str):
        return None
    return int(datetime.fromisoformat(timestamp).timestamp())


def after_number(event: JsonObject, last: int) -> JsonObject | None:
    """Returns the part of an event that is new to a client which has all events up to the number
    `last`, or `None`. A delta may be only partly new, because the deltas of a stream that is read
    again may end elsewhere."""
    number = event["sequence_number"]
    assert isinstance(number, int)
    if number <= last:
        return None
    delta = event.get("delta")
    if isinstance(delta, str) and number - last < len(delta):
        return {**event, "delta": delta[len(delta) - (number - last) :]}
    return event


# The messages of a conversation as items


def items_of_turn(messages: Sequence[JsonObject], session_id: str) -> list[JsonObject]:
    """The items of one turn: its prompt, then its outputs. The ids are those that they have in the
    response: the outputs of a turn are those of its calls, in their order."""
    first = messages[0]
    seq, turn_id = first.get("seq"), first.get("turn_id")
    turn = ResponseId(
        prompt_seq=seq if isinstance(seq, int) else 0,
        turn_id=turn_id if isinstance(turn_id, str) else str(first.get("id")),
        session_id=session_id,
    )
    items: list[JsonObject] = []
    call = 0
    for message in messages:
        if message.get("role") == "user":
            items += items_of_prompt(message, turn)
        else:
            items += _items_of_output(message, turn, call)
            call += 1
    return items


def items_of_prompt(prompt: JsonObject, turn: ResponseId) -> list[JsonObject]:
    """The prompt as a message of the user; its files by their ids."""
    content: list[JsonValue] = []
    if text := prompt.get("content"):
        content.append({"type": "input_text", "text": text})
    files = prompt.get("attachments")
    for file in files if isinstance(files, list) else ():
        named = file if isinstance(file, dict) else {"file_id": file}
        content.append({"type": "input_file", **named})
    return [_message(turn.item("msg"), "user", content)] if content else []


def _items_of_output(output: JsonObject, turn: ResponseId, call: int) -> list[JsonObject]:
    items: list[JsonObject] = []
    if text := output.get("content"):
        is_whole = output.get("state") == "completed"
        message = _message(turn.item("msg", call), "assistant", [output_text(str(text))])
        items.append({**message, "status": "completed" if is_whole else "incomplete"})
    calls = output.get("tool_calls")
    for place, asked in enumerate(calls if isinstance(calls, list) else ()):
        if not isinstance(asked, dict):
            continue
        call_id: JsonObject = {"call_id": asked.get("tool_call_id"), "status": "completed"}
        items.append(
            {
                "id": turn.item("fc", call, place),
                "type": "function_call",
                "name": asked.get("tool_name"),
                "arguments": orjson.dumps(asked.get("arguments") or {}).decode(),
                **call_id,
            }
        )
        if asked.get("status") != "pending":
            items.append(
                {
                    "id": turn.item("fco", call, place),
                    "type": "function_call_output",
                    "output": asked.get("result") or "",
                    **call_id,
                }
            )
    return items


def _message(item_id: str, role: str, content: list[JsonValue]) -> JsonObject:
    shown: JsonObject = {"id": item_id, "type": "message", "role": role}
    return {**shown, "status": "completed", "content": content}


def page_of(items: Sequence[JsonObject], *, has_more: bool = False) -> JsonObject:
    return {
        "object": "list",
        "data": [*items],
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
