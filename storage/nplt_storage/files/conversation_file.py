"""One conversation's file: it is opened by the recovery rule and read at any place; its blobs.

`JsonFile.tail` says where the acknowledged lines end. It only grows, except that a
redaction replaces the file. Readers take the tail and the descriptor in one step, so
they are safe beside the writer. Nothing is answered from a file until the recovery
rule was applied to it in this process. Everything here blocks and is called from
worker threads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.codec import BadLine, decode_verified, encode_line, peek_kind
from nplt_storage.entries import BlobReference, Entry
from nplt_storage.errors import (
    BadEntry,
    ConversationDamaged,
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.file_system import (
    Disk,
    FileOperations,
    FoundFile,
    NotOurs,
    opened_to_read,
    read_blocks,
    write_all,
    write_new_file,
)
from nplt_storage.file_system import reader_of as reader_of
from nplt_storage.files.foreign import ForeignConversation
from nplt_storage.files.format import (
    BadHeader,
    Damage,
    FileEntries,
    Header,
    LaterFormat,
    LineTooLong,
    Read,
    Survey,
    Tail,
    advance,
    blobs_of,
    empty_tail,
    encode_header,
    live_of,
    make_whole,
    on_its_way,
    read_header,
    survey,
)
from nplt_storage.files.json_document import FileBytes, JsonDocument, NotForeign
from nplt_storage.files.live_journal import read_journal, sound_pieces
from nplt_storage.pages import read_end
from nplt_storage.partial_answers import PartialAnswer, join_pieces, unless_stored
from nplt_storage.rows import ConversationRow, fold_all, new_row
from nplt_storage.store import check_byte_range

# ------------------------------------------------------------------------------
# Opening: which program wrote the file, and which part of it is sound
#
#     ours        header and tail are surveyed, the lines read in order
#     older       one JSON document in the older shape: converted and replaced
#                 atomically, the original is kept as `.orig`
#     neither     damaged: left alone for the operator
#
# Errors of the operating system and of broken files are translated here.


@contextmanager
def plain_errors(session_id: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ConversationNotFound(session_id) from error
    except NotOurs as error:
        raise ConversationDamaged(session_id, str(error.strerror)) from error
    except OSError as error:
        raise StorageUnavailable(f"the disk reports an error: {error.strerror}") from error
    except (Damage, BadHeader, LaterFormat, BadLine, NotForeign) as error:
        raise ConversationDamaged(session_id, str(error)) from error


_BLOCK_BYTES: Final = 1024 * 1024


def survey_file(read: Read, size: int, session_id: str, *, head_seq_min: int = 0) -> Survey:
    """Surveys the file. `head_seq_min` is the head known from before. If the file has fewer lines
    and ends in a closing line that counts more, acknowledged lines have become unreadable: that is
    damage, not a crash."""
    found = survey(read, size)
    if found.header.session_id != session_id:
        raise Damage(f"the file says it is conversation {found.header.session_id!r}")
    if found.head_seq < min(found.counted, head_seq_min):
        raise Damage(f"it ends at line {found.head_seq}, but there were {head_seq_min}")
    return found


class ConversationShortened(ConversationDamaged):
    """The file is sound but ends before an entry that was known: an older copy was restored. The
    store accepts it and tries again; callers of the store never see this."""


def found_tail(read: Read, found: Survey) -> Tail:
    """The tail of the file. Relies on the closing line if there is one, and reads all lines only if
    not."""
    tail = empty_tail(found.header.created_at, found.first)
    closing = found.closing
    if closing is None:
        closing, last = tail.closing, None
        for last in FileEntries(read, first=found.first, end=found.end).lines():
            kind = peek_kind(last.data)
            closing = advance(closing, kind, at=closing.updated_at, offset=last.start)
        if last is not None:
            closing = replace(closing, updated_at=decode_verified(last.data).timestamp)
    return replace(tail, last=found.last, end=found.end, closing=closing)


def adopt_older_shape(
    files: FileOperations, path: Path, session_id: str, *, new_id: Callable[[], str]
) -> None:
    """Replaces a file of another program, or one of ours that another program has reformatted, by a
    file in our format. Leaves a file in our format alone; raises `NotForeign` if it is none of
    these."""
    with opened_to_read(files, path) as (read, size):
        try:
            read_header(read, size)
            return
        except (BadHeader, LineTooLong):
            older = ForeignConversation(JsonDocument(FileBytes(read, size)), session_id)

        def blocks() -> Iterator[bytes]:
            block = bytearray(encode_header(older.header))
            tail = empty_tail(older.header.created_at, len(block))
            for entry in older.entries(new_id=new_id):
                line, tail = tail.extended(entry)
                block += line
                if len(block) >= _BLOCK_BYTES:
                    yield bytes(block)
                    block.clear()
            yield bytes(block) + tail.closing_line
            _keep_original(files, path, read, size)

        try:
            write_new_file(files, path, blocks())
        except BadEntry as error:
            raise NotForeign(f"it can't be taken in: {error}") from error


def _keep_original(files: FileOperations, path: Path, original: Read, size: int) -> None:
    for number in count(1):
        kept = path.with_name(f"{path.name}.orig" + (f"-{number}" if number > 1 else ""))
        try:
            with opened_to_read(files, kept) as (read, kept_size):
                # A crash may have come between keeping it and replacing it. Compared in blocks:
                # other threads wait for each comparison.
                if size == kept_size and all(
                    read(at, _BLOCK_BYTES) == original(at, _BLOCK_BYTES)
                    for at in range(0, size, _BLOCK_BYTES)
                ):
                    return
        except NotOurs:
            continue
        except FileNotFoundError:
            write_new_file(files, kept, read_blocks(original, 0, size))
            return


class NewFile:
    """A file that is being written under a temporary name, and renamed at the end. After a crash
    the next start removes it. `first` is the header's line, `created_at` the time in it."""

    def __init__(
        self, files: FileOperations, path: Path, first: bytes, *, created_at: datetime
    ) -> None:
        self.new_path = on_its_way(path.with_name(f"{path.name}.whole"))
        self.tail = empty_tail(created_at, len(first))
        self._files = files
        self._buffer = bytearray(first)
        self._written = 0
        files.remove(self.new_path)  # left by a crash
        self._descriptor: int | None = files.open(
            self.new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL
        )

    def add(self, entry: Entry, line: bytes) -> None:
        """Adds a line; `line` is the result of `encode_line`."""
        added, self.tail = self.tail.extended(entry, line)
        self._buffer += added
        if len(self._buffer) >= _BLOCK_BYTES:
            self._flush()

    def seal(self) -> None:
        """Makes the file durable under its temporary name."""
        self._buffer += self.tail.closing_line
        descriptor = self._flush()
        self._files.sync(descriptor)
        self._close()

    def abandon(self) -> None:
        with suppress(OSError):  # the next start sweeps it away
            self._close()
            self._files.remove(self.new_path)

    def _flush(self) -> int:
        assert self._descriptor is not None
        data, self._buffer = bytes(self._buffer), bytearray()
        write_all(self._files, self._descriptor, data, self._written)
        self._written += len(data)
        return self._descriptor

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._files.close(descriptor)


