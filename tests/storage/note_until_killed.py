"""Processes that write lines and note them in an index until they are killed.

    python note_until_killed.py DIRECTORY

The lines of `truth` stand for the files: one is there before it is noted. For
every line on its input it forks a writer (so that starting one costs no
imports) and says `gone` when that writer was killed. A writer says its process
id first, then a line for each note. Used by test_index_kills.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio

from nplt_storage import ConversationRow
from nplt_storage.entries import Entry, ModelInputEntry
from nplt_storage.file_system import FoundFile
from nplt_storage.index.updates import ConversationGone, EntriesAdded, FileStamp, compare_files
from nplt_storage.index.worker import ConversationIndex
from nplt_storage.rows import fold, fold_all, new_row

START = datetime(2026, 1, 1, tzinfo=UTC)
CONVERSATIONS = 5


class Truth:
    """All conversations in one file: each line names one, which has an entry more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.touch()
        self.names = self._path.read_text().split()

    def write(self, name: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{name}\n")
        self.names.append(name)

    def entries(self, name: str) -> list[Entry]:
        return [entry_of(name, seq) for seq in range(1, self.names.count(name) + 1)]

    def row(self, name: str) -> ConversationRow:
        return fold_all(new_row(name, user="ada", created_at=START), self.entries(name))

    def survey(self, known: Mapping[str, FileStamp]) -> Iterator[EntriesAdded | ConversationGone]:
        found = {name: stamp_of(name, self.names.count(name)).file for name in set(self.names)}
        changes = compare_files(found, known)
        assert not changes.gone, "nothing is noted that is not in the truth"
        for name in (*changes.unknown, *changes.grown):
            start = known[name].end_offset if name in changes.grown else 0
            entries = self.entries(name)
            stamp = stamp_of(name, len(entries))
            yield EntriesAdded(
                row=self.row(name), stamp=stamp, entries=entries[start:], replaces_all=start == 0
            )


def stamp_of(name: str, entries: int) -> FileStamp:
    file = FoundFile(name=name, size=entries, mtime_ns=entries, inode=1)
    return FileStamp(file=file, end_offset=entries, head_seq=entries)


def entry_of(name: str, seq: int) -> Entry:
    return ModelInputEntry(
        seq=seq,
        id=f"{name}-{seq}",
        turn_id=f"t{seq}",
        timestamp=START + timedelta(seconds=seq),
        content=f"fox {seq} of {name} " + "and so on " * (seq * 37 % 300),
    )


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def note_for_ever(directory: Path) -> None:
    truth = Truth(directory / "truth")
    index = ConversationIndex(directory / "catalog.sqlite", survey=truth.survey)
    await index.catch_up()
    rows = {name: truth.row(name) for name in set(truth.names)}
    while True:
        name = f"c{len(truth.names) % CONVERSATIONS}"
        row = rows.get(name) or new_row(name, user="ada", created_at=START)
        entry = entry_of(name, row.head_seq + 1)
        truth.write(name)
        rows[name] = fold(row, entry)
        index.note(rows[name], stamp_of(name, entry.seq), entry)
        say(name)
        if len(truth.names) % 3 == 0:
            # What was noted so far is committed when this is answered.
            await index.row(name)


def main() -> None:
    for _ in sys.stdin:
        writer = os.fork()
        if writer == 0:
            say(str(os.getpid()))
            anyio.run(note_for_ever, Path(sys.argv[1]))
        os.waitpid(writer, 0)
        say("gone")


if __name__ == "__main__":
    main()
