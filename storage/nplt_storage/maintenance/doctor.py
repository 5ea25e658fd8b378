"""Examines a whole data directory and reports what is wrong or worth knowing.

Only reads: takes no lock and opens nothing for writing, so it can run beside a server.
A file that changes while it is read is read again. Memory is bounded by the longest
line.
"""

from __future__ import annotations

import hashlib
import sqlite3
import stat
from collections.abc import Callable, Container, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import fields, replace

from nplt_storage.errors import StorageUnavailable
from nplt_storage.file_system import (
    PRIVATE_FILE,
    Disk,
    FileReader,
    NotOurs,
    opened_to_read,
    read_beginning,
    read_blocks,
)
from nplt_storage.files.directory import INDEX_NAME
from nplt_storage.files.examination import Examination, Finding, examine_file, note
from nplt_storage.files.format import (
    blobs_of,
    by_session_id,
    companion_of,
    is_unfinished,
    live_of,
    session_id_of,
)
from nplt_storage.files.live_journal import read_journal, sound_pieces
from nplt_storage.files.trash import deleted_id
from nplt_storage.ids import is_file_id, new_entry_id
from nplt_storage.index.database import (
    PARTS,
    ROWS_VERSION,
    SCHEMA_VERSION,
    checkpoint,
    first_value,
    open_database,
    transaction,
)
from nplt_storage.index.tables import IndexTables
from nplt_storage.index.updates import ConversationGone
from nplt_storage.rows import ConversationRow

# ------------------------------------------------------------------------------
# Comparing the index with the files
#
# The index is a cache, so being behind is fine: the next start catches up. Wrong is what
# catching up would not notice, or what shows a loss: a row that differs from the one the
# entries give or is marked as damaged, a head that the file does not reach, a conversation
# without its file.
#
# SQLite is opened read-only, also for the files beside it.

_T = TypeVar("_T")
_INDEX_FILES: Final = tuple(INDEX_NAME + part for part in PARTS)
_MADE_BY: Final = f"schema {SCHEMA_VERSION}, rows {ROWS_VERSION},"


def _rows_of_index(disk: Disk, data_dir: Path) -> dict[str, ConversationRow] | str:
    """The rows in the index, or the reason why it can't be used. It is read before the files, so
    that writes in between can only leave it behind them."""

    def all_rows(tables: IndexTables) -> dict[str, ConversationRow]:
        rows = {id_: tables.row(id_) for id_ in tables.stamps()}
        return {id_: row for id_, row in rows.items() if row is not None}

    return _ask_index(disk, data_dir, all_rows)


def known_to_index(data_dir: Path, session_id: str) -> ConversationRow | None:
    found = _ask_index(Disk(data_dir), data_dir, lambda tables: tables.row(session_id))
    return None if isinstance(found, str) else found


def _ask_index(disk: Disk, data_dir: Path, question: Callable[[IndexTables], _T]) -> _T | str:
    """The answer of the index, or the reason why there is none."""
    path = data_dir / INDEX_NAME
    if any(disk.why_not_ours(data_dir / name) for name in _INDEX_FILES):
        return "it is not looked into; the next start makes it anew"
    if disk.find(path) is None:
        return "there is none; it is made at the next start"
    for _ in range(_LOOKS_MAX):
        before = _stamp(disk, path)
        found: _T | str
        try:
            with closing(_connect(path)) as connection:
                made = first_value(connection, "SELECT value FROM marks WHERE name = 'made_by'")
                if (made or "").startswith(_MADE_BY):
                    found = question(IndexTables(connection))
                else:
                    found = "another version made it; the next start makes it anew"
        except sqlite3.Error as error:
            found = f"it can't be read ({error}); the next start makes it anew"
        if _stamp(disk, path) == before:
            return found
    return "it was written to whenever it was looked at"