class JsonFile:
    def __init__(
        self, path: Path, session_id: str, *, files: FileOperations, new_id: Callable[[], str]
    ) -> None:
        self.path = path
        self.session_id = session_id
        self.files = files
        self.tail: Tail | None = None
        """`None` until the opening rule has been applied in this process."""
        self.head_seq_min = 0
        """The head that the index recorded before the file was opened."""
        self.writing = Lock()
        """Held while an append is under way, even if its caller has given up."""
        self._new_id = new_id
        self._settling = Lock()

    def create(self, header: Header) -> int:
        """Creates a file without lines and returns a descriptor for appending."""
        first = encode_header(header)
        tail = empty_tail(header.created_at, len(first))
        # A reader must not apply the opening rule to a file that is being created, nor read
        # one that was created, removed and is created again.
        with self._settling, plain_errors(self.session_id):
            if self.files.find(self.path) is not None:
                raise ConversationExists(self.session_id)
            try:
                write_new_file(self.files, self.path, first + tail.closing_line)
                descriptor = self.files.open(self.path, os.O_RDWR)
            except OSError:
                with suppress(OSError):
                    self.files.remove(self.path)  # nobody will know that it is there
                raise
            self.tail = tail
        return descriptor

    def remove_unused(self) -> None:
        """Removes a file that was created and has no acknowledged line."""
        with self._settling, plain_errors(self.session_id):
            self.files.remove(self.path)
            self.tail = None
            self.files.sync_directory(self.path.parent)

    def open_for_appending(self) -> int:
        with self.not_writing(), self._settling, plain_errors(self.session_id):
            return self._made_whole()

    def settle(self) -> None:
        """Applies the opening rule without opening the file for appending."""
        if self.tail is not None:
            return
        with self._settling, plain_errors(self.session_id):
            if self.tail is None:
                self.files.close(self._made_whole())

    @contextmanager
    def reading(self, through: int | None = None) -> Iterator[FileEntries]:
        """The entries as of now, or as of the time when `through` was the last; later appends are
        not among them."""
        with self.reading_lines() as (read, tail):
            head_seq, end = tail.closing.head_seq, tail.end
            if through is not None and through < head_seq:
                end = tail.entries(read).find(through + 1)
                head_seq = through
            yield FileEntries(read, first=tail.first, end=end, head_seq=head_seq)

    @contextmanager
    def reading_lines(self) -> Iterator[tuple[Read, Tail]]:
        """Yields a reader of the file, and its tail."""
        self.settle()
        with plain_errors(self.session_id):
            with self._settling:
                tail = self.tail
                assert tail is not None
                descriptor = self.files.open(self.path, os.O_RDONLY)
            try:
                yield reader_of(self.files, descriptor), tail
            finally:
                self.files.close(descriptor)

    def header(self) -> Header:
        with self.reading_lines() as (read, tail):
            return read_header(read, tail.first)[0]

    def replace(self, new_path: Path, tail: Tail) -> None:
        """Replaces this file by another one, atomically for readers and crashes."""
        with self._settling:
            self.files.rename(new_path, self.path)
            self.tail = tail
        self.files.sync_directory(self.path.parent)

    def _made_whole(self) -> int:
        if self.tail is None:
            adopt_older_shape(self.files, self.path, self.session_id, new_id=self._new_id)
        descriptor = self.files.open(self.path, os.O_RDWR)
        try:
            read = reader_of(self.files, descriptor)
            tail = self.tail
            if tail is None:
                size, least = self.files.size(descriptor), self.head_seq_min
                found = survey_file(read, size, self.session_id, head_seq_min=least)
                if found.head_seq < self.head_seq_min:
                    raise ConversationShortened(self.session_id, "an older copy was put back")
                tail = found_tail(read, found)
            else:
                # Bytes after the last acknowledged line are set aside, even if they are a whole
                # line: its writer got an error.
                check_lines(read, tail, tail.last)
            make_whole(self.files, descriptor, self.path, tail=tail)
        except BaseException:
            self.files.close(descriptor)
            raise
        self.tail = tail
        return descriptor

    @contextmanager
    def not_writing(self) -> Iterator[None]:
        if not self.writing.acquire(blocking=False):
            raise ConversationReadOnly(self.session_id, "the disk has not answered yet")
        try:
            yield
        finally:
            self.writing.release()


