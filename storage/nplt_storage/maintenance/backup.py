"""Copies a data directory, also while a server writes to it.

Each conversation in the copy is whole, as it was at some moment of the copying: its file ends
with a line that verifies and the closing line that belongs to it, and all that its lines name
is there. A conversation is copied file first, because what a line names is on disk before the
line; if the file was replaced meanwhile (a redaction, a repair) it is copied again. What moves
to the trash or back while it is copied is followed. The index is left out: it can be rebuilt.

What is no file of ours (a link, a pipe, a device, a folder in the place of a file) and what
can't be read is left out and named; the rest is copied.

The copy is made beside its place and gets its name when it is complete. Nothing in the source
is locked or changed. Everything here blocks.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from nplt_storage.attachments import unfinished_copies
from nplt_storage.codec import BadLine
from nplt_storage.file_system import Disk, Read, opened, read_blocks, reader_of, write_all
from nplt_storage.files.conversation_file import found_tail
from nplt_storage.files.directory import COPY_MARK_NAME
from nplt_storage.files.format import (
    BadHeader,
    Damage,
    LaterFormat,
    companions,
    session_id_of,
    survey,
)
from nplt_storage.files.seen_file import NAME as SEEN_NAME
from nplt_storage.files.trash import DAYS_NAME, deleted_id

_LOOKS_MAX: Final = 3
_ROUNDS_MAX: Final = 100
_PARTS: Final = ("history", "files", "trash")


class CannotBackUp(Exception):
    """The message says why; nothing is left at the target."""


class BackedUp(Struct):
    conversations: int = 0
    deleted: int = 0
    """The number of conversations in the trash."""
    size: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """The files that were not copied, relative to the data directory, and why."""


Progress = Callable[[int, int], None]
"""Called with the number of conversations copied so far, and of all."""


class _CannotBeRead(Exception):
    """A file of the source can't be read; the message says why. An error at the target is an
    `OSError`."""


def back_up(data_dir: Path, target: Path, *, progress: Progress) -> BackedUp:
    """Backs up a data directory. Raises `CannotBackUp` or `OSError`."""
    disk, target = Disk(data_dir), target.resolve()
    if (reason := disk.why_not_ours(data_dir / "history")) is not None:
        raise CannotBackUp(f"{data_dir} is no data directory of ours: history: {reason}")
    if not disk.is_directory(data_dir / "history"):
        raise CannotBackUp(f"{data_dir} is no data directory: there is no history in it")
    if data_dir.resolve() in (target, *target.parents):
        raise CannotBackUp(f"{target} is inside of {data_dir}")
    done = BackedUp()
    with made_whole(target) as new_directory:
        _Copy(disk, data_dir, Disk(new_directory), new_directory, done, progress).run()
        for name in disk.names_in(data_dir / "histories"):
            other = Path("histories") / name
            if disk.is_directory(data_dir / other):
                _Copy(
                    disk,
                    data_dir / other,
                    Disk(new_directory),
                    new_directory / other,
                    done,
                    progress,
                ).run()
            else:
                done.left_out.append((str(other), _reason(disk, data_dir / other)))
        done.left_out.sort()
    return done


@contextmanager
def made_whole(target: Path) -> Iterator[Path]:
    """Yields a directory beside the target, which takes the target's place if the block succeeds,
    and is removed otherwise."""
    target = target.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CannotBackUp(f"{target} is there already; give a directory that is not")
    new_directory = target.with_name(f".{target.name}.new")
    shutil.rmtree(new_directory, ignore_errors=True)  # left by one that was stopped
    try:
        yield new_directory
        mark = os.open(new_directory / COPY_MARK_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.fsync(mark)
        finally:
            os.close(mark)
        for folder, _, _ in os.walk(new_directory):
            Disk(new_directory).sync_directory(Path(folder))
        if target.exists():
            target.rmdir()
        new_directory.rename(target)
        Disk().sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(new_directory, ignore_errors=True)
        raise


def _reason(disk: Disk, path: Path) -> str:
    return disk.why_not_ours(path) or "it is no directory"


class _Copy:
    """Copies one directory with its history, attachments and trash."""

    def __init__(
        self,
        disk: Disk,
        source: Path,
        target_disk: Disk,
        target: Path,
        done: BackedUp,
        progress: Progress,
    ) -> None:
        self._disk = disk
        self._source = source
        self._target_disk = target_disk
        self._target = target
        self._done = done
        self._progress = progress
        self._left_out: dict[Path, str] = {}
        for part in _PARTS:
            target_disk.make_directory(target / part)
            if (reason := disk.why_not_ours(source / part)) is not None:
                self._left_out[source / part] = reason

    def run(self) -> None:
        """Copies until no copied file has moved or gone since."""
        copied: set[str] = set()
        strays = self._names_in("files")
        for _ in range(_ROUNDS_MAX):
            listed = self._listed()
            gone = copied - set(listed)
            for unit in gone:
                self._remove(unit)
            copied -= gone
            missing = [unit for unit in listed if unit not in copied]
            for number, unit in enumerate(missing, 1):
                if self._copy(unit):
                    copied.add(unit)
                else:
                    gone.add(unit)
                self._progress(number, len(missing))
            if not gone:
                break
        else:
            raise CannotBackUp("conversations were deleted faster than they could be copied")
        # Attachments of conversations that are not kept in files.
        here = {session_id_of(unit.removeprefix("history/")) for unit in copied}
        unfinished = unfinished_copies(self._source / "files")
        for name in strays:
            if name not in here and not name.startswith(".") and name not in unfinished:
                self._copy_tree(self._source / "files" / name, self._target / "files" / name)
        # Copied last: a mark may name an entry that came after its conversation was copied. It then
        # counts as the head.
        self._copy_tree(self._source / SEEN_NAME, self._target / SEEN_NAME)
        self._copy_tree(self._source / "trash" / DAYS_NAME, self._target / "trash" / DAYS_NAME)
        copied = {unit for unit in copied if self._source / unit not in self._left_out}
        trash = sum(unit.startswith("trash/") for unit in copied)
        self._done.deleted += trash
        self._done.conversations += len(copied) - trash
        root = self._disk.root or self._source
        self._done.left_out += [
            (str(path.relative_to(root)), reason) for path, reason in self._left_out.items()
        ]

    def _listed(self) -> list[str]:
        """Lists the trash before and after the rest, so that a conversation that moves is in one of
        the lists."""
        before = self._names_in("trash")
        history = [name for name in self._names_in("history") if session_id_of(name) is not None]
        trash = [name for name in {*before, *self._names_in("trash")} if deleted_id(name)]
        units = [*(f"history/{name}" for name in history), *(f"trash/{name}" for name in trash)]
        return sorted(units)

    def _names_in(self, part: str) -> list[str]:
        return self._disk.names_in(self._source / part)

    def _copy(self, unit: str) -> bool:
        """Copies one unit; false if it is gone or moving."""
        source, target = self._source / unit, self._target / unit
        for _ in range(_LOOKS_MAX):
            try:
                before = self._state(unit)
                if not unit.startswith("history/"):
                    self._copy_tree(source, target, is_folder=True)
                else:
                    with self._left_out_if_unreadable(source, target):
                        self._copy_lines(source, target)
                    for name in companions(self._names_in("history"), source):
                        self._copy_tree(source.with_name(name), target.with_name(name))
                    attachments = f"files/{session_id_of(source.name)}"
                    self._copy_tree(self._source / attachments, self._target / attachments)
                if self._state(unit) == before:
                    return True
            except FileNotFoundError:
                pass
            self._remove(unit)
        return False

    def _state(self, unit: str) -> object:
        """The identity of a unit. A conversation's file changes identity when it is replaced, but
        not by an append; in the trash only whole files come and go."""
        path = self._source / unit
        if unit.startswith("history/"):
            return self._disk.status(path).st_ino
        self._disk.status(path)  # it may be gone
        return self._names_below(path)

    def _names_below(self, folder: Path) -> list[object]:
        return [
            (name, self._names_below(folder / name))
            if self._disk.is_directory(folder / name)
            else name
            for name in self._disk.names_in(folder)
        ]

    def _copy_lines(self, source: Path, target: Path) -> None:
        """Copies the acknowledged lines. A file that is damaged or not ours is copied as it is."""
        with self._reading(source) as (read, sizes):
            for look in range(_LOOKS_MAX):
                try:
                    found = survey(read, sizes())
                    tail = found_tail(read, found)
                except (BadHeader, BadLine, Damage, LaterFormat):
                    time.sleep(0.01 * look)  # an append may have been met half done
                    continue
                self._write(target, chain(read_blocks(read, 0, tail.end), [tail.closing_line]))
                return
        self._copy_file(source, target)

    def _copy_tree(self, source: Path, target: Path, *, is_folder: bool = False) -> None:
        """Copies a file or a folder, if it exists."""
        if self._disk.is_directory(source) and session_id_of(source.name) is not None:
            self._left_out[source] = "it is a directory"
        elif self._disk.is_directory(source):
            self._target_disk.make_directory(target)
            for name in self._disk.names_in(source):
                if not name.endswith(".part"):
                    self._copy_tree(source / name, target / name)
        elif is_folder:
            self._left_out[source] = _reason(self._disk, source)
        else:
            with suppress(FileNotFoundError), self._left_out_if_unreadable(source, target):
                self._copy_file(source, target)

    def _copy_file(self, source: Path, target: Path) -> None:
        with self._reading(source) as (read, sizes):
            self._write(target, read_blocks(read, 0, sizes()))

    @contextmanager
    def _left_out_if_unreadable(self, source: Path, target: Path) -> Iterator[None]:
        self._left_out.pop(source, None)
        try:
            yield
        except _CannotBeRead as reason:
            self._left_out[source] = str(reason)
            self._target_disk.remove(target)

    @contextmanager
    def _reading(self, source: Path) -> Iterator[tuple[Read, Callable[[], int]]]:
        """Yields a reader, and a function that returns the file's size."""
        try:
            descriptor = self._disk.open(source, os.O_RDONLY)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _CannotBeRead(error.strerror) from error

        def read(offset: int, length: int) -> bytes:
            try:
                return reader_of(self._disk, descriptor)(offset, length)
            except OSError as error:
                raise _CannotBeRead(error.strerror) from error

        try:
            yield read, lambda: self._disk.size(descriptor)
        finally:
            self._disk.close(descriptor)

    def _write(self, target: Path, blocks: Iterable[bytes]) -> None:
        """Writes the blocks, with zeros as holes: a file may end in gigabytes of them."""
        disk, size = self._target_disk, 0
        with opened(disk, target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            for block in blocks:
                if block.count(0) != len(block):
                    write_all(disk, descriptor, block, size)
                size += len(block)
            disk.truncate(descriptor, size)
            disk.sync(descriptor)
        self._done.size += size

    def _remove(self, unit: str) -> None:
        path, disk = self._target / unit, self._target_disk
        if unit.startswith("trash/"):
            disk.remove_tree(path)
            return
        for name in (path.name, *companions(disk.names_in(path.parent), path)):
            disk.remove_tree(path.with_name(name))
        disk.remove_tree(self._target / f"files/{session_id_of(path.name)}")