def _compare_index(
    known: dict[str, ConversationRow] | str,
    sound: dict[str, ConversationRow],
    there: Container[str],
    deleted: Container[str | None],
) -> Iterator[Finding]:
    """Compares the rows. `sound` are those just made from whole files, `there` all ids with a file,
    `deleted` those in the trash."""
    if isinstance(known, str):
        yield note("no_catalogue", known)
        return
    for session_id, row in sorted(sound.items()):
        finding = _difference(known.get(session_id), row)
        if finding is not None:
            yield finding
    for session_id in sorted(known):
        last = known[session_id].head_seq
        if session_id in there:
            continue
        if session_id in deleted:
            yield note("behind", f"it does not know yet that {session_id} was deleted")
        else:
            message = f"it knows {session_id} ({last} entries), of which there is no file"
            yield Finding("file_gone", message, seqs=(1, max(last, 1)))


def _difference(known: ConversationRow | None, row: ConversationRow) -> Finding | None:
    if known is None:
        return note("behind", f"it does not know {row.session_id} yet; the next start catches up")
    if known.head_seq > row.head_seq:
        message = f"{row.session_id} had {known.head_seq} entries, its file has {row.head_seq}"
        lost = (row.head_seq + 1, known.head_seq)
        return Finding("entries_gone", message, seqs=lost)
    if known.head_seq < row.head_seq:
        message = f"it knows {row.session_id} up to entry {known.head_seq} of {row.head_seq}"
        return note("behind", f"{message}; the next start catches up")
    if known.damaged:
        message = f"it holds {row.session_id} for damaged; look again with: nplt repair"
        return Finding("held_damaged", f"{message} {row.session_id}")
    if known.lost is not None:
        first, last = known.lost
        message = f"{row.session_id} had entries {first} to {last}, which are gone: an older copy"
        message += f" was put back; to go on without them: nplt repair {row.session_id}"
        return Finding("entries_gone", message, seqs=known.lost)
    same = replace(known, last_accessed=row.last_accessed)
    wrong = [f.name for f in fields(row) if getattr(same, f.name) != getattr(row, f.name)]
    if not wrong:
        return None
    message = f"what it says of {row.session_id} is not what its file says: {', '.join(wrong)}"
    return Finding("drift", message)


def _connect(path: Path) -> sqlite3.Connection:
    """Opens the index without a lock, because a running server holds it."""
    journal = path.with_name(f"{path.name}-wal")
    in_use = journal.exists() and journal.stat().st_size > 0
    how = "mode=ro&vfs=unix-none" if in_use else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True)
    if in_use:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # so that it shares no memory
    return connection


def _stamp(disk: Disk, path: Path) -> tuple[int, int, bytes]:
    """A value that stays the same while nothing that was read without a lock is overwritten.
    Checkpoints change the database and then start the journal over."""
    journal = path.with_name(f"{path.name}-wal")
    with suppress(OSError):
        found = disk.status(path)
        beginning = b"" if disk.find(journal) is None else read_beginning(disk, journal, 32)
        return found.st_size, found.st_mtime_ns, beginning
    return 0, 0, b""


def forget_row(data_dir: Path, session_id: str) -> None:
    """Removes a conversation's row. A repaired file may be shorter than its row says, and would
    count as damaged. The caller must hold the directory's lock."""
    path = data_dir / INDEX_NAME
    if Disk(data_dir).find(path) is None:
        return
    try:
        with closing(open_database(path)) as connection:
            with transaction(connection):
                IndexTables(connection).apply([ConversationGone(session_id=session_id)])
            checkpoint(connection)
    except sqlite3.Error as error:
        reason = f"{path} can't be written to ({error}): remove it, and it is built again"
        raise StorageUnavailable(reason) from error


_LOOKS_MAX: Final = 3
_SIDE_FILES: Final = {
    ".broken-": ("torn_append", "what a torn append left; it was set aside here"),
    ".orig": ("original", "what another program had written; kept when it was taken in"),
    ".before-repair-": ("before_repair", "a file as it was before it was repaired"),
}


class NoDataDirectory(Exception):
    """There is no data directory here; the message says why."""


class Report(Struct, frozen=True, kw_only=True):
    conversations: int
    size: int
    findings: tuple[Finding, ...]

    @property
    def wrong(self) -> int:
        return sum(finding.is_wrong for finding in self.findings)


