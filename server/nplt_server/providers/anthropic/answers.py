"""Steps of a conversation as messages of the API, one for one.

All results of an answer stand at the head of the next user message. Thinking goes back
as it came, with its signature; without one it stays here. An answer never ends with
thinking: the API refuses that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias, assert_never

import orjson

from nplt_server.providers.anthropic.wire import Json
from nplt_server.providers.compiling import (
    AssistantStep,
    CompiledCall,
    CompiledImage,
    CompiledResult,
    OpaqueBlock,
    ReasoningBlock,
    Step,
    TextBlock,
    UserStep,
    blocks_of,
)

Blocks: TypeAlias = list[Json]

THINKING: Final = ("thinking", "redacted_thinking")
_VENDOR_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def contents_of(steps: Sequence[Step]) -> list[Blocks]:
    """The content of each message."""
    ids = _sent_ids(steps)
    return [
        _user_blocks(step, ids) if isinstance(step, UserStep) else _answer_blocks(step, ids)
        for step in steps
    ]


def begins_with_thinking(contents: Sequence[Blocks]) -> bool:
    """Whether the round of tools that is under way does, if one is: a model that thinks
    on a budget is refused where it doesn't."""
    place = len(contents) - 1
    if not _has_results(contents[place]):
        return True
    while place >= 2 and _has_results(contents[place]):
        place -= 2
    return contents[place + 1][0]["type"] in THINKING


def _user_blocks(step: UserStep, ids: Mapping[str, str]) -> Blocks:
    results = [_result(result, ids[result.call_id]) for result in step.results]
    return [
        *results,
        *map(_image, step.images),
        *({"type": "text", "text": text} for text in step.texts),
    ]


def _image(image: CompiledImage) -> Json:
    source = {
        "type": "base64",
        "media_type": image.content_type,
        "data": image.data_base64,
    }
    return {"type": "image", "source": source}


def _result(result: CompiledResult, call_id: str) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": call_id}
    if result.text:
        block["content"] = result.text
        if result.status != "success":
            block["is_error"] = True
    return block


def _answer_blocks(step: AssistantStep, ids: Mapping[str, str]) -> Blocks:
    blocks = list(_answered(step, ids))
    while blocks and blocks[-1]["type"] in THINKING:
        blocks.pop()
    return blocks


def _answered(step: AssistantStep, ids: Mapping[str, str]) -> Iterator[Json]:
    thought = ""
    for block in blocks_of(step):
        match block:
            case TextBlock(text=text):
                if text.strip():
                    yield {"type": "text", "text": text}
            case ReasoningBlock(text=text):
                thought = text
            case OpaqueBlock(data={"signature": str(signature)}):
                yield {"type": "thinking", "thinking": thought, "signature": signature}
                thought = ""
            case OpaqueBlock(data={"redacted_thinking": str(data)}):
                yield {"type": "redacted_thinking", "data": data}
            case OpaqueBlock():
                pass  # said where something ends, or was read by `_sent_ids`
            case CompiledCall():
                yield {
                    "type": "tool_use",
                    "id": ids[block.call_id],
                    "name": block.tool_name,
                    "input": orjson.loads(block.arguments_json),
                }
            case _:
                assert_never(block)


def _sent_ids(steps: Sequence[Step]) -> dict[str, str]:
    """Ours, but where thinking follows a call in the same answer: it knows the vendor's."""
    ids = {
        call.call_id: call.call_id
        for step in steps
        if isinstance(step, AssistantStep)
        for call in step.calls
    }
    taken = set(ids)
    for step in steps:
        if isinstance(step, AssistantStep) and (told := list(_vendor_ids(step))):
            for call, vendor_id in zip(_calls_as_said(step), told, strict=False):
                if vendor_id not in taken and _VENDOR_ID.fullmatch(vendor_id):
                    taken.add(vendor_id)
                    ids[call.call_id] = vendor_id
    return ids


def _calls_as_said(step: AssistantStep) -> Iterator[CompiledCall]:
    return (block for block in blocks_of(step) if isinstance(block, CompiledCall))


def _vendor_ids(step: AssistantStep) -> Iterator[str]:
    for part in step.parts:
        match part.data:
            case {"call_ids": list(told)}:
                yield from (each for each in told if isinstance(each, str))
            case _:
                pass


def _has_results(blocks: Blocks) -> bool:
    return any(block["type"] == "tool_result" for block in blocks)
