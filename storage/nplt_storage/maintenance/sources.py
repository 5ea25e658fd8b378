"""Files to import or export: conversations' files, exported documents, older documents.

An exported document is the conversation's file, byte for byte; its blobs and
attachments follow in the last line, one item each:

    ],"updated_at":"…",…,"epoch_offset":131,"beside":[
    {"blob":"<blob id>","text":"…"}
    ,{"file":"<file id>","base64":"…"}
    ]}

An item has no checksum of its own: the entry that names it has its SHA-256.
"""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import anyio
import anyio.to_thread
import orjson
from msgspec import Struct, field

from nplt_storage.attachments import end_copy, mark_copy
from nplt_storage.codec import BadLine, decode_verified, encode_line
from nplt_storage.copying import BringAttachments, Source, read_blob_whole, stand_ins
from nplt_storage.entries import AttachmentEntry, BlobReference, Entry, ToolResultsEntry
from nplt_storage.errors import BadEntry, StorageError, StorageUnavailable
from nplt_storage.file_system import (
    FileOperations,
    make_private_directory,
    read_all,
    write_new_file,
)
from nplt_storage.files.examine import (
    FOREIGN_BYTES_MAX,
    LineTooLong,
    bounded,
    our_header,
    read_beginning,
)
from nplt_storage.files.foreign import (
    ForeignConversation,
    JsonDocument,
    NotForeign,
    as_it_was_written,
    named_id,
    read_relaid,
    relaid_in,
)
from nplt_storage.files.format import (
    BadHeader,
    Damage,
    Header,
    LaterFormat,
    Line,
    LineReader,
    Read,
    Segment,
    blobs_of,
    decode_closing,
    empty_tail,
    encode_header,
    segments_forward,
    session_id_of,
    survey,
    verified,
)
from nplt_storage.ids import is_file_id, is_session_id
from nplt_storage.store import Origin

ItemKey: TypeAlias = tuple[str, str]
"""`blob` or `file`, and its id."""
Span: TypeAlias = tuple[int, int]
"""Where it begins, and how many bytes it has."""
ReadAttachment: TypeAlias = Callable[[AttachmentEntry], Awaitable[bytes | None]]

_BESIDE: Final = b',"beside":[\n'
_END: Final = b"]}\n"
_CLOSING_BYTES_MAX: Final = 256
_ITEM: Final = re.compile(rb',?\{"(blob|file)":"([A-Za-z0-9_-]{1,200})","(?:text|base64)":"')


class BadDocument(Exception):
    """Not as `export_document` wrote it."""


class Missing(Struct):
    """What the conversation names, and nobody has any more."""

    ids: list[str] = field(default_factory=list)


async def export_document(
    source: Source,
    session_id: str,
    *,
    read_attachment: ReadAttachment | None = None,
    missing: Missing | None = None,
) -> AsyncIterator[bytes]:
    """In pieces; `missing` is told what could not be put into it."""
    origin = await source.origin(session_id)
    header = Header(
        session_id=session_id, created_at=origin.created_at, user=origin.user, extra=origin.extra
    )
    first = encode_header(header)
    yield first
    lines = _Lines(header, len(first))
    async for batch in source.entries(session_id):
        yield lines.encode(batch)
    end, count = lines.tail.closing_line, 0
    async for key, data in _side_items(source, session_id, lines, read_attachment):
        if data is None:
            if missing is not None:
                missing.ids.append(key[1])
        else:
            yield (b"," if count else end[:-2] + _BESIDE) + encode_item(key, data) + b"\n"
            count += 1
    yield _END if count else end


class _Lines:
    """The entries as lines, what the closing line says of them, and what they name."""

    def __init__(self, header: Header, first: int) -> None:
        self.tail = empty_tail(header.created_at, first)
        self.blobs: dict[str, BlobReference] = {}
        self.attachments: dict[str, AttachmentEntry] = {}

    def encode(self, entries: Sequence[Entry]) -> bytes:
        if self.tail.end == self.tail.first and entries and entries[0].seq > 1:
            entries = [*stand_ins(entries[0]), *entries[1:]]
        return b"".join(map(self._line, entries))

    def _line(self, entry: Entry) -> bytes:
        added, self.tail = self.tail.extended(entry)
        if isinstance(entry, AttachmentEntry) and entry.redacted_at is None:
            self.attachments[entry.file_id] = entry
        elif isinstance(entry, ToolResultsEntry):
            named = [result.blob for result in entry.results if result.blob is not None]
            self.blobs |= {blob.blob_id: blob for blob in named}
        return added


