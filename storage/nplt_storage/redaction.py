"""Erases the words of one entry, also where other entries repeat them.

A tombstone replaces the entry. A rollback keeps the last words before it, which may be
the erased ones. Live screens quote notebooks and widgets, so all later ones are erased
with them. A blob is removed with the last entry that refers to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import orjson
from msgspec.structs import replace

from nplt_storage.entries import (
    LIVE_SCREEN,
    AttachmentEntry,
    CheckpointEntry,
    CompactionEntry,
    DebugEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    LaterPromptEntry,
    LevelOfDetailSections,
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
from nplt_storage.errors import BadEntry
from nplt_storage.json_values import JsonObject, JsonValue
from nplt_storage.messages import content_of
from nplt_storage.rows import preview_of

# ------------------------------------------------------------------------------
# Tombstones
#
# A tombstone has its entry's number, id, kind, time, turn and structure: calls keep their
# ids and names and stay paired with their results, and every view works. Texts,
# arguments, results, file names and metadata are removed. Entries without words can't be
# redacted.

REDACTED: Final = "[redacted]"
_QUOTED_BY_CHECKPOINTS: Final = ("name", "preview", "system_instruction", "notebook", "content")


def redacted(entry: Entry, at: datetime) -> Entry:
    """The tombstone of an entry. Raises `BadEntry` if there is nothing to erase, or its place is
    unknown."""
    if entry.redacted_at is not None:
        return entry
    if isinstance(entry, LaterPromptEntry):
        bare = replace(entry, content=REDACTED, attachments=(), options={}, body_sha256=None)
        return replace(bare, metadata={}, redacted_at=at)
    return replace(_without_words(entry), metadata={}, redacted_at=at)


def _without_words(entry: Entry) -> Entry:
    match entry:
        case ModelInputEntry():
            # `message_id` stays: a prompt that is sent again must not run again.
            return replace(
                entry,
                content=REDACTED if entry.content else "",
                attachments=(),
                options={},
                sections=None,
                tools=(),
                body_sha256=None,
            )
        case ModelOutputEntry():
            calls = (
                replace(
                    call, raw_arguments="{}", arguments={}, parse_error=None, parse_warning=None
                )
                for call in entry.tool_calls
            )
            return replace(
                entry,
                content=REDACTED if entry.content else "",
                reasoning="",
                tool_calls=tuple(calls),
                error=None,
                sections=None,
                parts=(),
                rejected=REDACTED if entry.rejected else None,
            )
        case ToolResultsEntry():
            results = (
                replace(result, result=REDACTED, blob=None, attachments=(), sections=None)
                for result in entry.results
            )
            return replace(entry, results=tuple(results), execute_error=None)
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
            raise BadEntry(f"there are no words to erase in an entry of kind {entry.kind!r}")


def _state_without_words(state: Mapping[str, JsonValue]) -> JsonObject:
    """The state of a checkpoint without its quotations; the counts stay."""
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


def texts_of(entry: Entry) -> tuple[str, ...]:
    """The texts of an entry that its tombstone is without; the structure is left out."""
    match entry:
        case ModelOutputEntry():
            arguments = (call.raw_arguments for call in entry.tool_calls)
            return (entry.content, entry.reasoning, *arguments)
        case ToolResultsEntry():
            return tuple(result.result for result in entry.results)
        case RenamedEntry():
            return (entry.name,)
        case AttachmentEntry():
            return (entry.filename,)
        case WidgetEntry():
            return (orjson.dumps(entry.state, default=dict).decode(),)
        case _:
            return (content_of(entry) or "",)


def without_words_of(erased: Entry, tombstone: Entry, entry: Entry) -> Entry:
    """`entry` after `tombstone` has replaced `erased`."""
    if entry.seq == erased.seq:
        return tombstone
    if isinstance(erased, NotebookEntry | WidgetEntry) and entry.seq > erased.seq:
        return _without_screen(entry)
    repeated = preview_of(content_of(erased) or "")
    if isinstance(entry, RollbackEntry) and repeated and entry.preview == repeated:
        return replace(entry, preview=preview_of(content_of(tombstone) or ""))
    return entry


def _without_screen(entry: Entry) -> Entry:
    match entry:
        case EpochEntry() if entry.screen:
            return replace(entry, screen=REDACTED)
        case ModelInputEntry():
            return replace(entry, sections=_sections_without_screen(entry.sections))
        case ToolResultsEntry():
            results = (
                replace(result, sections=_sections_without_screen(result.sections))
                for result in entry.results
            )
            return replace(entry, results=tuple(results))
        case _:
            return entry


def _sections_without_screen(
    sections: LevelOfDetailSections | None,
) -> LevelOfDetailSections | None:
    """The sections with a placeholder for the live screen. It differs from what widgets show, so
    the next screen is written."""
    if sections is None or sections.without_live_screen()[1] is None:
        return sections
    return sections.with_live_section(LIVE_SCREEN, REDACTED)


def blobs_named_by(entries: Iterable[Entry]) -> set[str]:
    return {
        result.blob.blob_id
        for entry in entries
        if isinstance(entry, ToolResultsEntry)
        for result in entry.results
        if result.blob is not None
    }
