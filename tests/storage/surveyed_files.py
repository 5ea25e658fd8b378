"""Conversations as a survey finds them: files in name only, but they grow, are
replaced and go away as files do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import count

from msgspec.structs import replace
from tests.storage.conversations import START

from nplt_storage import ConversationRow
from nplt_storage.entries import Entry, ModelInputEntry
from nplt_storage.file_system import FoundFile
from nplt_storage.index.updates import ConversationGone, EntriesAdded, FileStamp, compare_files
from nplt_storage.rows import fold_all, new_row

_inodes = count(1)


class SurveyedFile:
    def __init__(self, session_id: str, *, user: str = "ada") -> None:
        self.session_id = session_id
        self.row = new_row(session_id, user=user, created_at=START)
        self.entries: list[Entry] = []
        self.inode = next(_inodes)

    def add(self, *entries: Entry) -> None:
        self.entries += entries
        self.row = fold_all(self.row, entries)

    def say(self, content: str) -> Entry:
        """One more message, said now."""
        seq = self.row.head_seq + 1
        at = START + timedelta(seconds=seq)
        entry = ModelInputEntry(
            seq=seq, id=f"e{seq}", turn_id=f"t{seq}", timestamp=at, content=content
        )
        self.add(entry)
        return entry

    def rewrite(self, entries: list[Entry]) -> None:
        self.row = new_row(self.session_id, user=self.row.user, created_at=START)
        self.entries, self.inode = [], next(_inodes)
        self.add(*entries)

    @property
    def found(self) -> FoundFile:
        """A byte for each entry, and one for the closing line."""
        size = len(self.entries) + 1
        return FoundFile(name=f"{self.session_id}.json", size=size, mtime_ns=size, inode=self.inode)

    @property
    def stamp(self) -> FileStamp:
        end = len(self.entries)
        return FileStamp(file=self.found, end_offset=end, head_seq=self.row.head_seq)

    @property
    def learned(self) -> EntriesAdded:
        return EntriesAdded(row=self.row, stamp=self.stamp, entries=self.entries, replaces_all=True)


class SurveyedFiles:
    def __init__(self, *files: SurveyedFile) -> None:
        self.by_id = {file.session_id: file for file in files}
        self.entries_read = 0

    def add(self, session_id: str, *, user: str = "ada") -> SurveyedFile:
        file = self.by_id[session_id] = SurveyedFile(session_id, user=user)
        return file

    def messages(self, user: str) -> Iterator[tuple[ConversationRow, Entry]]:
        for file in self.by_id.values():
            if file.row.user == user:
                yield from ((file.row, entry) for entry in file.entries)

    def survey(self, known: Mapping[str, FileStamp]) -> Iterator[EntriesAdded | ConversationGone]:
        found = {session_id: file.found for session_id, file in self.by_id.items()}
        changes = compare_files(found, known)
        for session_id in changes.gone:
            yield ConversationGone(session_id=session_id)
        for session_id in changes.unknown:
            yield self._read(session_id, 0, replaces_all=True)
        for session_id in changes.grown:
            yield self._read(session_id, known[session_id].end_offset, replaces_all=False)

    def _read(self, session_id: str, start: int, *, replaces_all: bool) -> EntriesAdded:
        file = self.by_id[session_id]
        entries = file.entries[start:]
        self.entries_read += len(entries)
        return replace(file.learned, entries=entries, replaces_all=replaces_all)
