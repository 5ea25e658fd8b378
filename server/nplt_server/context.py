"""What a model is shown: history projected into context messages. Pure.

The middle one of three stages (history → context → provider): no vendor's
shape here, and nothing is ever written back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.facts.entries import Entry, ModelInputEntry, ModelOutputEntry, ToolResultsEntry
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMessage:
    instruction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputMessage:
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutputMessage:
    content: str
    tool_calls: tuple[ToolCallRequest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultsMessage:
    results: tuple[ToolCallResult, ...]


ContextMessage: TypeAlias = (
    SystemMessage | ModelInputMessage | ModelOutputMessage | ToolResultsMessage
)


def render_context(history: ConversationHistory, turn_id: str) -> tuple[ContextMessage, ...]:
    system = (
        [SystemMessage(instruction=history.system_instruction)]
        if history.system_instruction
        else []
    )
    return (*system, *_messages(history.context_entries(turn_id)))


def _messages(entries: Iterable[Entry]) -> Iterable[ContextMessage]:
    for entry in entries:
        match entry:
            case ModelInputEntry():
                yield ModelInputMessage(content=entry.content)
            case ModelOutputEntry():
                yield ModelOutputMessage(content=entry.content, tool_calls=entry.tool_calls)
            case ToolResultsEntry():
                yield ToolResultsMessage(results=entry.results)
            case _:  # facts about the conversation are not for the model
                pass