async def _side_items(
    source: Source, session_id: str, lines: _Lines, read_attachment: ReadAttachment | None
) -> AsyncIterator[tuple[ItemKey, bytes | None]]:
    for blob in lines.blobs.values():
        yield ("blob", blob.blob_id), await read_blob_whole(source, session_id, blob)
    if read_attachment is not None:
        for attachment in lines.attachments.values():
            yield ("file", attachment.file_id), await read_attachment(attachment)


def encode_item(key: ItemKey, data: bytes) -> bytes:
    kind, item_id = key
    if kind == "blob":
        try:
            return orjson.dumps({kind: item_id, "text": data.decode()})
        except UnicodeDecodeError:
            pass
    return orjson.dumps({kind: item_id, "base64": base64.b64encode(data).decode()})


def decode_item(line: bytes) -> bytes:
    try:
        item = orjson.loads(line.removeprefix(b","))
        if "text" in item:
            return str(item["text"]).encode()
        return base64.b64decode(item["base64"], validate=True)
    except (orjson.JSONDecodeError, binascii.Error, KeyError, TypeError) as error:
        raise BadDocument(f"something kept beside the entries can't be read: {error}") from error


def index_items(read: Read, start: int, size: int) -> dict[ItemKey, Span] | None:
    """Where each item is; `start` is where the closing line should begin. `None`:
    there is no closing line, or not the whole of one."""
    segments = segments_forward(read, start, size)
    closing = next(segments, Segment(start, b""))
    if decode_closing(closing.data) is not None:
        return {} if start + len(closing.data) == size else None
    if not closing.data.endswith(_BESIDE):
        return None
    if decode_closing(closing.data.removesuffix(_BESIDE) + b"}\n") is None:
        return None
    return _items_in(segments, size)


def _items_in(segments: Iterator[Segment], size: int) -> dict[ItemKey, Span]:
    found: dict[ItemKey, Span] = {}
    for start, data in segments:
        if data == _END and start + len(data) == size:
            return found
        parts = _ITEM.match(data)
        if parts is None or not data.endswith(b'"}\n'):
            raise BadDocument(f"what is kept beside the entries is damaged at byte {start}")
        found[parts[1].decode(), parts[2].decode()] = (start, len(data))
    raise BadDocument("it breaks off among what is kept beside the entries")


# ------------------------------------------------------------------------------
# Copying attachments from the imported file
#
# If the copy fails, they are removed again.


@asynccontextmanager
async def bringing_into(
    files: Path, new_id: str, read: ReadAttachment
) -> AsyncIterator[BringAttachments]:
    """`files` is the target's directory of attachments. The block is the copying."""
    folder = files / new_id
    brought: list[Path] = []

    def keep(file_id: str, data: bytes) -> None:
        path = folder / file_id
        try:
            mark_copy(files, new_id)
            make_private_directory(folder)
            if not path.exists():  # else it is not ours to remove again
                brought.append(path)
            write_new_file(FileOperations(), path, data)
        except OSError as error:
            raise StorageUnavailable(f"an attachment can't be kept: {error.strerror}") from error

    async def bring(entries: Sequence[AttachmentEntry]) -> Sequence[str]:
        missing: list[str] = []
        for entry in entries:
            data = await read(entry) if is_file_id(entry.file_id) else None
            if data is None:
                missing.append(entry.file_id)
            else:
                await anyio.to_thread.run_sync(keep, entry.file_id, data)
        return missing

    def remove() -> None:
        with suppress(OSError):  # whoever failed before has more to say
            for path in brought:
                path.unlink(missing_ok=True)
            folder.rmdir()  # if nothing else is in it

    try:
        yield bring
    except BaseException:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(remove)
        raise
    finally:
        end_copy(files, new_id, is_there=True)  # what was brought, and only that, is removed


# ------------------------------------------------------------------------------
# Sources to copy from; only read
#
#     ours         the file of a data directory, with blobs and attachments beside it, or
#                  an exported document that holds them, also if it was reformatted
#     older        one JSON document in the older shape
#
# Nothing is repaired: a torn end is left out, as recovery would do, and damage is an
# error. A file of a later version with fields this one does not know is refused, because
# a copy would lose them.

_BATCH_ENTRIES: Final = 500
_LOOKED_AT_BYTES: Final = 4096
_NOT_AS_WRITTEN: Final = (
    "this is one of our files, but its first line is damaged, or its layout was changed"
)
_UNREADABLE = (BadDocument, BadHeader, BadLine, Damage, LaterFormat, NotForeign, LineTooLong)


class InOneGo(Struct, frozen=True, kw_only=True):
    """How large what is read in one go may be: another's document, or one of ours that was
    laid out anew. As objects it takes many times the memory it takes on disk."""

    bytes_max: int = FOREIGN_BYTES_MAX
    values_max: int | None = None
    """By the brackets and commas there are, those in texts included."""
    messages_max: int | None = None
    """Calls of tools count too."""


