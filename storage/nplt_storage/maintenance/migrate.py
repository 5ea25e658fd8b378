"""Exports, imports and migrates conversations.

Each is copied whole or not at all. A migration keeps the ids, compares each copy entry
by entry, skips what is there already, so that an interrupted run can be repeated, and
reports what can't be copied. An imported file keeps its id if that is free, else it gets
a new one; nothing is done if the conversation with that id already holds all of it.

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
import hashlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import Final, Literal, TypeAlias

import anyio
import anyio.to_thread
import orjson
from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.attachments import end_copy, mark_copy
from nplt_storage.codec import BadLine, decode_verified, encode_line
from nplt_storage.copying import (
    BringAttachments,
    Source,
    copy_conversation,
    read_blob_whole,
    stand_ins,
)
from nplt_storage.entries import (
    ApprovalEntry,
    AttachmentEntry,
    BlobReference,
    CheckpointEntry,
    Entry,
    ForkedEntry,
    ToolResultsEntry,
)
from nplt_storage.errors import (
    BadEntry,
    ConversationExists,
    ConversationNotFound,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.file_system import (
    Disk,
    open_given,
    read_all,
    read_beginning,
    write_new_file,
)
from nplt_storage.files.examination import TurnPairing
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
    by_session_id,
    decode_closing,
    empty_tail,
    encode_header,
    segments_forward,
    session_id_of,
    survey,
    verified,
)
from nplt_storage.files.json_document import JsonDocument, NotForeign
from nplt_storage.files.reformatted import as_it_was_written, read_reformatted, reformatted_in
from nplt_storage.files.salvage import FOREIGN_BYTES_MAX, our_header
from nplt_storage.ids import is_file_id, is_session_id, new_entry_id, new_session_id
from nplt_storage.store import ConversationStore, Origin

ItemKey: TypeAlias = tuple[str, str]
"""`blob` or `file`, and its id."""
Span: TypeAlias = tuple[int, int]
"""The offset and length in bytes."""
ReadAttachment: TypeAlias = Callable[[AttachmentEntry], Awaitable[bytes | None]]

_BESIDE: Final = b',"beside":[\n'
_END: Final = b"]}\n"
_CLOSING_BYTES_MAX: Final = 256
_ITEM_BYTES_MAX: Final = 256 * 1024 * 1024
"""Blobs and attachments may be longer than a line."""
_ITEM: Final = re.compile(rb',?\{"(blob|file)":"([A-Za-z0-9_-]{1,200})","(?:text|base64)":"')


async def export_document(
    source: Source,
    session_id: str,
    *,
    read_attachment: ReadAttachment | None = None,
    missing: list[str] | None = None,
) -> AsyncIterator[bytes]:
    """Yields the document in pieces. Blobs and attachments that the conversation names and that
    can't be found are added to `missing`."""
    origin = await source.origin(session_id)
    header = Header(
        session_id=session_id, created_at=origin.created_at, user=origin.user, extra=origin.extra
    )
    first = encode_header(header)
    yield first
    tail = empty_tail(origin.created_at, len(first))
    blobs: dict[str, BlobReference] = {}
    attachments: dict[str, AttachmentEntry] = {}
    async for batch in source.entries(session_id):
        lines: list[bytes] = []
        is_trimmed = tail.end == tail.first and batch and batch[0].seq > 1
        for entry in [*stand_ins(batch[0]), *batch[1:]] if is_trimmed else batch:
            line, tail = tail.extended(entry)
            lines.append(line)
            if isinstance(entry, AttachmentEntry) and entry.redacted_at is None:
                attachments[entry.file_id] = entry
            elif isinstance(entry, ToolResultsEntry):
                named = [result.blob for result in entry.results if result.blob is not None]
                blobs |= {blob.blob_id: blob for blob in named}
        yield b"".join(lines)

    async def items() -> AsyncIterator[tuple[ItemKey, bytes | None]]:
        for blob in blobs.values():
            yield ("blob", blob.blob_id), await read_blob_whole(source, session_id, blob)
        if read_attachment is not None:
            for attachment in attachments.values():
                yield ("file", attachment.file_id), await read_attachment(attachment)

    end, count = tail.closing_line, 0
    async for key, data in items():
        if data is None:
            if missing is not None:
                missing.append(key[1])
        else:
            yield (b"," if count else end[:-2] + _BESIDE) + encode_item(key, data) + b"\n"
            count += 1
    yield _END if count else end


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
        raise Damage(f"something kept beside the entries can't be read: {error}") from error


