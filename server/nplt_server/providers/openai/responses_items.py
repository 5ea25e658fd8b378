"""A model's answer as items of `POST /responses`, as they came where that is known.

The API's rules about them: reasoning is followed by what it led to; an item with an id
does not come without the reasoning that led to it; no id comes twice. What can't be given
back by these rules is given back without its id, or, reasoning, not at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import assert_never

from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_server.providers.compiling import (
    AssistantStep,
    CompiledCall,
    OpaqueBlock,
    ReasoningBlock,
    TextBlock,
    blocks_of,
)

_ID = re.compile(r"(?:rs|fc|msg)[A-Za-z0-9_-]{1,61}")
_PREFIXES = {"reasoning": "rs", "function_call": "fc", "message": "msg"}


class AnswerItems:
    """Of one request, answer by answer."""

    def __init__(self) -> None:
        self._given_ids: set[str] = set()

    def of(self, step: AssistantStep) -> list[JsonObject]:
        items: list[JsonObject] = []
        ids_may_return = True
        for block in blocks_of(step):
            match block:
                case TextBlock():
                    if block.text.strip():
                        items.append(_message(block.text))
                case CompiledCall():
                    items.append(_call(block))
                case ReasoningBlock():
                    pass  # for people; the model's own form of it is opaque
                case OpaqueBlock():
                    if ids_may_return:
                        ids_may_return = self._give_back(block.data, items)
                case _:
                    assert_never(block)
        return self._without_loose_reasoning(items)

    def _give_back(self, data: Mapping[str, JsonValue], items: list[JsonObject]) -> bool:
        """Whether ids of later items still may be given."""
        kind, item_id = data.get("type"), data.get("id")
        if not isinstance(kind, str) or not isinstance(item_id, str):
            return True
        fits = (
            _ID.fullmatch(item_id) is not None
            and item_id.startswith(_PREFIXES.get(kind, " "))
            and item_id not in self._given_ids
        )
        if kind == "reasoning":
            fits = fits and isinstance(data.get("encrypted_content"), str)
            if fits:
                summary = data.get("summary")
                items.append({**data, "summary": summary if isinstance(summary, list) else []})
                self._given_ids.add(item_id)
            return fits
        last = next((item for item in reversed(items) if item["type"] == kind), None)
        if fits and last is not None and "id" not in last:
            last["id"] = item_id
            self._given_ids.add(item_id)
            if kind == "message" and isinstance(data.get("phase"), str):
                last["phase"] = data["phase"]
        return True

    def _without_loose_reasoning(self, items: list[JsonObject]) -> list[JsonObject]:
        while items and items[-1]["type"] == "reasoning":
            items.pop()
        return items


def _message(text: str) -> JsonObject:
    content: JsonObject = {"type": "output_text", "text": text}
    return {"type": "message", "role": "assistant", "content": [content]}


def _call(call: CompiledCall) -> JsonObject:
    return {
        "type": "function_call",
        "call_id": call.call_id,
        "name": call.tool_name,
        "arguments": call.arguments_json,
    }