ANY_SIZE: Final = InOneGo()


class _LaidOutAnew(Exception):
    """What is kept beside the entries is not in lines of its own."""


class NotAConversation(StorageError):
    """Nothing in this file that could be copied; says why, as a sentence."""


class FileSource(Source, Protocol):
    """One conversation; the ids it is asked for are not looked at."""

    session_id: str | None
    """The id the document names, if any; it may be taken already."""

    async def attachment(self, entry: AttachmentEntry) -> bytes | None:
        """`None` unless it is there, as it was."""
        ...


@contextmanager
def opened_source(path: Path, limits: InOneGo = ANY_SIZE) -> Iterator[FileSource]:
    """Raises `NotAConversation`. Blocks while the file is looked through once."""
    files = FileOperations()
    try:
        descriptor = files.open(path, os.O_RDONLY)
    except OSError as error:
        raise NotAConversation(_why_not(error)) from error

    def read(offset: int, length: int) -> bytes:
        """Says of reading that it failed: whoever copies from it has other troubles too."""
        try:
            return read_all(files, descriptor, length, offset)
        except OSError as error:
            raise NotAConversation(f"it can't be read: {error.strerror}") from error

    try:
        yield _source_of(bounded(read), files.size(descriptor), path, limits)
    except _UNREADABLE as error:
        raise NotAConversation(str(error)) from error
    finally:
        files.close(descriptor)


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
    except (BadHeader, LineTooLong):
        if size > limits.bytes_max:
            most = f"of other documents at most {limits.bytes_max >> 20} MiB are read"
            raise NotForeign(f"its first line is not as we write it, and {most}") from None
        data = read(0, size)
        if limits.values_max is not None and _values_in(data) > limits.values_max:
            raise NotForeign(f"more than {limits.values_max:,} values") from None
        return _source_in(data, path, limits)
    try:
        return NativeFile(read, size, header, first, path)
    except _LaidOutAnew:
        written = None
        if size <= limits.bytes_max:
            written = as_it_was_written(read_relaid(read(0, size)))
        if written is None:
            raise BadDocument("what is kept beside the entries can't be read") from None
        return _written_anew(written, path)


def _source_in(data: bytes, path: Path, limits: InOneGo) -> FileSource:
    with _saying_whose(data):
        document = JsonDocument(data)
    written = as_it_was_written(relaid_in(document))
    if written is not None:
        return _written_anew(written, path)
    most = limits.messages_max
    if most is not None and document.count + document.calls > most:
        raise NotForeign(f"more than {most:,} messages and calls")
    with _saying_whose(data):
        return ForeignFile(document, path)


@contextmanager
def _saying_whose(data: bytes) -> Iterator[None]:
    try:
        yield
    except NotForeign:
        if b'"format"' in data[:_LOOKED_AT_BYTES] and b'"head_seq"' in data[-_LOOKED_AT_BYTES:]:
            raise NotForeign(_NOT_AS_WRITTEN) from None
        raise


def _values_in(data: bytes) -> int:
    return sum(map(data.count, (b"{", b"[", b",")))


def _written_anew(document: bytes, path: Path) -> NativeFile:
    read = _from_memory(document)
    header, first = our_header(read, len(document))
    return NativeFile(read, len(document), header, first, path)


def _from_memory(data: bytes) -> Read:
    return lambda offset, length: data[offset : offset + length]


class NativeFile:
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
            return read_beginning(path, length)
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
    if _BESIDE.rstrip() in read(end, _CLOSING_BYTES_MAX):
        raise _LaidOutAnew
    return end, {}


def _entry(line: Line) -> Entry:
    entry = decode_verified(line.data)
    if encode_line(entry) != line.data:
        raise BadEntry(
            f"entry {line.seq} holds something this version does not know, and would lose"
        )
    return entry


class ForeignFile:
    def __init__(self, document: JsonDocument, path: Path) -> None:
        named = named_id(document.members or {})
        self.session_id = named if named is not None else session_id_of(path.name)
        self._conversation = ForeignConversation(document, self.session_id or "")
        header = self._conversation.header
        self._origin = Origin(user=header.user, created_at=header.created_at, extra=header.extra)

    async def origin(self, session_id: str) -> Origin:
        return self._origin

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        known = self._conversation.entries(new_id=_same_ids(self.session_id or ""))
        entries = islice(known, max(after, 0), through)

        def batch() -> list[Entry]:
            return list(islice(entries, _BATCH_ENTRIES))

        while found := await anyio.to_thread.run_sync(batch):
            yield found

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        raise BadEntry(f"there is no blob {blob_id!r}")

    async def attachment(self, entry: AttachmentEntry) -> bytes | None:
        return None


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