def check_lines(read: Read, tail: Tail, start: int) -> None:
    """Raises unless the acknowledged lines from `start` on are still in place."""
    head_seq = tail.closing.head_seq if start == tail.end else 0
    for line in tail.entries(read).lines(start):
        head_seq = line.seq
    if head_seq != tail.closing.head_seq:
        raise Damage(f"line {head_seq} is where line {tail.closing.head_seq} should be")


# ------------------------------------------------------------------------------
# Blobs
#
#     session_YYYYMMDD_<id>.blobs/<sha256 of the bytes>
#
# A blob is named by its content, so equal bytes are stored once. It gets its name when
# it is whole and on disk, before the line that refers to it is written. A crash in
# between leaves a blob without a reference, which does no harm.

_BLOB_ID = re.compile(r"[0-9a-f]{64}")


def keep_blob(disk: Disk, directory: Path, data: bytes) -> BlobReference:
    """Stores a blob durably, its name included."""
    blob = BlobReference.of(data)
    disk.make_directory(directory)
    there = disk.find(directory / blob.blob_id)
    if there is None or there[1] != len(data):
        write_new_file(disk, directory / blob.blob_id, data)
    return blob


def read_blob(disk: Disk, directory: Path, blob_id: str, offset: int, length: int) -> bytes:
    """Reads a part of a blob; fewer bytes only at its end."""
    check_byte_range(offset, length)
    try:
        if _BLOB_ID.fullmatch(blob_id) is None:
            raise FileNotFoundError
        with opened_to_read(disk, directory / blob_id) as (read, size):
            return read(offset, min(length, max(size - offset, 0)))
    except FileNotFoundError:
        raise BadEntry(f"there is no blob {blob_id!r} in this conversation") from None


def remove_blobs_except(disk: Disk, directory: Path, named: AbstractSet[str]) -> None:
    unnamed = [name for name in disk.names_in(directory) if name not in named]
    for name in unnamed:
        disk.remove(directory / name)
    if unnamed:
        disk.sync_directory(directory)


