"""The data directory in use: its lock, the index, the threads, and the free space.

Opening takes the lock, removes what a crash left, and brings the index up to date with
the files; if there is much to read, this goes on in the background. Names, sizes and
times are compared; usually nothing changed and no file is opened. A file that has grown
is read on, a new or changed one is read whole, and one that is gone is removed from the
index. The store and its records share what is here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import count, islice
from pathlib import Path
from threading import Lock
from typing import Final

import anyio
import anyio.to_thread
from msgspec import Struct, field
from msgspec.structs import replace

from nplt_storage.changes import RowChanges
from nplt_storage.codec import decode_verified
from nplt_storage.entries import Entry
from nplt_storage.errors import (
    ConversationDamaged,
    ConversationReadOnly,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.file_system import DataDirectory, Disk, FoundFile, Read, opened_to_read
from nplt_storage.files.append import Durability
from nplt_storage.files.commit_threads import CommitThreads, DiskThreads
from nplt_storage.files.conversation_file import plain_errors, survey_file
from nplt_storage.files.foreign import ForeignConversation
from nplt_storage.files.format import (
    LOCAL_USER,
    BadHeader,
    FileEntries,
    LineTooLong,
    Survey,
    day_of,
    is_unfinished,
    read_header,
    session_id_of,
)
from nplt_storage.files.json_document import FileBytes, JsonDocument
from nplt_storage.files.salvage import salvaged
from nplt_storage.files.seen_file import NAME as SEEN_NAME
from nplt_storage.files.seen_file import SeenFile
from nplt_storage.files.trash import Trash
from nplt_storage.ids import new_entry_id
from nplt_storage.index.updates import (
    ConversationGone,
    EntriesAdded,
    FileStamp,
    Surveyed,
    compare_files,
)
from nplt_storage.index.worker import ConversationIndex, settle
from nplt_storage.rows import ConversationRow, fold_all, new_row

log = logging.getLogger(__name__)

_PIECE_ENTRIES: Final = 1_000
_PIECE_BYTES: Final = 4 * 1024 * 1024


def part_of(found: FoundFile, end: int) -> FoundFile:
    """The same file as if it ended at `end`, so that the rest is read the next time."""
    return replace(found, size=end, mtime_ns=0)


def void_stamp(name: str, known: FileStamp | None) -> FileStamp:
    """A stamp that fits no file, but keeps the head that was known."""
    nothing = FoundFile(name=name, size=-1, mtime_ns=0, inode=0)
    if known is None:
        return FileStamp(file=nothing, end_offset=0, head_seq=0, synced=False)
    return replace(known, file=nothing, end_offset=0)


class DoesNotFollow(Exception):
    """The file does not hold the known lines followed by new ones."""


class FileReading:
    """Reads one file for the index, piece by piece and with little memory.

    Nothing is repaired. Lists and search may therefore show a last line that recovery has not
    rewritten yet; nothing else is answered from such a file.

    Never raises for the content of a file: a damaged one gets a row that says so, with a stamp that
    fits no file, so that it is checked again at the next start. A file that can't be read for now
    (too many open files, an input/output error) is not damaged: it is read again at the next
    request."""

    def __init__(
        self,
        directory: OpenDirectory,
        path: Path,
        session_id: str,
        known: FileStamp | None,
        damage: dict[str, str],
    ) -> None:
        """`damage` receives the reason by id if the file is damaged."""
        self._disk = directory.disk
        self._new_id = directory.settings.new_id
        self._path = path
        self._session_id = session_id
        self._known = known
        self._damage = damage
        self.is_unread = False
        """Whether the file can't be read for now, though it may be intact."""
        user = directory.settings.unknown_user
        self._row = new_row(session_id, user=user, created_at=day_of(path.name))
        self._is_first = True

    def whole(self) -> Iterator[EntriesAdded]:
        try:
            with (
                plain_errors(self._session_id),
                opened_to_read(self._disk, self._path) as (read, size),
            ):
                try:
                    yield from self._ours(read, size)
                except (BadHeader, LineTooLong):
                    yield from self._older_shape(read, size)
        except StorageError as error:
            if isinstance(error, StorageUnavailable):
                log.warning("%s can't be read now: %s", self._path.name, error)
                self.is_unread = True
                if self._known is None and self._is_first:  # otherwise the known row is kept
                    stamp = void_stamp(self._path.name, None)
                    yield EntriesAdded(row=self._row, stamp=stamp, replaces_all=True)
                return
            name = self._path.name
            if name not in self._disk.names_in(self._path.parent, with_part=name):
                return  # deleted since it was listed
            log.warning("%s: %s", self._path.name, error)
            reason = error.reason if isinstance(error, ConversationDamaged) else str(error)
            self._damage[self._session_id] = reason
            row = self._row
            # Every line with a valid checksum, also those after the damage.
            with suppress(OSError), opened_to_read(self._disk, self._path) as (read, size):
                header, entries = salvaged(read, size, self._session_id)
                user, created_at = row.user, row.created_at
                if header is not None:
                    user, created_at = header.user, header.created_at
                row = new_row(self._session_id, user=user, created_at=created_at)
                row = fold_all(row, entries)
            stamp = void_stamp(self._path.name, self._known)
            yield EntriesAdded(
                row=replace(row, damaged=True), stamp=stamp, replaces_all=self._is_first
            )

    def onward(self, row: ConversationRow) -> Iterator[EntriesAdded]:
        """The entries written since `known`, for a row as of that time. Raises `DoesNotFollow` if
        anything is irregular and the file should be read whole."""
        known = self._known
        if known is None or row.damaged or row.head_seq != known.head_seq:
            raise DoesNotFollow
        try:
            with (
                plain_errors(self._session_id),
                opened_to_read(self._disk, self._path) as (read, size),
            ):
                found = survey_file(read, size, self._session_id)
                is_same_end = found.end == known.end_offset
                if found.end < known.end_offset or (
                    is_same_end and found.head_seq != known.head_seq
                ):
                    raise DoesNotFollow
                self._row, self._is_first = row, False
                yield from self._lines(read, found, start=known.end_offset)
        except (StorageError, BadHeader) as error:
            raise DoesNotFollow from error

    def _ours(self, read: Read, size: int) -> Iterator[EntriesAdded]:
        header, _ = read_header(read, size)
        self._row = new_row(self._session_id, user=header.user, created_at=header.created_at)
        expected = self._known.head_seq if self._known and self._known.synced else 0
        found = survey_file(read, size, self._session_id, head_seq_min=expected)
        if found.head_seq < expected:
            lost = (found.head_seq + 1, expected)
            self._row = replace(self._row, lost=lost)
            log.warning(
                "%s: entries %d to %d are gone: an older copy is here", self._path.name, *lost
            )
        yield from self._lines(read, found, start=found.first)

    def _lines(self, read: Read, found: Survey, *, start: int) -> Iterator[EntriesAdded]:
        here = self._disk.found(self._path)
        piece: list[Entry] = []
        begin, due = start, self._row.head_seq + 1
        try:
            for line in FileEntries(read, first=found.first, end=found.end).lines(start):
                if line.seq != due:
                    raise ConversationDamaged(self._session_id, f"line {due} is not in its place")
                piece.append(decode_verified(line.data))
                due += 1
                if len(piece) >= _PIECE_ENTRIES or line.end - begin >= _PIECE_BYTES:
                    done, piece, begin = piece, [], line.end
                    yield self._piece(done, part_of(here, line.end), line.end)
        except BaseException:
            # If reading fails later, this much can be shown.
            self._row = fold_all(self._row, piece)
            raise
        yield self._piece(piece, here, found.end)

    def _piece(self, entries: list[Entry], found: FoundFile, end: int) -> EntriesAdded:
        known, is_first, self._is_first = self._known, self._is_first, False
        self._row = fold_all(self._row, entries)
        stamp = FileStamp(
            file=found,
            end_offset=end,
            head_seq=self._row.head_seq,
            # Lines that were read may be in the system's memory only.
            synced=known is not None and known.synced and known.head_seq == self._row.head_seq,
        )
        return EntriesAdded(row=self._row, stamp=stamp, entries=entries, replaces_all=is_first)

    def _older_shape(self, read: Read, size: int) -> Iterator[EntriesAdded]:
        older = ForeignConversation(JsonDocument(FileBytes(read, size)), self._session_id)
        here, header = self._disk.found(self._path), older.header
        self._row = new_row(self._session_id, user=header.user, created_at=header.created_at)
        entries = older.entries(new_id=self._new_id)
        while len(piece := list(islice(entries, _PIECE_ENTRIES))) == _PIECE_ENTRIES:
            # If reading fails later, the file is read again from its beginning.
            stamp = void_stamp(self._path.name, self._known)
            yield replace(self._piece(piece, here, 0), stamp=stamp)
        yield self._piece(piece, here, size)


