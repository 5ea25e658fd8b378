"""The messages of a conversation as items of the Responses API."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from nplt_gateway.response_builder import output_text
from nplt_gateway.response_ids import ResponseId
from nplt_protocol import JsonObject, JsonValue


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