def _items_in(segments: Iterator[Segment], size: int) -> dict[ItemKey, Span]:
    found: dict[ItemKey, Span] = {}
    for start, data in segments:
        if data == _END and start + len(data) == size:
            return found
        parts = _ITEM.match(data)
        if parts is None or not data.endswith(b'"}\n'):
            raise Damage(f"what is kept beside the entries is damaged at byte {start}")
        found[parts[1].decode(), parts[2].decode()] = (start, len(data))
    raise Damage("it breaks off among what is kept beside the entries")


@asynccontextmanager
async def bringing_into(
    files: Path | None, new_id: str, read: ReadAttachment | None
) -> AsyncIterator[BringAttachments | None]:
    """Brings attachments to `files`, the target's directory of them, if it has one. The body of the
    `with` block makes the copy; if that fails, they are removed again."""
    if files is None or read is None:
        yield None
        return
    folder, disk = files / new_id, Disk(files.parent)
    brought: list[Path] = []

    def keep(file_id: str, data: bytes) -> None:
        path = folder / file_id
        try:
            mark_copy(files, new_id)
            disk.make_directory(folder)
            if disk.find(path) is None:  # else it is not ours to remove again
                brought.append(path)
            write_new_file(disk, path, data)
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
                disk.remove(path)
            disk.remove_directory(folder)  # if nothing else is in it

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


class _LaidOutAnew(Exception):
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
    except _LaidOutAnew:
        written = None
        if size <= limits.bytes_max:
            written = as_it_was_written(read_reformatted(read(0, size)))
        if written is None:
            raise Damage("what is kept beside the entries can't be read") from None
        return _written_anew(written, path)


def _source_in(data: bytes, path: Path, limits: InOneGo) -> FileSource:
    try:
        document = JsonDocument(data)
        written = as_it_was_written(reformatted_in(document))
        if written is not None:
            return _written_anew(written, path)
        most = limits.messages_max
        if most is None or document.count + document.calls <= most:
            return ForeignFile(document, path)
    except NotForeign:
        if b'"format"' in data[:_LOOKED_AT_BYTES] and b'"head_seq"' in data[-_LOOKED_AT_BYTES:]:
            raise NotForeign(_NOT_AS_WRITTEN) from None
        raise
    raise NotForeign(f"more than {most:,} messages and calls")


def _written_anew(document: bytes, path: Path) -> NativeFile:
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
    for segment in segments_forward(read, first, size, bytes_max=_ITEM_BYTES_MAX):
        try:
            line = verified(segment, first=first)
        except BadLine:
            break
        if line.seq != due:
            raise BadLine(f"line {line.seq} stands where {due} should")
        end, due = line.end, due + 1
    segments = segments_forward(read, end, size, bytes_max=_ITEM_BYTES_MAX)
    closing = next(segments, Segment(end, b"")).data
    if decode_closing(closing) is not None and end + len(closing) == size:
        return end, {}
    if closing.endswith(_BESIDE) and decode_closing(closing.removesuffix(_BESIDE) + b"}\n"):
        return end, _items_in(segments, size)
    if survey(read, size).end != end:
        raise BadLine(f"it is damaged at byte {end}")
    if _BESIDE.rstrip() in read(end, _CLOSING_BYTES_MAX):
        raise _LaidOutAnew
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


Outcome: TypeAlias = Literal["copied", "there", "left"]


class Moved(Struct, frozen=True, kw_only=True):
    session_id: str
    outcome: Outcome
    says: str


OpenedSource: TypeAlias = tuple[Source, ReadAttachment | None]


