"""Erasing one entry's words from a whole record, also where another entry repeats them.

A tombstone takes the entry's place (`facts.redaction`). A rollback remembers
the last words that stand after it, and those may be the erased ones. What a
notebook or another widget held is quoted by live screens: those written since go,
all of them, for after a rollback any may have shown it again; models are shown a
new one. A blob goes with the last entry that names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nplt_storage.conversation.rows import preview_of
from nplt_storage.conversation.views import content_of
from nplt_storage.facts.entries import (
    Entry,
    EpochEntry,
    ModelInputEntry,
    NotebookEntry,
    RollbackEntry,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.facts.redaction import REDACTED
from nplt_storage.facts.sections import LIVE_SCREEN, LevelOfDetailSections


def without_words_of(erased: Entry, tombstone: Entry, entry: Entry) -> Entry:
    """`entry` as it stands once `tombstone` has taken the place of `erased`."""
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
    """In its place there is still one, which is not what widgets show: so the next is written."""
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
