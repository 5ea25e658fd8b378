"""A whole data directory, looked at from outside: what is wrong, what is worth knowing.

Only ever reads: no lock is taken, nothing is opened for writing, so it can be
asked while a server runs. A file that is being written to is looked at again
until it held still. Memory is bounded by the largest line; everything else is
read in blocks.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from nplt_storage.attachments import NOBODYS
from nplt_storage.care.drift import CatalogueAsFound
from nplt_storage.care.examining import Examination, examine_file
from nplt_storage.care.findings import Finding, note
from nplt_storage.care.plain_files import read_blocks
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.file_operations import PRIVATE_FILE, SystemFiles, read_all
from nplt_storage.files.names import blobs_of, companion_of, is_unfinished, session_id_of
from nplt_storage.ids import is_file_id, new_entry_id

_LOOKS_MAX: Final = 3
_SIDE_FILES: Final = {
    ".broken-": ("torn_append", "what a torn append left; it was set aside here"),
    ".orig": ("original", "what another program had written; kept when it was taken in"),
    ".before-repair-": ("before_repair", "a file as it was before it was repaired"),
    ".live": ("running_answer", "what a running answer had said so far"),
}


class NoDataDirectory(Exception):
    """There is nothing here to look at; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    conversations: int
    size: int
    findings: tuple[Finding, ...]

    @property
    def wrong(self) -> int:
        return sum(finding.is_wrong for finding in self.findings)


def examine_directory(data_dir: Path, *, progress: Callable[[int, int], None]) -> Report:
    """`progress` is told how many of how many bytes have been read."""
    history = data_dir / "history"
    catalogue = CatalogueAsFound(data_dir)
    try:
        names = sorted(os.listdir(history))  # noqa: PTH208
    except OSError as error:
        reason = f"{data_dir} is no data directory: {error.strerror} ({history.name})"
        raise NoDataDirectory(reason) from error
    by_id = _by_id(names)
    sizes = {name: _size_of(history / name) for group in by_id.values() for name in group}
    findings = [*_side_files(names, by_id)]
    rows: dict[str, ConversationRow] = {}
    total, done = sum(sizes.values()), 0
    examine = _Examiner(lambda read: progress(done + read, total))
    for session_id, group in sorted(by_id.items()):
        for name in group:
            found = examine(history / name, session_id)
            beside = _Beside(data_dir, name, session_id, found)
            local = [*found.findings, *_modes(history / name)]
            local += [*beside.blobs(), *beside.attachments()]
            findings += [replace(each, file=each.file or f"history/{name}") for each in local]
            if found.row is not None and found.is_sound and len(group) == 1:
                rows[session_id] = found.row
            done += sizes[name]
    findings += _stray_attachments(data_dir / "files", by_id)
    findings += catalogue.compare(rows, set(by_id))
    return Report(
        conversations=len(by_id),
        size=total,
        findings=tuple(sorted(findings, key=_order)),
    )


def _by_id(names: Iterable[str]) -> dict[str, list[str]]:
    by_id: dict[str, list[str]] = {}
    for name in names:
        session_id = session_id_of(name)
        if session_id is not None:
            by_id.setdefault(session_id, []).append(name)
    return by_id


def _order(finding: Finding) -> tuple[str, bool, int, str]:
    return finding.file, not finding.is_wrong, finding.offset or 0, finding.message


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _modes(path: Path) -> Iterator[Finding]:
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # that it can't be read was said
    if stat.S_ISREG(mode) and stat.S_IMODE(mode) != PRIVATE_FILE:
        message = f"its mode is {stat.S_IMODE(mode):04o}, not {PRIVATE_FILE:04o}"
        yield note("mode", message)


