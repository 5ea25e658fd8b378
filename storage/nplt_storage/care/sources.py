"""A conversation's file as something to copy from, only ever read.

    ours         the file of a data directory, blobs and attachments beside it,
                 or an exported document, which holds them itself, also if
                 another program has laid it out anew
    another's    one JSON document in the older shape

Nothing is put right on the way: a torn end is left out, as opening would do it,
and damage is an error. What can't be read back the same would be lost in a
copy, so a file of a later version with fields this one does not know is refused.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, Protocol

import anyio.to_thread

from nplt_storage.care.documents import BadDocument, ItemKey, Span, decode_item, index_items
from nplt_storage.care.pieces import (
    FOREIGN_BYTES_MAX,
    TooLong,
    bounded,
    our_header,
)
from nplt_storage.care.plain_files import read_range
from nplt_storage.care.relayout import as_it_was_written
from nplt_storage.errors import BadEntry, StorageError
from nplt_storage.facts.entries import AttachmentEntry, Entry
from nplt_storage.facts.lines import BadLine, decode_verified, encode_line
from nplt_storage.file_operations import SystemFiles, read_all
from nplt_storage.files.foreign import NotForeign, load_document, named_id, read_foreign
from nplt_storage.files.layout import BadHeader, Header, LaterFormat
from nplt_storage.files.names import blobs_of, session_id_of
from nplt_storage.files.reader import Line, LineReader, Read, segments_forward, verified
from nplt_storage.files.recovery import Damage, survey
from nplt_storage.ids import is_file_id, is_session_id
from nplt_storage.store import Origin

_BATCH_ENTRIES: Final = 500
_LOOKED_AT_BYTES: Final = 4096
_NOT_AS_WRITTEN: Final = (
    "this is one of our files, but its first line is damaged, or its layout was changed"
)
_UNREADABLE = (BadDocument, BadHeader, BadLine, Damage, LaterFormat, NotForeign, TooLong)


@dataclass(frozen=True, slots=True, kw_only=True)
class InOneGo:
    """How large what is read in one go may be: another's document, or one of ours that was
    laid out anew. As objects it takes many times the memory it takes on disk."""

    bytes_max: int = FOREIGN_BYTES_MAX
    values_max: int | None = None
    """By the brackets and commas there are, those in texts included."""
    messages_max: int | None = None
    """Calls of tools count too."""


ANY_SIZE: Final = InOneGo()


class NotAConversation(StorageError):
    """Nothing in this file that could be copied; says why, as a sentence."""


class FileSource(Protocol):
    """A `Source` of one conversation; the ids it is asked for are not looked at."""

    session_id: str | None
    """What it calls itself, if it does; not checked for being free anywhere."""

    def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]: ...

    async def origin(self, session_id: str) -> Origin: ...

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes: ...

    async def attachment(self, entry: AttachmentEntry) -> bytes | None:
        """`None` unless it is there, as it was."""
        ...


@contextmanager
def opened_source(path: Path, limits: InOneGo = ANY_SIZE) -> Iterator[FileSource]:
    """Raises `NotAConversation`. Blocks while the file is looked through once."""
    files = SystemFiles()
    try:
        descriptor = files.open(path, os.O_RDONLY)
    except OSError as error:
        raise NotAConversation(_why_not(error)) from error
    try:
        size = files.size(descriptor)
        read = bounded(_reading(files, descriptor))
        yield _source_of(read, size, path, limits)
    except _UNREADABLE as error:
        raise NotAConversation(str(error)) from error
    finally:
        files.close(descriptor)


def _reading(files: SystemFiles, descriptor: int) -> Read:
    """Says of reading that it failed: whoever copies from it has other troubles too."""

    def read(offset: int, length: int) -> bytes:
        try:
            return read_all(files, descriptor, length, offset)
        except OSError as error:
            raise NotAConversation(f"it can't be read: {error.strerror}") from error

    return read


def _why_not(error: OSError) -> str:
    match error.errno:
        case errno.ENOENT:
            return "there is no such file"
        case errno.EISDIR:
            return "it is a directory"
        case _:
            return f"it can't be read: {error.strerror}"


def _source_of(read: Read, size: int, path: Path, limits: InOneGo) -> FileSource:
    if size == 0:
        raise NotForeign("it is empty")
    try:
        header, first = our_header(bounded(read, limits.bytes_max), size)
    except (BadHeader, TooLong):
        if size > limits.bytes_max:
            most = f"of other documents at most {limits.bytes_max >> 20} MiB are read"
            raise NotForeign(f"its first line is not as we write it, and {most}") from None
        data = read(0, size)
        _check_values(data, limits.values_max)
        written = as_it_was_written(data)
        if written is None:
            return OlderFile(data, path, messages_max=limits.messages_max)
        read, size = _from_memory(written), len(written)
        header, first = our_header(read, size)
    return OurFile(read, size, header, first, path)


def _check_values(data: bytes, values_max: int | None) -> None:
    if values_max is not None and sum(map(data.count, (b"{", b"[", b","))) > values_max:
        raise NotForeign(f"more than {values_max:,} values")


def _from_memory(data: bytes) -> Read:
    return lambda offset, length: data[offset : offset + length]


class OurFile:
    def __init__(self, read: Read, size: int, header: Header, first: int, path: Path) -> None:
        self.session_id: str | None = header.session_id
        self._read = read
        self._header = header
        self._first = first
        self._path = path
        self._end, self._items = _index(read, size, first)

    async def origin(self, session_id: str) -> Origin:
        header = self._header
        return Origin(user=header.user, created_at=header.created_at, extra=header.extra)

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        lines = LineReader(self._read, first=self._first, end=self._end).forward(self._first)
        wanted = (
            line for line in lines if line.seq > after and (through is None or line.seq <= through)
        )

        def batch() -> list[Entry]:
            return [_entry(line) for line in islice(wanted, _BATCH_ENTRIES)]

        while entries := await anyio.to_thread.run_sync(batch):
            yield entries

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        path = blobs_of(self._path) / Path(blob_id).name
        data = await anyio.to_thread.run_sync(self._item, ("blob", blob_id), path, offset + length)
        if data is None:
            raise BadEntry(f"there is no blob {blob_id!r}")
        return data[offset:][:length]

    async def attachment(self, entry: AttachmentEntry) -> bytes | None:
        if not is_file_id(entry.file_id) or usable_id(self) is None:
            return None
        path = self._path.parent.parent / "files" / str(self.session_id) / entry.file_id
        key = ("file", entry.file_id)
        data = await anyio.to_thread.run_sync(self._item, key, path, entry.size + 1)
        if data is None or hashlib.sha256(data).hexdigest() != entry.sha256:
            return None
        return data

    def _item(self, key: ItemKey, path: Path, length: int) -> bytes | None:
        """From the document itself, or from beside it."""
        if span := self._items.get(key):
            return decode_item(self._read(*span))
        try:
            return read_range(path, 0, length)
        except (OSError, ValueError):
            return None


def _index(read: Read, size: int, first: int) -> tuple[int, dict[ItemKey, Span]]:
    """Where the lines end, and what is kept behind them. Raises for damage."""
    end, due = first, 1
    for segment in segments_forward(read, first, size):
        try:
            line = verified(segment, first=first)
        except BadLine:
            break
        if line.seq != due:
            raise BadLine(f"line {line.seq} stands where {due} should")
        end, due = line.end, due + 1
    items = index_items(read, end, size)
    if items is not None:
        return end, items
    if survey(read, size).end != end:
        raise BadLine(f"it is damaged at byte {end}")
    return end, {}


def _entry(line: Line) -> Entry:
    entry = decode_verified(line.data)
    if encode_line(entry) != line.data:
        raise BadEntry(
            f"entry {line.seq} holds something this version does not know, and would lose"
        )
    return entry


class OlderFile:
    def __init__(self, data: bytes, path: Path, *, messages_max: int | None = None) -> None:
        named = _session_id_in(data, messages_max)
        self.session_id = named if named is not None else session_id_of(path.name)
        known = self.session_id or ""
        try:
            header, self._entries = read_foreign(data, known, new_id=_same_ids(known))
        except NotForeign:
            if b'"format"' in data[:_LOOKED_AT_BYTES] and b'"head_seq"' in data[-_LOOKED_AT_BYTES:]:
                raise NotForeign(_NOT_AS_WRITTEN) from None
            raise
        self._origin = Origin(user=header.user, created_at=header.created_at, extra=header.extra)

    async def origin(self, session_id: str) -> Origin:
        return self._origin

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        entries = self._entries[max(after, 0) : through]
        for start in range(0, len(entries), _BATCH_ENTRIES):
            yield entries[start : start + _BATCH_ENTRIES]

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        raise BadEntry(f"there is no blob {blob_id!r}")

    async def attachment(self, entry: AttachmentEntry) -> bytes | None:
        return None


def _session_id_in(data: bytes, messages_max: int | None) -> str | None:
    try:
        document = load_document(data)
    except NotForeign:
        return None  # whoever reads it whole says what is wrong
    if not isinstance(document, dict):
        return None
    if messages_max is not None and _messages_in(document) > messages_max:
        raise NotForeign(f"more than {messages_max:,} messages and calls")
    return named_id(document)


def _messages_in(document: dict[str, Any]) -> int:
    """Calls among them: each of these becomes an entry or a part of one."""
    messages = document.get("messages")
    if not isinstance(messages, list):
        return 0
    calls = [each.get("tool_calls") for each in messages if isinstance(each, dict)]
    return len(messages) + sum(len(each) for each in calls if isinstance(each, list))


def _same_ids(session_id: str) -> Callable[[], str]:
    """The same ids whenever the same document is read, so that copies can be compared."""
    numbers = count(1)

    def new_id() -> str:
        return hashlib.sha256(f"{session_id} {next(numbers)}".encode()).hexdigest()[:32]

    return new_id


def usable_id(source: FileSource) -> str | None:
    """The id it has, if a conversation here may have it."""
    session_id = source.session_id
    return session_id if session_id is not None and is_session_id(session_id) else None
