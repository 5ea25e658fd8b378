"""What only its own model understands of an answer, if it may go back as it came.

A signature covers what stood before it. So where something before an opaque part is
shown differently, or the parts are not those of this answer, none of them is sent.
Thoughts that led to nothing any more, at the very end, are not sent either.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import orjson

from nplt_server.context import ModelOutputMessage
from nplt_server.providers.compiling.texts import is_blank
from nplt_storage.facts.entries import OutputPart


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingParts:
    text: str
    reasoning: str
    parts: tuple[OutputPart, ...]


def fitting_parts(message: ModelOutputMessage, changed: Collection[int]) -> FittingParts | None:
    """`changed`: the places of calls that are shown differently."""
    if not _cover(message):
        return None
    kept: list[OutputPart] = []
    texts: list[str] = []
    said = 0
    is_as_it_came = True
    for part in message.parts:
        match part.kind:
            case "text":
                text = message.content[said : said + part.size]
                said += part.size
                if is_blank(text):
                    is_as_it_came = is_as_it_came and not text
                    continue
                texts.append(text)
            case "call":
                is_as_it_came = is_as_it_came and part.size not in changed
            case "reasoning" | "opaque":
                if not is_as_it_came:
                    return None
        kept.append(part)
    del kept[_end_of_thought(kept) :]
    thought = sum(part.size for part in kept if part.kind == "reasoning")
    return FittingParts(
        text="".join(texts), reasoning=message.reasoning[:thought], parts=tuple(kept)
    )


def _cover(message: ModelOutputMessage) -> bool:
    """Whether they are all of this answer, each piece once."""
    sizes = {"text": 0, "reasoning": 0}
    calls: list[int] = []
    for part in message.parts:
        match part.kind:
            case "text" | "reasoning":
                if part.size < 0:
                    return False
                sizes[part.kind] += part.size
            case "call":
                calls.append(part.size)
            case "opaque":
                if not _is_writable(part):
                    return False
    return (
        sizes["text"] == len(message.content)
        and sizes["reasoning"] == len(message.reasoning)
        and sorted(calls) == list(range(len(message.tool_calls)))
    )


def _is_writable(part: OutputPart) -> bool:
    try:
        return part.data is not None and bool(orjson.dumps(part.data))
    except TypeError:
        return False


def _end_of_thought(parts: Sequence[OutputPart]) -> int:
    """Where the thoughts begin behind which nothing is said; the end, if there are none."""
    end = len(parts)
    for place in range(len(parts) - 1, -1, -1):
        match parts[place].kind:
            case "reasoning":
                end = place
            case "text" | "call":
                break
    return end