class _Examiner:
    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress

    def __call__(self, path: Path, session_id: str) -> Examination:
        try:
            return self._settled(path, session_id)
        except FileNotFoundError:
            if path.is_symlink():
                message = "it is a symbolic link to nothing"
                return Examination([Finding(code="unreadable", message=message)])
            return Examination()  # deleted just now
        except OSError as error:
            message = f"it can't be read: {error.strerror}"
            return Examination([Finding(code="unreadable", message=message)])

    def _settled(self, path: Path, session_id: str) -> Examination:
        """Looked at again if it changed meanwhile: an append can be met half done."""
        for _ in range(_LOOKS_MAX):
            before = path.stat()
            found = self._look(path, session_id)
            after = path.stat()
            is_same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
            if is_same or not found.findings:
                return found
        return Examination([note("in_use", "it was written to whenever it was looked at")])

    def _look(self, path: Path, session_id: str) -> Examination:
        files = SystemFiles()
        descriptor = files.open(path, os.O_RDONLY)

        def read(offset: int, length: int) -> bytes:
            self._progress(offset)
            return read_all(files, descriptor, length, offset)

        try:
            size = files.size(descriptor)
            return examine_file(read, size, session_id=session_id, new_id=new_entry_id)
        finally:
            files.close(descriptor)


def _side_files(names: list[str], by_id: dict[str, list[str]]) -> Iterator[Finding]:
    for session_id, group in by_id.items():
        if len(group) > 1:
            message = f"there are {len(group)} files for conversation {session_id}"
            yield Finding(code="two_files", message=message, file=f"history/{group[0]}")
    for name in names:
        if session_id_of(name) is None:
            code, message = _what_is(name, by_id)
            if code:
                yield replace(note(code, message), file=f"history/{name}")


def _what_is(name: str, by_id: dict[str, list[str]]) -> tuple[str, str]:
    """Nothing to say about the blobs of a conversation that is there."""
    if is_unfinished(name):
        return "unfinished", "a file on its way in, or what a crash left of one"
    owner = companion_of(name)
    if owner is None:
        return "unknown_file", "nothing of ours has such a name"
    if owner not in by_id:
        return "no_owner", f"there is no file of conversation {owner}, to which this belongs"
    for part, said in _SIDE_FILES.items():
        if part in name:
            return said
    return "", ""


class _Beside:
    """What a conversation's entries say is kept beside its file."""

    def __init__(self, data_dir: Path, name: str, session_id: str, found: Examination) -> None:
        self._found = found
        self._blobs = blobs_of(data_dir / "history" / name)
        self._files = data_dir / "files" / session_id
        self._data_dir = data_dir

    def blobs(self) -> Iterator[Finding]:
        for blob in self._found.blobs.values():
            wrong = _compare(self._blobs / Path(blob.blob_id).name, blob.size, blob.sha256)
            if wrong:
                yield Finding(code="bad_blob", message=f"blob {blob.blob_id} {wrong}")
        for name in _names_in(self._blobs):
            if name not in self._found.blobs and self._found.is_sound:
                message = f"no entry names blob {name}"
                yield replace(note("unnamed_blob", message), file=self._where(self._blobs))

    def attachments(self) -> Iterator[Finding]:
        for entry in self._found.attachments.values():
            path = self._files / Path(entry.file_id).name
            if entry.redacted_at is None:
                wrong = _compare(path, entry.size, entry.sha256)
            else:
                wrong = "was erased, and is still there" if path.exists() else None
            if wrong:
                message = f"attachment {entry.file_id} of entry {entry.seq} {wrong}"
                yield Finding(code="bad_attachment", message=message)
        for name in _names_in(self._files):
            if name not in self._found.attachments and self._found.is_sound:
                message = f"no entry names {name}" + ("" if is_file_id(name) else ", half a file")
                yield replace(note("unnamed_attachment", message), file=self._where(self._files))

    def _where(self, path: Path) -> str:
        return str(path.relative_to(self._data_dir))


def _compare(path: Path, size: int, sha256: str) -> str | None:
    """What is wrong with it."""
    digest, length = hashlib.sha256(), 0
    try:
        for block in read_blocks(path):
            digest.update(block)
            length += len(block)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"can't be read: {error.strerror}"
    if length != size:
        return f"has {length} bytes, not {size}"
    return None if digest.hexdigest() == sha256 else "is not what it was: its SHA-256 differs"


def _names_in(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208
    except OSError:
        return []


def _stray_attachments(files: Path, by_id: dict[str, list[str]]) -> Iterator[Finding]:
    for name in _names_in(files):
        if name not in by_id and name != NOBODYS:
            message = f"attachments of conversation {name}, which is not here"
            yield replace(note("no_owner", message), file=f"{files.name}/{name}")
