"""Files from which a conversation can be copied. They are only read.

    NativeFile   the file of a data directory, with blobs and attachments beside it, or
                 an exported document that holds them, also if it was reformatted
    ForeignFile  one JSON document of another program

Nothing is repaired: a torn end is left out, as recovery would do, and damage is an error. A file
of a later version with fields this one does not know is refused, because a copy would lose them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from msgspec import Struct

from nplt_storage.codec import BadLine, decode_verified, encode_line
from nplt_storage.entries import AttachmentEntry, Entry
from nplt_storage.errors import BadEntry, StorageError
from nplt_storage.file_system import Disk, open_given, read_all, read_beginning
from nplt_storage.files.foreign import ForeignConversation, named_id
from nplt_storage.files.format import (
    BadHeader,
    Damage,
    FileEntries,
    Header,
    LaterFormat,
    LineTooLong,
    Read,
    Segment,
    blobs_of,
    decode_closing,
    segments_forward,
    session_id_of,
    survey,
    verified,
)
from nplt_storage.files.json_document import JsonDocument, NotForeign
from nplt_storage.files.reformatted import as_it_was_written, read_reformatted, reformatted_in
from nplt_storage.files.salvage import FOREIGN_BYTES_MAX, our_header
from nplt_storage.ids import is_file_id, is_session_id
from nplt_storage.maintenance.export import (
    ITEM_BYTES_MAX,
    OTHER_MEMBERS,
    ItemKey,
    Span,
    decode_item,
    items_in,
)
from nplt_storage.store import Origin

_CLOSING_BYTES_MAX: Final = 256
_BATCH_ENTRIES: Final = 500
_LOOKED_AT_BYTES: Final = 4096
_NOT_AS_WRITTEN: Final = (
    "this is one of our files, but its first line is damaged, or its layout was changed"
)
_UNREADABLE = (BadHeader, BadLine, Damage, LaterFormat, NotForeign, LineTooLong)


class InOneGo(Struct, frozen=True, kw_only=True):
    """Limits for a document that is read at once: another program's, or one of ours that was
    reformatted. As objects it takes many times the memory it takes on disk."""

    bytes_max: int = FOREIGN_BYTES_MAX
    values_max: int | None = None
    """The number of brackets and commas, including those in texts."""
    messages_max: int | None = None
    """The number of messages and tool calls."""


ANY_SIZE: Final = InOneGo()


class _LaidOutAgain(Exception):
    """The blobs and attachments are not on lines of their own."""


class NotAConversation(StorageError):
    """The file holds no conversation that could be copied; the message says why."""


class FileSource:
    """One conversation; the ids passed to its methods are ignored."""

    def __init__(self, session_id: str | None, header: Header) -> None:
        self.session_id = session_id
        """The id in the document, if any; it may be taken already."""
        self._header = header

    @property
    def usable_id(self) -> str | None:
        """The document's id, if it is valid here."""
        return self.session_id if is_session_id(self.session_id or "") else None

    async def origin(self, session_id: str) -> Origin:
        header = self._header
        return Origin(user=header.user, created_at=header.created_at, extra=header.extra)

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        found = (
            entry
            for entry in self._all()
            if entry.seq > after and (through is None or entry.seq <= through)
        )
        while batch := await anyio.to_thread.run_sync(lambda: list(islice(found, _BATCH_ENTRIES))):
            yield batch

    def _all(self) -> Iterator[Entry]:
        raise NotImplementedError

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        raise BadEntry(f"there is no blob {blob_id!r}")

    async def attachment(self, entry: AttachmentEntry) -> bytes | None:
        """The attachment; `None` if it is missing or has changed."""
        return None


