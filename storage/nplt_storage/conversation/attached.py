"""The files that go with a prompt, as a message tells of them.

A prompt knows their ids; what they are called was said when they came, mostly right
before it, in an entry of its own. One that came long before is told by its id alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from nplt_storage.facts.entries import AttachmentEntry, Entry, ModelInputEntry
from nplt_storage.facts.json_values import JsonObject, JsonValue

_LOOKED_AT_MAX: Final = 64
"""Entries before the prompt."""


def attachments_of(prompt: ModelInputEntry, newest_first: Iterator[Entry]) -> list[JsonValue]:
    """`newest_first`: what came before the prompt, whether it stands or not."""
    due = set(prompt.attachments)
    found: dict[str, JsonObject] = {}
    for entry in islice(newest_first, _LOOKED_AT_MAX):
        if isinstance(entry, AttachmentEntry) and entry.file_id in due:
            found[entry.file_id] = _described(entry)
            due.remove(entry.file_id)
        if not due:
            break
    return [found.get(file_id, {"file_id": file_id}) for file_id in prompt.attachments]


def _described(entry: AttachmentEntry) -> JsonObject:
    told: JsonObject = {
        "file_id": entry.file_id,
        "filename": entry.filename,
        "size": entry.size,
    }
    if entry.content_type is not None:
        told["content_type"] = entry.content_type
    return told