_WAIT_SECONDS_MAX: Final = 20.0


class ReadingOrder:
    """The order in which files are read when the index was lost, while conversations are served.
    One thread reads them; a file that a caller waits for is read next."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._left: OrderedDict[str, None] = OrderedDict()
        """Conversations still to be read. In a plain dict, finding the first key takes longer the
        more keys were removed before it: 7 s in all for 100,000."""
        self._unread: set[str] = set()
        """Conversations that are still to be read or being read."""
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def wait_for(self, session_id: str) -> None:
        """Returns when the conversation has been read. Raises `StorageUnavailable` if that takes
        longer than clients wait for a reply: a file may have a million messages."""
        with self._lock:
            if session_id not in self._unread:
                return
            read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(session_id, []).append(read)
        with anyio.move_on_after(_WAIT_SECONDS_MAX):
            await read
            return
        raise StorageUnavailable("its file is large and still being read; try again in a while")

    # In the thread that reads

    def begin(self, session_ids: Iterable[str]) -> None:
        with self._lock:
            self._left = OrderedDict.fromkeys(session_ids)
            before, self._unread = self._unread, set(self._left)
            for session_id in before - self._unread:
                self._tell(session_id)

    def take(self, *, urgent: bool = False) -> str | None:
        """The next conversation, or with `urgent` the next one that a caller waits for; `None` if
        there is none."""
        with self._lock:
            wanted = [id_ for id_ in self._waiting if id_ in self._left]
            taken = next(iter(wanted if wanted or urgent else self._left), None)
            if taken is not None:
                del self._left[taken]
            return taken

    def done(self, session_id: str) -> None:
        with self._lock:
            self._unread.discard(session_id)
            self._tell(session_id)

    def _tell(self, session_id: str) -> None:
        for read in self._waiting.pop(session_id, []):
            settle(read, partial(read.set_result, None))


FREE_BYTES_MIN: Final = 64 * 1024 * 1024
_SECONDS: Final = 1.0
_MIB: Final = 1024 * 1024


class FileSettings(Struct, frozen=True, kw_only=True):
    durability: Durability = field(default_factory=Durability)
    free_bytes_min: int = FREE_BYTES_MIN
    turns_max: int | None = None
    """The number of turns that models are shown; all are kept."""
    read_before_serving_bytes: int = 2 * 1024 * 1024
    """Files that the index does not know are read before serving up to this size, and beyond it
    while serving."""
    unknown_user: str = LOCAL_USER
    """The owner of a conversation if neither its file nor the index names one; `NOBODY` on a server
    with users."""
    disk: Disk = field(default_factory=Disk)
    new_id: Callable[[], str] = new_entry_id
    seconds: Callable[[], float] = time.monotonic


class FreeSpace:
    """The free space on the disk, looked up at most once a second. Below the reserve nothing is
    written, so that there is room left for recovery. Everything can be read, and writing works
    again as soon as there is room."""

    def __init__(self, directory: Path, settings: FileSettings, threads: CommitThreads) -> None:
        self._directory = directory
        self._disk = settings.disk
        self._bytes_min = settings.free_bytes_min
        self._seconds = settings.seconds
        self._threads = threads
        self._looked_at: float | None = None
        self._is_short = False

    async def check(self, session_id: str) -> None:
        """Raises `ConversationReadOnly` if there is too little free space."""
        if self._is_due():
            with anyio.move_on_after(_SECONDS):  # if the disk hangs, the write itself fails
                await self._threads.submit(self._look)
        if reason := self._reason():
            raise ConversationReadOnly(session_id, reason)

    def check_now(self, session_id: str) -> None:
        """The same in the caller's thread. Blocks."""
        if self._is_due():
            self._look()
        if reason := self._reason():
            raise ConversationReadOnly(session_id, reason)

    @property
    def is_enough(self) -> bool:
        """Whether there was enough space a moment ago; if not, `check` looks again."""
        looked_at = self._looked_at
        return (
            looked_at is not None and not self._is_short and self._seconds() - looked_at < _SECONDS
        )

    @property
    def shortage(self) -> str | None:
        """The shortage found by the last check. If that is long ago, a new check is started for the
        next caller."""
        if self._is_due():
            with suppress(StorageUnavailable):  # without a thread to look, the write itself fails
                self._threads.start(self._look)
        return self._reason()

    def _is_due(self) -> bool:
        now = self._seconds()
        if self._looked_at is not None and now - self._looked_at < _SECONDS:
            return False
        self._looked_at = now  # concurrent callers need not look as well
        return True

    def _look(self) -> None:
        try:
            self._is_short = self._disk.free_bytes(self._directory) < self._bytes_min
        except OSError:
            self._is_short = False  # the write itself will fail

    def _reason(self) -> str | None:
        if not self._is_short:
            return None
        return f"less than {self._bytes_min / _MIB:g} MiB are free on the disk"