def examine_directory(data_dir: Path, *, progress: Callable[[int, int], None]) -> Report:
    """Examines a whole data directory; `progress` is called with the number of bytes read, and of
    all."""
    history, disk = data_dir / "history", Disk(data_dir)
    index = _rows_of_index(disk, data_dir)
    try:
        there = disk.found_in(history)
    except OSError as error:
        reason = f"{data_dir} is no data directory: {error.strerror} ({history.name})"
        raise NoDataDirectory(reason) from error
    names = [file.name for file in there]
    by_id = by_session_id(names)
    sizes = {file.name: max(file.size, 0) for file in there if session_id_of(file.name)}
    findings = [*_side_files(disk, history, names, by_id), *_refused(disk, data_dir)]
    rows: dict[str, ConversationRow] = {}
    total, done = sum(sizes.values()), 0

    def report(read: int) -> None:
        progress(done + read, total)

    for session_id, group in sorted(by_id.items()):
        for name in group:
            path = history / name
            found = _examined(disk, path, session_id, report)
            local = [*found.findings, *_companion_findings(disk, data_dir, path, session_id, found)]
            local += _journal_findings(disk, path, found)
            with suppress(OSError):  # that it can't be read was said
                mode = disk.status(path).st_mode
                if stat.S_ISREG(mode) and stat.S_IMODE(mode) != PRIVATE_FILE:
                    message = f"its mode is {stat.S_IMODE(mode):04o}, not {PRIVATE_FILE:04o}"
                    local.append(note("mode", message))
            findings += [replace(each, file=each.file or f"history/{name}") for each in local]
            if found.row is not None and found.is_sound and len(group) == 1:
                rows[session_id] = found.row
            done += sizes.get(name, 0)
    for name in disk.names_in(data_dir / "files"):
        if refusal := disk.why_not_ours(data_dir / "files" / name):
            findings.append(Finding("refused", refusal, file=f"files/{name}"))
        elif name not in by_id and not name.startswith("."):
            message = f"attachments of conversation {name}, which is not here"
            findings.append(note("no_owner", message, file=f"files/{name}"))
    deleted = set(map(deleted_id, disk.names_in(data_dir / "trash")))
    compared = _compare_index(index, rows, by_id, deleted)
    findings += [replace(each, file=INDEX_NAME) for each in compared]
    findings.sort(key=lambda each: (each.file, not each.is_wrong, each.offset or 0, each.message))
    return Report(conversations=len(by_id), size=total, findings=tuple(findings))


def _refused(disk: Disk, data_dir: Path) -> Iterator[Finding]:
    """Reports files that the server refuses to open, in the data directory and in the trash."""
    names = ["lock", "files", "trash", *_INDEX_FILES]
    folders = [data_dir / "trash"]
    paths = [data_dir / name for name in names]
    while folders:
        inside = folders.pop()
        for path in (inside / name for name in disk.names_in(inside)):
            is_folder = disk.is_directory(path)
            (folders if is_folder else paths).append(path)
            if is_folder and session_id_of(path.name) is not None:
                where = str(path.relative_to(data_dir))
                yield Finding("refused", "it is a directory", file=where)
    for path in paths:
        if reason := disk.why_not_ours(path):
            yield Finding("refused", reason, file=str(path.relative_to(data_dir)))


class _TellingReader(FileReader):
    """A reader that reports its progress."""

    def __init__(self, read: FileReader, progress: Callable[[int], None]) -> None:
        self._read = read
        self._progress = progress

    def __call__(self, offset: int, length: int) -> bytes:
        self._progress(offset)
        return self._read(offset, length)

    def after_hole(self, offset: int) -> int:
        return self._read.after_hole(offset)


def _examined(
    disk: Disk, path: Path, session_id: str, progress: Callable[[int], None]
) -> Examination:
    """Examines a file, and does so again if it changed meanwhile, because an append may have been
    half done."""
    try:
        for _ in range(_LOOKS_MAX):
            before = disk.status(path)
            with opened_to_read(disk, path) as (read, size):
                read = _TellingReader(read, progress)
                found = examine_file(read, size, session_id=session_id, new_id=new_entry_id)
            after = disk.status(path)
            is_same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
            if is_same or not found.findings:
                return found
        return Examination([note("in_use", "it was written to whenever it was looked at")])
    except FileNotFoundError:
        return Examination()  # deleted just now
    except NotOurs as error:
        message = str(error.strerror)
    except OSError as error:
        message = f"it can't be read: {error.strerror}"
    return Examination([Finding("unreadable", message)])


