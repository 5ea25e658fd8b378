"""Erasing what an entry said, so that only the fact remains that it was there.

A tombstone has its entry's number, id, kind, time, turn and structure: calls
keep their ids and names and stay paired with their results, turns begin and end
where they did, every view works. The words are gone: texts, arguments, results,
file names, remarks. The store that holds the entry sees to it that the bytes go
too. Facts in which nobody said anything have nothing to erase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import (
    AttachmentEntry,
    CheckpointEntry,
    CompactionEntry,
    DebugEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    NotebookEntry,
    QuarantineEntry,
    RenamedEntry,
    RollbackEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
    UnknownEntry,
    WidgetEntry,
)
from nplt_storage.facts.json_values import JsonObject, JsonValue
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult

REDACTED: Final = "[redacted]"
_QUOTED_BY_CHECKPOINTS: Final = ("name", "preview", "system_instruction", "notebook", "content")


def redacted(entry: Entry, at: datetime) -> Entry:
    """`BadEntry` if there is nothing to erase, or nobody knows where it would be."""
    if entry.redacted_at is not None:
        return entry
    return replace(_without_words(entry), metadata={}, redacted_at=at)


def _without_words(entry: Entry) -> Entry:
    match entry:
        case ModelInputEntry():
            # `message_id` stays: a prompt that is sent again must not run again.
            return replace(entry, content=REDACTED, attachments=(), options={}, sections=None)
        case ModelOutputEntry():
            return _output_without_words(entry)
        case ToolResultsEntry():
            return replace(entry, results=tuple(map(_result_without_words, entry.results)))
        case RollbackEntry() if entry.preview:
            return replace(entry, preview=REDACTED)
        case EpochEntry() if entry.screen:
            return replace(entry, screen=REDACTED)
        case WidgetEntry():
            return replace(entry, state={})
        case RenamedEntry():
            return replace(entry, name=REDACTED)
        case AttachmentEntry():
            return replace(entry, filename=REDACTED, sha256="", content_type=None)
        case CheckpointEntry():
            return replace(entry, state=_state_without_words(entry.state))
        case (
            FaultEntry()
            | SystemInstructionEntry()
            | NotebookEntry()
            | CompactionEntry()
            | QuarantineEntry()
            | DebugEntry()
        ):
            return replace(entry, content=REDACTED)
        case UnknownEntry():
            raise BadEntry(f"this version can't erase entries of kind {entry.kind!r}")
        case _:
            raise BadEntry(f"nothing to erase: nobody said anything in a {entry.kind} entry")


def _output_without_words(entry: ModelOutputEntry) -> ModelOutputEntry:
    return replace(
        entry,
        content=REDACTED if entry.content else "",
        reasoning="",
        tool_calls=tuple(map(_request_without_words, entry.tool_calls)),
        error=None,
        sections=None,
        parts=(),
    )


def _request_without_words(call: ToolCallRequest) -> ToolCallRequest:
    return replace(call, raw_arguments="{}", arguments={}, parse_error=None, parse_warning=None)


def _result_without_words(result: ToolCallResult) -> ToolCallResult:
    return replace(result, result=REDACTED, blob=None, sections=None)


def _state_without_words(state: Mapping[str, JsonValue]) -> JsonObject:
    """A checkpoint must go on counting; only what it quotes goes."""
    cleared: JsonObject = {}
    for name, value in state.items():
        if isinstance(value, dict) and name == "widgets":
            cleared[name] = {widget: {} for widget in value}
        elif isinstance(value, dict):
            cleared[name] = _state_without_words(value)
        else:
            quoted = isinstance(value, str) and value and name in _QUOTED_BY_CHECKPOINTS
            cleared[name] = REDACTED if quoted else value
    return cleared
