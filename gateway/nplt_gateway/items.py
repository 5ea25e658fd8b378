"""The entries of a conversation as items of the Responses API."""

from __future__ import annotations

from nplt_gateway.recorded import arguments_of
from nplt_gateway.response_builder import output_text
from nplt_gateway.response_ids import ResponseId
from nplt_protocol import JsonObject, JsonValue


def items_of_prompt(prompt: JsonObject, turn: ResponseId) -> list[JsonObject]:
    """The prompt as a message of the user; its files by their ids."""
    if not prompt.get("content") and not prompt.get("attachments"):
        return []
    content: list[JsonValue] = []
    if text := prompt.get("content"):
        content.append({"type": "input_text", "text": text})
    files = prompt.get("attachments")
    for file_id in files if isinstance(files, list) else ():
        content.append({"type": "input_file", "file_id": file_id})
    return [
        {
            "id": turn.item("msg"),
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": content,
        }
    ]


def items_of_output(output: JsonObject, turn: ResponseId) -> list[JsonObject]:
    """The same items as in the response."""
    call = output.get("call")
    call = call if isinstance(call, int) else 0
    status = "completed" if output.get("state") == "completed" else "incomplete"
    items: list[JsonObject] = []
    if reasoning := output.get("reasoning"):
        summary: list[JsonValue] = [{"type": "summary_text", "text": reasoning}]
        items.append({"id": turn.item("rs", call), "type": "reasoning", "summary": summary})
    if text := output.get("content"):
        content: list[JsonValue] = [output_text(str(text))]
        items.append(
            {
                "id": turn.item("msg", call),
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": content,
            }
        )
    calls = output.get("tool_calls")
    for place, asked in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(asked, dict):
            items.append(
                {
                    "id": turn.item("fc", call, place),
                    "type": "function_call",
                    "call_id": asked.get("tool_call_id"),
                    "name": asked.get("tool_name"),
                    "arguments": arguments_of(asked),
                    "status": "completed",
                }
            )
    return items


def items_of_results(results: JsonObject, turn: ResponseId) -> list[JsonObject]:
    call, listed = results.get("call"), results.get("tool_calls")
    return [
        {
            "id": turn.item("fco", call if isinstance(call, int) else 0, place),
            "type": "function_call_output",
            "call_id": result.get("tool_call_id"),
            "output": result.get("result") or "",
            "status": "completed",
        }
        for place, result in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(result, dict)
    ]