class DirectoryPlace:
    """The files of a data directory, read without locking it."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._history = data_dir / "history"
        try:
            names = [file.name for file in Disk(data_dir).found_in(self._history)]
        except OSError as error:
            reason = f"{data_dir} is no data directory: {error.strerror} (history)"
            raise StorageUnavailable(reason) from error
        self._names = by_session_id(names)

    def ids(self) -> list[str]:
        return sorted(self._names)

    @contextmanager
    def open(self, session_id: str) -> Iterator[OpenedSource]:
        if session_id not in self._names:
            raise ConversationNotFound(session_id)
        name, *others = self._names[session_id]
        if others:
            raise NotAConversation("there is more than one file for it")
        with opened_source(self._history / name, data_dir=self._data_dir) as source:
            if source.session_id != session_id:
                raise NotAConversation(f"the file says it is conversation {source.session_id!r}")
            yield source, source.attachment


class StorePlace:
    """An open store, with ids from the caller."""

    def __init__(self, store: ConversationStore, ids: list[str]) -> None:
        self._store = store
        self._ids = ids

    def ids(self) -> list[str]:
        return sorted(self._ids)

    @contextmanager
    def open(self, session_id: str) -> Iterator[OpenedSource]:
        yield self._store, None


Place: TypeAlias = DirectoryPlace | StorePlace


async def migrate(
    place: Place, target: ConversationStore, *, files: Path | None = None
) -> AsyncIterator[Moved]:
    """Copies all conversations; `files` is the target's directory of attachments, if it has one."""
    for session_id in place.ids():
        try:
            with place.open(session_id) as (source, read):
                moved = await _move(source, read, session_id, target, files)
        except StorageError as error:
            moved = Moved(session_id=session_id, outcome="left", says=str(error))
        yield moved


async def _move(
    source: Source,
    read: ReadAttachment | None,
    session_id: str,
    target: ConversationStore,
    files: Path | None,
) -> Moved:
    if await target.row(session_id) is not None:
        return await _met(source, session_id, target)
    try:
        async with bringing_into(files, session_id, read) as bring:
            copied = await copy_conversation(
                source, session_id, target, session_id, bring_attachments=bring
            )
    except ConversationExists:  # another process was quicker
        return await _met(source, session_id, target)
    wrong = await difference(source, target, session_id)
    if wrong is not None:
        await target.delete(session_id)
        says = f"the copy was not the same and was deleted again: {wrong}"
        return Moved(session_id=session_id, outcome="left", says=says)
    says = f"{copied.head_seq} entries"
    if copied.missing:
        says += f"; missing at the source: {', '.join(copied.missing)}"
    return Moved(session_id=session_id, outcome="copied", says=says)


async def _met(source: Source, session_id: str, target: ConversationStore) -> Moved:
    wrong = await difference(source, target, session_id)
    if wrong is None:
        return Moved(session_id=session_id, outcome="there", says="it is there already")
    says = f"another conversation with this id is there: {wrong}"
    return Moved(session_id=session_id, outcome="left", says=says)


async def difference(
    source: Source, target: Source, session_id: str, *, origin: Origin | None = None
) -> str | None:
    """The first difference, or `None`; the target may have grown since. `origin` is the expected
    origin of the target, if not the source's."""
    before, after = origin or await source.origin(session_id), await target.origin(session_id)
    if before != after:
        return "its user, the time it began or what was said of it differ"
    copies: AsyncIterator[Entry] | None = None
    async for entry in _singly(source, session_id, after=0):
        if copies is None:
            if isinstance(entry, CheckpointEntry) and entry.seq > 1:
                # It stands for what was trimmed; the target may say that in its own way.
                copies = _singly(target, session_id, after=entry.seq)
                continue
            copies = _singly(target, session_id, after=0)
        copy = await anext(copies, None)
        if copy is None or _comparable(copy) != _comparable(entry):
            return f"entry {entry.seq} differs" if copy else f"entry {entry.seq} is not there"
    return None


async def _singly(source: Source, session_id: str, *, after: int) -> AsyncIterator[Entry]:
    async for batch in source.entries(session_id, after=after):
        for entry in batch:
            yield entry


def _comparable(entry: Entry) -> Entry:
    """The entry without blob ids, which each store chooses itself."""
    if not isinstance(entry, ToolResultsEntry):
        return entry
    results = (
        result if result.blob is None else replace(result, blob=replace(result.blob, blob_id=""))
        for result in entry.results
    )
    return replace(entry, results=tuple(results))


_TIMEOUT_SECONDS: Final = 30.0


def ids_in_redis(url: str, key_prefix: str) -> list[str]:
    """The ids of all conversations in a Redis. Only a migration scans the keys of a database, in
    small steps. Blocks."""
    # An extra: whoever has no Redis does not need it.
    import redis

    from nplt_storage.redis.connection import RedisConnection

    found: set[str] = set()
    connection = RedisConnection(url, timeout_seconds=_TIMEOUT_SECONDS)
    try:
        for key in connection.keys_matching(_as_it_is(key_prefix) + "*:meta"):
            name = bytes(key).decode("utf-8", "replace")
            session_id = name.removeprefix(key_prefix).removesuffix(":meta")
            if session_id.startswith("{"):  # the present layout
                session_id = session_id.removeprefix("{").removesuffix("}")
            if is_session_id(session_id):
                found.add(session_id)
    except redis.RedisError as error:
        raise StorageUnavailable(f"Redis can't be read: {type(error).__name__}") from error
    finally:
        connection.close()
    return sorted(found)