INDEX_NAME: Final = "catalog.sqlite"
COPY_MARK_NAME: Final = "restored"
"""An empty file in a back-up. A server that starts on the folder holds the prompts for later first,
because the original may run them, and removes the file."""
_SAY_EVERY: Final = 1_000
_LARGE_BYTES: Final = 4 * 1024 * 1024
_LOOK_SECONDS: Final = 0.02


class OpenDirectory:
    index: ConversationIndex

    def __init__(self, paths: DataDirectory, settings: FileSettings) -> None:
        """Use `open_directory`, which takes the lock and surveys the files."""
        self.paths = paths
        self.settings = settings
        self.disk = settings.disk
        self.disk.root = paths.path
        self.threads = DiskThreads()
        self.commit_threads = CommitThreads()
        self.sync_later = settings.durability.sync_later(self.commit_threads)
        self.syncs_at_once = self.sync_later is None
        self.space = FreeSpace(paths.path, settings, self.commit_threads)
        self.trash = Trash(self.disk, paths, unknown_user=settings.unknown_user)
        self.order = ReadingOrder()
        self.names: dict[str, str] = {}
        """The file names by conversation id."""
        self.seen = SeenFile(self.disk, paths.path / SEEN_NAME, known=self.names)
        self.changes = RowChanges()
        self.damage: dict[str, str] = {}
        """The damage of unusable files, by conversation id."""
        self.unread: set[str] = set()
        """Conversations whose files could not be read for a temporary reason."""
        self.catching_up: asyncio.Task[None] | None = None
        """The task that reads files while conversations are already served, if any."""

    def tidy(self, now: datetime) -> None:
        """Completes what a crash interrupted, and opens the index. Blocks."""
        self.trash.finish(sweep(self.disk, self.paths.history))
        self.trash.empty(now)
        self.seen.load()
        self.index = ConversationIndex(
            self.paths.path / INDEX_NAME, survey=self.surveyed, seen=self.seen.marks
        )

    async def close(self) -> None:
        if self.catching_up is not None:
            self.catching_up.cancel()  # the next start continues it
        self.commit_threads.close()
        await self.index.close()
        await anyio.to_thread.run_sync(self.paths.give_back)

    # Reading files for the index

    def found(self) -> dict[str, list[FoundFile]]:
        """The files by conversation id; as a rule there is one for each."""
        by_id: dict[str, list[FoundFile]] = {}
        try:
            for file in self.disk.found_in(self.paths.history):
                session_id = session_id_of(file.name)
                if session_id is not None:
                    by_id.setdefault(session_id, []).append(file)
        except OSError as error:
            raise StorageUnavailable(f"the files can't be listed: {error.strerror}") from error
        return by_id

    def surveyed(self, known: Mapping[str, FileStamp]) -> Iterator[Surveyed]:
        """Reads every file that differs from what is known, as a whole."""
        found = self.found()
        freshness = compare_files({id_: files[-1] for id_, files in found.items()}, known)
        for session_id in freshness.gone:
            entries = known[session_id].head_seq
            log.warning("the file of %s is gone; it held %d entries", session_id, entries)
            yield ConversationGone(session_id=session_id)
        several = {id_ for id_, files in found.items() if len(files) > 1}
        to_read = sorted({*freshness.grown, *freshness.unknown, *several})
        self.order.begin(to_read)
        for number in count(1):
            due = self.order.take()
            if due is None:
                return
            for piece in self._changed(due, found[due], known.get(due)):
                yield piece
                # Files that a caller waits for are read between two pieces of a long one.
                while (urgent := self.order.take(urgent=True)) is not None:
                    yield from self._changed(urgent, found[urgent], known.get(urgent))
            if number % _SAY_EVERY == 0:
                log.info("read %d of %d conversations", number, len(to_read))

    def _changed(
        self, session_id: str, files: Sequence[FoundFile], known: FileStamp | None
    ) -> Iterator[EntriesAdded | None]:
        pieces = self.pieces(session_id, [file.name for file in files], known)
        if files[-1].size >= _LARGE_BYTES:
            # Another program's file is checked to its end before its first piece.
            threads = ThreadPoolExecutor(1)
            first = threads.submit(next, pieces, None)
            threads.shutdown(wait=False)
            while wait((first,), timeout=_LOOK_SECONDS).not_done:
                yield None
            if (piece := first.result()) is not None:
                yield piece
        yield from pieces
        self.order.done(session_id)

    def pieces(
        self, session_id: str, names: Sequence[str], known: FileStamp | None = None
    ) -> Iterator[EntriesAdded]:
        if len(names) > 1:
            self.damage[session_id] = "there is more than one file for it"
            user = self.settings.unknown_user
            row = new_row(session_id, user=user, created_at=min(map(day_of, names)))
            stamp = void_stamp(names[-1], known)
            yield EntriesAdded(row=replace(row, damaged=True), stamp=stamp, replaces_all=True)
        else:
            reading = self.reading(session_id, names[0], known)
            yield from reading.whole()
            if reading.is_unread:
                self.unread.add(session_id)

    def reading(self, session_id: str, name: str, known: FileStamp | None) -> FileReading:
        return FileReading(self, self.paths.history / name, session_id, known, self.damage)

    def row_in(self, path: Path, session_id: str) -> tuple[ConversationRow, str | None]:
        """Reads a whole file, even in the trash, and returns its row and its damage. Unreadable
        lines are left out of the row, and nothing is recorded."""
        damage: dict[str, str] = {}
        row = new_row(session_id, user=self.settings.unknown_user, created_at=day_of(path.name))
        for piece in FileReading(self, path, session_id, None, damage).whole():
            row = piece.row
        return row, damage.get(session_id)

    async def learn(self, pieces: Iterator[EntriesAdded]) -> None:
        """Adds files to the index, reading in a worker thread."""
        while (piece := await self.threads.read(lambda: next(pieces, None))) is not None:
            await self.index.learn(piece)

    # Catching up at the start

    async def catch_up(self) -> None:
        known = await self.index.stamps()
        found = await self.threads.read(self.found)
        self.names.update({id_: files[-1].name for id_, files in found.items()})
        single = {id_: files[0] for id_, files in found.items() if len(files) == 1}
        freshness = compare_files(single, known)
        followed = [await self._read_on(session_id) for session_id in freshness.grown]
        is_all = len(single) == len(found) and not freshness.gone and not freshness.unknown
        if is_all and all(followed):
            return
        bytes_unknown = sum(max(single[id_].size, 0) for id_ in freshness.unknown)
        if bytes_unknown <= self.settings.read_before_serving_bytes:
            await self.index.catch_up()
        else:
            log.warning("lists are not complete until %d MB were read", bytes_unknown // 10**6)
            self.order.begin(freshness.unknown)
            self.catching_up = asyncio.create_task(self._catch_up_meanwhile())

    async def _read_on(self, session_id: str) -> bool:
        """Whether the lines written since simply follow the known ones."""
        then = await self.index.known(session_id)
        if then is None:
            return False
        row, stamp = then
        try:
            await self.learn(self.reading(session_id, stamp.file.name, stamp).onward(row))
        except DoesNotFollow:
            log.info("%s was changed by someone else: it is read anew", stamp.file.name)
            return False
        return True

    async def _catch_up_meanwhile(self) -> None:
        try:
            await self.index.catch_up()
            log.info("lists are complete")
        except StorageError:
            log.exception("lists are not complete: the files can't be read")
        finally:
            self.order.begin(())  # no caller may wait for files that are not read


async def open_directory(data_dir: Path, settings: FileSettings, *, now: datetime) -> OpenDirectory:
    paths = DataDirectory(data_dir)
    await anyio.to_thread.run_sync(paths.take)
    try:
        directory = OpenDirectory(paths, settings)
        await directory.threads.write(partial(directory.tidy, now))
        try:
            await directory.catch_up()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await directory.index.close()
            raise
    except BaseException:
        paths.give_back()
        raise
    return directory


def sweep(disk: Disk, history: Path) -> list[str]:
    """Removes files that a crash left unfinished, and returns the remaining names."""
    names = disk.names_in(history)
    for name in filter(is_unfinished, names):
        if name.endswith(".blobs.new"):
            disk.remove_tree(history / name)
            continue
        try:
            disk.remove(history / name)
        except OSError as error:  # one leftover is no reason not to start
            log.warning("%s can't be removed: %s", name, error.strerror)
    return [name for name in names if not is_unfinished(name)]