class NewConversation:
    """Builds a conversation that is imported, copied or moved from elsewhere.

    Lines are written to a temporary file, blobs to a temporary folder. When all of it is on disk,
    the folder is renamed, then the file: with that the conversation exists. What a crash leaves
    before that is removed at the next start."""

    def __init__(self, disk: Disk, path: Path, header: Header) -> None:
        self._disk = disk
        self._path = path
        self._session_id = header.session_id
        self._blobs = on_its_way(blobs_of(path))
        with plain_errors(self._session_id):
            disk.remove_tree(self._blobs)  # left by a crash
            self._file = NewFile(disk, path, encode_header(header), created_at=header.created_at)

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds all the entries or, if one can't be written, none."""
        lines: list[tuple[Entry, bytes]] = []
        for due, entry in enumerate(entries, self._file.tail.closing.head_seq + 1):
            if entry.seq != due:
                raise BadEntry(f"entry {entry.seq} can't follow entry {due - 1}")
            lines.append((entry, encode_line(entry)))
        with plain_errors(self._session_id):
            for entry, line in lines:
                self._file.add(entry, line)

    def keep_blob(self, data: bytes) -> BlobReference:
        with plain_errors(self._session_id):
            return keep_blob(self._disk, self._blobs, data)

    def finish(self) -> None:
        """Publishes the conversation durably."""
        with plain_errors(self._session_id):
            name = self._path.name
            if name in self._disk.names_in(self._path.parent, with_part=name):
                raise ConversationExists(self._session_id)
            self._file.seal()
            self._name_blobs()
            self._disk.rename(self._file.new_path, self._path)
            try:
                self._disk.sync_directory(self._path.parent)
            except OSError:
                self._disk.remove(self._path)  # who is told that it failed must not meet it
                raise

    def abandon(self) -> None:
        self._file.abandon()
        self._disk.remove_tree(self._blobs)

    def _name_blobs(self) -> None:
        kept = self._disk.names_in(self._blobs)
        if not kept:
            return
        target = blobs_of(self._path)
        if self._disk.names_in(target):
            # Left by a conversation whose file was never published. Equal names mean equal bytes.
            for name in kept:
                self._disk.rename(self._blobs / name, target / name)
            self._disk.sync_directory(target)
            self._disk.remove_tree(self._blobs)
        else:
            self._disk.rename(self._blobs, target)
        self._disk.sync_directory(target.parent)


_BATCH_ENTRIES: Final = 500
_BATCH_BYTES: Final = 4 * 1024 * 1024


class OpenedFile(Struct, frozen=True, kw_only=True):
    file: JsonFile
    descriptor: int
    """The descriptor used for appending."""
    found: FoundFile
    row: ConversationRow
    entries: tuple[Entry, ...] = ()
    partial_answer: PartialAnswer | None = None


def create_file(disk: Disk, file: JsonFile, header: Header) -> OpenedFile:
    descriptor = file.create(header)
    try:
        with plain_errors(file.session_id):
            found = disk.found(file.path)
    except BaseException:
        disk.close(descriptor)
        with suppress(StorageError):
            file.remove_unused()  # nobody will know that it is there
        raise
    row = new_row(file.session_id, user=header.user, created_at=header.created_at)
    return OpenedFile(file=file, descriptor=descriptor, found=found, row=row)


def open_at_end(disk: Disk, file: JsonFile, row: ConversationRow) -> OpenedFile:
    descriptor = file.open_for_appending()
    try:
        with file.reading_lines() as (read, tail):
            head_seq = tail.closing.head_seq
            if row.head_seq > head_seq:
                raise Damage(f"it ends at line {head_seq}, but there were {row.head_seq}")
            # The index may be behind.
            row = fold_all(row, tail.entries(read).after(row.head_seq))
            entries = read_end(tail.entries(read), row)
        with plain_errors(file.session_id):
            found = disk.found(file.path)
        partial = join_pieces(sound_pieces(read_journal(disk, live_of(file.path))))
    except BaseException:
        disk.close(descriptor)
        raise
    return OpenedFile(
        file=file,
        descriptor=descriptor,
        found=found,
        row=row,
        entries=tuple(entries),
        partial_answer=unless_stored(partial, row, entries),
    )


def batch_of(file: JsonFile, *, after: int, through: int) -> list[Entry]:
    """The entries after `after`, as many as are read at a time."""
    batch: list[Entry] = []
    with file.reading_lines() as (read, tail):
        entries = tail.entries(read)
        for entry in entries.after(after):
            batch.append(entry)
            is_full = len(batch) == _BATCH_ENTRIES or entries.bytes_read >= _BATCH_BYTES
            if entry.seq == through or is_full:
                break
    return batch