def _as_it_is(text: str) -> str:
    """A glob pattern that matches exactly this text."""
    return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in text)


class WithoutOpenTurns:
    """A `Source` that is read once from beginning to end. A document may hold turns that had not
    ended, and tool approvals for further calls. Neither may take effect here, so one more entry
    ends them, as in a fork."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        pairing, has_decisions = TurnPairing(), False
        last: Entry | None = None
        async for batch in self._source.entries(session_id, after=after, through=through):
            for last in batch:
                pairing.add(last)
                if isinstance(last, ApprovalEntry | ForkedEntry):
                    has_decisions = isinstance(last, ApprovalEntry)
            yield batch
        if last is not None and (has_decisions or pairing.unfinished):
            yield [
                ForkedEntry(
                    seq=last.seq + 1,
                    id=new_entry_id(),
                    timestamp=last.timestamp,  # lists shall have it where it was
                    from_session_id=session_id,
                    at_seq=last.seq,
                )
            ]

    async def origin(self, session_id: str) -> Origin:
        return await self._source.origin(session_id)

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        return await self._source.blob(session_id, blob_id, offset, length)


class Imported(Struct, frozen=True, kw_only=True):
    session_id: str
    entries: int
    taken_id: str | None = None
    """The id it had, if another conversation here has it."""
    missing: tuple[str, ...] = ()
    was_there: bool = False
    """The same conversation is already here, so nothing was copied."""


async def import_file(
    store: ConversationStore,
    path: Path,
    *,
    files: Path | None,
    user: str | None = None,
    new_id: Callable[[], str] = new_session_id,
) -> Imported:
    """Imports one file. `user` is the new owner, if not the one in the file; `files` is the
    directory of attachments, if there is one. Raises `StorageError`."""
    async with opened(path) as source:
        return await import_source(store, source, files=files, user=user, new_id=new_id)


async def import_source(  # noqa: PLR0913
    store: ConversationStore,
    source: FileSource,
    *,
    files: Path | None,
    user: str | None = None,
    new_id: Callable[[], str] = new_session_id,
    id_here: Callable[[str], Awaitable[str]] | None = None,
    is_taken_elsewhere: Callable[[str], Awaitable[bool]] | None = None,
) -> Imported:
    """Imports a conversation under its own id or, if that is taken, a new one. `id_here` gives the
    id for a document that has one; without it, the document's own counts. `is_taken_elsewhere`
    is asked about ids that this store does not know."""
    own_id = source.usable_id
    if own_id is not None and id_here is not None:
        own_id = await id_here(own_id)
    origin = await source.origin(own_id or "")
    origin = origin if user is None else replace(origin, user=user)
    taken_id: str | None = None
    if own_id is not None and await store.row(own_id) is not None:
        # An error: what is here is damaged; if it is the file, copying says so.
        with suppress(StorageError):
            if await difference(source, store, own_id, origin=origin) is None:
                return Imported(session_id=own_id, entries=0, was_there=True)
        own_id, taken_id = None, own_id
    if own_id is not None:
        is_elsewhere = is_taken_elsewhere is not None and await is_taken_elsewhere(own_id)
        if is_elsewhere or await store.is_trash_of_another(own_id, origin.user):
            own_id = None
    session_id = own_id or new_id()
    async with bringing_into(files, session_id, source.attachment) as bring:
        copied = await copy_conversation(
            WithoutOpenTurns(source),
            session_id,
            store,
            session_id,
            origin=origin,
            bring_attachments=bring,
        )
    return Imported(
        session_id=session_id,
        entries=copied.head_seq,
        taken_id=taken_id,
        missing=copied.missing,
    )


@asynccontextmanager
async def opened(path: Path, limits: InOneGo = ANY_SIZE) -> AsyncIterator[FileSource]:
    """Opens the file in a thread, because reading it may take long."""
    with ExitStack() as stack:
        yield await anyio.to_thread.run_sync(stack.enter_context, opened_source(path, limits))
