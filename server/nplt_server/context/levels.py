"""An entry as a message, at a level of detail.

Summary and gist were made when the entry was written; where there is none, what
was said is short and shown whole. The live screen belongs to the live level, and
there only while no newer one is in force. Of the calls in an output the long
arguments are shortened with it: they are said by the model, like the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias, assert_never

from nplt_server.context.attachments import Shelf, attachments_of
from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    ToolResultsMessage,
)
from nplt_server.context.shortening import shorten_call
from nplt_storage.facts.entries import ModelInputEntry, ModelOutputEntry, ToolResultsEntry
from nplt_storage.facts.sections import LevelOfDetail, LevelOfDetailSections
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult

ContextEntry: TypeAlias = ModelInputEntry | ModelOutputEntry | ToolResultsEntry

_NO_SHELF: Final = Shelf()
_ARGUMENT_CHARACTERS_MAX: Final[dict[LevelOfDetail, int]] = {"summary": 1_000, "gist": 200}


def message_of(
    entry: ContextEntry,
    level: LevelOfDetail,
    *,
    with_screen: bool = True,
    takes_images: bool = False,
    shelf: Shelf = _NO_SHELF,
) -> ContextMessage:
    """With the screen, and what only its own provider understands, goes what was said
    in the running epoch: there all that was sent before it is still the same."""
    is_live = level == "live"
    is_as_it_was = with_screen and is_live
    screen = screen_in(entry) if is_as_it_was else None
    match entry:
        case ModelInputEntry():
            message = _prompt(entry, level, screen=screen)
            attached = attachments_of(
                entry.seq, entry.attachments, shelf, is_live=is_live, takes_images=takes_images
            )
            return replace(message, attachments=attached) if attached else message
        case ModelOutputEntry():
            return ModelOutputMessage(
                seq=entry.seq,
                level=level,
                timestamp=entry.timestamp,
                metadata=entry.metadata,
                content=_said(entry.content, entry.sections, level),
                tool_calls=tuple(_call_at(call, level) for call in entry.tool_calls),
                invocation=entry.invocation,
                usage=entry.usage,
                reasoning=entry.reasoning if entry.parts and is_as_it_was else "",
                parts=entry.parts if is_as_it_was else (),
            )
        case ToolResultsEntry():
            return ToolResultsMessage(
                seq=entry.seq,
                level=level,
                timestamp=entry.timestamp,
                metadata=entry.metadata,
                results=tuple(_result_at(result, level) for result in entry.results),
                live_screen=screen,
            )
    assert_never(entry)


def _prompt(
    entry: ModelInputEntry, level: LevelOfDetail, *, screen: str | None
) -> ModelInputMessage:
    return ModelInputMessage(
        seq=entry.seq,
        level=level,
        timestamp=entry.timestamp,
        metadata=entry.metadata,
        content=_said(entry.content, entry.sections, level),
        live_screen=screen,
    )


def screen_in(entry: ContextEntry) -> str | None:
    """The live screen written into it."""
    if isinstance(entry, ToolResultsEntry):
        all_sections = [result.sections for result in reversed(entry.results)]
    else:
        all_sections = [entry.sections]
    for sections in all_sections:
        if sections is not None:
            screen = sections.without_live_screen()[1]
            if screen is not None:
                return screen
    return None


def _said(text: str, sections: LevelOfDetailSections | None, level: LevelOfDetail) -> str:
    if sections is None:
        return text
    return sections.without_live_screen()[0].to_plain_text(level) or text


def _call_at(call: ToolCallRequest, level: LevelOfDetail) -> ToolCallRequest:
    return call if level == "live" else shorten_call(call, _ARGUMENT_CHARACTERS_MAX[level])


def _result_at(result: ToolCallResult, level: LevelOfDetail) -> ToolCallResult:
    text = _said(result.result, result.sections, level)
    if result.blob is not None and level == "live":
        more = result.blob.size - len(result.result.encode())
        text += f"\n[… {more:,} bytes more: read_result reads on …]"
    return result if text is result.result else replace(result, result=text)