@contextmanager
def opened_source(
    path: Path, limits: InOneGo = ANY_SIZE, *, data_dir: Path | None = None
) -> Iterator[FileSource]:
    """Opens a file to copy from. Raises `NotAConversation`. Blocks while the file is read once. A
    file outside a `data_dir` was named by a person: it may be a link, and belong to anybody."""
    files = Disk(data_dir)
    try:
        if data_dir is None:
            path = path.resolve()
            descriptor = open_given(path)
        else:
            descriptor = files.open(path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise NotAConversation("there is no such file") from error
    except IsADirectoryError as error:
        raise NotAConversation("it is a directory") from error
    except OSError as error:
        raise NotAConversation(f"it can't be read: {error.strerror}") from error

    def read(offset: int, length: int) -> bytes:
        """Translates read errors, so that a copy can tell them from its other errors."""
        try:
            return read_all(files, descriptor, length, offset)
        except OSError as error:
            raise NotAConversation(f"it can't be read: {error.strerror}") from error

    try:
        yield _source_of(read, files.size(descriptor), path, limits)
    except _UNREADABLE as error:
        raise NotAConversation(str(error)) from error
    finally:
        files.close(descriptor)


def _source_of(read: Read, size: int, path: Path, limits: InOneGo) -> FileSource:
    if size == 0:
        raise NotForeign("it is empty")
    try:
        header, first = our_header(read, size)
    except (BadHeader, LineTooLong):
        if size > limits.bytes_max:
            most = f"of other documents at most {limits.bytes_max >> 20} MiB are read"
            raise NotForeign(f"its first line is not as we write it, and {most}") from None
        data = read(0, size)
        most_values = limits.values_max
        if most_values is not None and sum(map(data.count, (b"{", b"[", b","))) > most_values:
            raise NotForeign(f"more than {most_values:,} values") from None
        return _source_in(data, path, limits)
    try:
        return NativeFile(read, size, header, first, path)
    except _LaidOutAgain:
        written = None
        if size <= limits.bytes_max:
            written = as_it_was_written(read_reformatted(read(0, size)))
        if written is None:
            raise Damage("what is kept beside the entries can't be read") from None
        return _rewritten(written, path)


def _source_in(data: bytes, path: Path, limits: InOneGo) -> FileSource:
    try:
        document = JsonDocument(data)
        written = as_it_was_written(reformatted_in(document))
        if written is not None:
            return _rewritten(written, path)
        most = limits.messages_max
        if most is None or document.count + document.calls <= most:
            return ForeignFile(document, path)
    except NotForeign:
        if b'"format"' in data[:_LOOKED_AT_BYTES] and b'"head_seq"' in data[-_LOOKED_AT_BYTES:]:
            raise NotForeign(_NOT_AS_WRITTEN) from None
        raise
    raise NotForeign(f"more than {most:,} messages and calls")


def _rewritten(document: bytes, path: Path) -> NativeFile:
    def read(offset: int, length: int) -> bytes:
        return document[offset : offset + length]

    header, first = our_header(read, len(document))
    return NativeFile(read, len(document), header, first, path)


class NativeFile(FileSource):
    def __init__(self, read: Read, size: int, header: Header, first: int, path: Path) -> None:
        super().__init__(header.session_id, header)
        self._read = read
        self._first = first
        self._path = path
        self._end, self._items = _index(read, size, first)

    def _all(self) -> Iterator[Entry]:
        for line in FileEntries(self._read, first=self._first, end=self._end).lines():
            entry = decode_verified(line.data)
            if encode_line(entry) != line.data:
                raise BadEntry(
                    f"entry {line.seq} holds something this version does not know, and would lose"
                )
            yield entry

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        path = blobs_of(self._path) / Path(blob_id).name
        data = await anyio.to_thread.run_sync(self._item, ("blob", blob_id), path, offset + length)
        if data is None:
            raise BadEntry(f"there is no blob {blob_id!r}")
        return data[offset:][:length]

    async def attachment(self, entry: AttachmentEntry) -> bytes | None:
        if not is_file_id(entry.file_id) or self.usable_id is None:
            return None
        path = self._path.parent.parent / "files" / str(self.session_id) / entry.file_id
        key = ("file", entry.file_id)
        data = await anyio.to_thread.run_sync(self._item, key, path, entry.size + 1)
        if data is None or hashlib.sha256(data).hexdigest() != entry.sha256:
            return None
        return data

    def _item(self, key: ItemKey, path: Path, length: int) -> bytes | None:
        """Reads a blob or attachment from the document, or from the folder next to it."""
        if span := self._items.get(key):
            return decode_item(self._read(*span))
        try:
            return read_beginning(Disk(self._path.parent.parent), path, length)
        except (OSError, ValueError):
            return None


def _index(read: Read, size: int, first: int) -> tuple[int, dict[ItemKey, Span]]:
    """The end of the lines, and the blobs and attachments after them. Raises for damage."""
    end, due = first, 1
    for segment in segments_forward(read, first, size, bytes_max=ITEM_BYTES_MAX):
        try:
            line = verified(segment, first=first)
        except BadLine:
            break
        if line.seq != due:
            raise BadLine(f"line {line.seq} is where line {due} should be")
        end, due = line.end, due + 1
    segments = segments_forward(read, end, size, bytes_max=ITEM_BYTES_MAX)
    closing = next(segments, Segment(end, b"")).data
    if decode_closing(closing) is not None and end + len(closing) == size:
        return end, {}
    if closing.endswith(OTHER_MEMBERS) and decode_closing(
        closing.removesuffix(OTHER_MEMBERS) + b"}\n"
    ):
        return end, items_in(segments, size)
    if survey(read, size).end != end:
        raise BadLine(f"it is damaged at byte {end}")
    if OTHER_MEMBERS.rstrip() in read(end, _CLOSING_BYTES_MAX):
        raise _LaidOutAgain
    return end, {}


class ForeignFile(FileSource):
    def __init__(self, document: JsonDocument, path: Path) -> None:
        named = named_id(document.members or {})
        session_id = named if named is not None else session_id_of(path.name)
        self._conversation = ForeignConversation(document, session_id or "")
        super().__init__(session_id, self._conversation.header)

    def _all(self) -> Iterator[Entry]:
        """All entries, with the same ids on every read, so that copies can be compared."""
        numbers = count(1)

        def new_id() -> str:
            name = f"{self.session_id or ''} {next(numbers)}"
            return hashlib.sha256(name.encode()).hexdigest()[:32]

        return self._conversation.entries(new_id=new_id)


@asynccontextmanager
async def opened(path: Path, limits: InOneGo = ANY_SIZE) -> AsyncIterator[FileSource]:
    """Opens the file in a thread, because reading it may take long."""
    with ExitStack() as stack:
        yield await anyio.to_thread.run_sync(stack.enter_context, opened_source(path, limits))