def _side_files(
    disk: Disk, history: Path, names: list[str], by_id: dict[str, list[str]]
) -> Iterator[Finding]:
    for session_id, group in by_id.items():
        if len(group) > 1:
            message = f"there are {len(group)} files for conversation {session_id}"
            yield Finding("two_files", message, file=f"history/{group[0]}")
    for name in names:
        owner = companion_of(name)
        if session_id_of(name) is not None:
            continue
        if reason := disk.why_not_ours(history / name):
            yield Finding("refused", reason, file=f"history/{name}")
            continue
        if owner is not None and not name.endswith(".blobs") and disk.is_directory(history / name):
            yield Finding("refused", "it is a directory", file=f"history/{name}")
            continue
        if is_unfinished(name):
            findings = [("unfinished", "a file on its way in, or what a crash left of one")]
        elif owner is None:
            findings = [("unknown_file", "nothing of ours has such a name")]
        elif owner not in by_id:
            message = f"there is no file of conversation {owner}, to which this belongs"
            findings = [("no_owner", message)]
        else:  # nothing to say about the blobs of a conversation that is there
            findings = [what for part, what in _SIDE_FILES.items() if part in name][:1]
        for code, message in findings:
            yield note(code, message, file=f"history/{name}")


def _journal_findings(disk: Disk, path: Path, found: Examination) -> Iterator[Finding]:
    """Reports the text of an answer that has no entry yet. After an answer the file stays for a
    while, with text that is stale."""
    journal = live_of(path)
    piece = next(sound_pieces(read_journal(disk, journal)), None)
    unfinished = found.row.unfinished if found.row is not None else ()
    if piece is not None and piece[0] in [turn_id for turn_id, _ in unfinished]:
        message = "the text of an answer that runs, or ran when the server was killed"
        yield note("running_answer", message, file=f"history/{journal.name}")


def _companion_findings(
    disk: Disk, data_dir: Path, path: Path, session_id: str, found: Examination
) -> Iterator[Finding]:
    """Checks the blobs and attachments that entries name, and reports those that no entry names."""
    folder = blobs_of(path)
    for blob in found.blobs.values():
        if wrong := _compare(disk, folder / Path(blob.blob_id).name, blob.size, blob.sha256):
            yield Finding("bad_blob", f"blob {blob.blob_id} {wrong}")
    for name in disk.names_in(folder) if found.is_sound else ():
        where = str(folder.relative_to(data_dir))
        if name in found.blobs:
            continue
        if reason := disk.why_not_ours(folder / name):
            yield Finding("refused", reason, file=f"{where}/{name}")
        else:
            yield note("unnamed_blob", f"no entry names blob {name}", file=where)
    folder = data_dir / "files" / session_id
    for entry in found.attachments.values():
        attachment = folder / Path(entry.file_id).name
        if entry.redacted_at is None:
            wrong = _compare(disk, attachment, entry.size, entry.sha256)
        else:
            is_there = attachment.name in disk.names_in(folder)
            wrong = "was erased, and is still there" if is_there else None
        if wrong:
            message = f"attachment {entry.file_id} of entry {entry.seq} {wrong}"
            yield Finding("bad_attachment", message)
    for name in disk.names_in(folder) if found.is_sound else ():
        if name in found.attachments:
            continue
        if reason := disk.why_not_ours(folder / name):
            yield Finding("refused", reason, file=f"files/{session_id}/{name}")
        else:
            message = f"no entry names {name}" + ("" if is_file_id(name) else ", half a file")
            yield note("unnamed_attachment", message, file=f"files/{session_id}")


def _compare(disk: Disk, path: Path, size: int, sha256: str) -> str | None:
    """The difference between the file and its expected size and checksum, or `None`."""
    digest = hashlib.sha256()
    try:
        with opened_to_read(disk, path) as (read, length):
            for block in read_blocks(read, 0, length) if length == size else ():
                digest.update(block)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"can't be read: {error.strerror}"
    if length != size:
        return f"has {length} bytes, not {size}"
    return None if digest.hexdigest() == sha256 else "is not what it was: its SHA-256 differs"
