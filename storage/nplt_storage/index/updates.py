"""The updates that the index receives, and the stamps of the files it has read.

A file with the same inode, size and time need not be read again. One that has only
grown is read from where its closing line began; any other is read whole. A replaced
file has another inode even if its size is the same: a redacted text must not stay in
the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

from msgspec import Struct, field

from nplt_storage.entries import Entry
from nplt_storage.file_system import FoundFile
from nplt_storage.rows import ConversationRow


class FileStamp(Struct, frozen=True, kw_only=True):
    """A file as of the time when the index had read it up to `head_seq`. A stamp may cover only a
    part of the file, with that part's size; the rest is then read like later appends."""

    file: FoundFile
    end_offset: int
    """The offset of the closing line; an append changes nothing before it."""
    head_seq: int
    synced: bool = True
    """Whether that head was durable when it was noted; only then is a lower head damage."""


class Freshness(Struct, frozen=True, kw_only=True):
    """Conversations whose files have changed, by the action needed."""

    grown: list[str] = field(default_factory=list)
    """These files are read from `end_offset` on. If the lines there do not continue the known ones,
    another program has changed the file, and the whole file is read."""
    unknown: list[str] = field(default_factory=list)
    """The whole file is read, because it is new or was replaced."""
    gone: list[str]
    """The rows are removed, because the files do not exist any more."""


def compare_files(found: Mapping[str, FoundFile], known: Mapping[str, FileStamp]) -> Freshness:
    """Compares files with their stamps, both by session id."""
    freshness = Freshness(gone=[session_id for session_id in known if session_id not in found])
    for session_id, now in found.items():
        before = known[session_id].file if session_id in known else None
        if before == now:
            continue
        if before is None or (before.name, before.inode) != (now.name, now.inode):
            freshness.unknown.append(session_id)
        # The same size at another time is a file that was written to, but not by appending:
        # unless the time was not known (see `part_of`), it is read again.
        elif now.size > before.size or (now.size == before.size and not before.mtime_ns):
            freshness.grown.append(session_id)
        else:
            freshness.unknown.append(session_id)
    return freshness


class EntriesAdded(Struct, frozen=True, kw_only=True):
    row: ConversationRow
    """The row after these entries."""
    stamp: FileStamp
    entries: Sequence[Entry] = ()
    """Entries of any kind; the index uses those it needs."""
    replaces_all: bool = False
    """Whether these are the first entries, which replace everything known before."""


class ConversationGone(Struct, frozen=True, kw_only=True):
    session_id: str


class ConversationAccessed(Struct, frozen=True, kw_only=True):
    session_id: str
    at: datetime


class MarkMoved(Struct, frozen=True, kw_only=True):
    """The user of the conversation has seen more of it, or less."""

    session_id: str


class EntryRedacted(Struct, frozen=True, kw_only=True):
    """The content of entry `seq` was erased in the file and in the row."""

    row: ConversationRow
    stamp: FileStamp
    seq: int


class PromptsFound(Struct, frozen=True, kw_only=True):
    """All prompts of a file that have a message id, by number."""

    session_id: str
    prompts: Mapping[str, int]
    through: int
    """The last entry that was examined."""


IndexUpdate: TypeAlias = (
    EntriesAdded
    | ConversationGone
    | ConversationAccessed
    | MarkMoved
    | EntryRedacted
    | PromptsFound
)

Surveyed: TypeAlias = EntriesAdded | ConversationGone | None
"""`None` if there is nothing new yet; queries can run meanwhile."""
Survey: TypeAlias = Callable[[Mapping[str, FileStamp]], Iterator[Surveyed]]
"""Yields the changes since the given stamps: see `compare_files`. It reads files, so it runs in the
index's thread. A conversation may be written to meanwhile, because the writer's update follows."""
