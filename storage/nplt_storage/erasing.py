"""Erasing one entry's words from a whole record, also where another entry repeats them.

A tombstone takes the entry's place (`facts.redaction`). A rollback remembers
the last words that stand after it, and those may be the erased ones. A blob
goes with the last entry that names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nplt_storage.conversation.rows import preview_of
from nplt_storage.conversation.views import content_of
from nplt_storage.facts.entries import Entry, RollbackEntry, ToolResultsEntry


def without_words_of(erased: Entry, tombstone: Entry, entry: Entry) -> Entry:
    """`entry` as it stands once `tombstone` has taken the place of `erased`."""
    if entry.seq == erased.seq:
        return tombstone
    repeated = preview_of(content_of(erased) or "")
    if isinstance(entry, RollbackEntry) and repeated and entry.preview == repeated:
        return replace(entry, preview=preview_of(content_of(tombstone) or ""))
    return entry


def blobs_named_by(entries: Iterable[Entry]) -> set[str]:
    return {
        result.blob.blob_id
        for entry in entries
        if isinstance(entry, ToolResultsEntry)
        for result in entry.results
        if result.blob is not None
    }
