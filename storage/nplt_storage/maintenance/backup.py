"""Copies a data directory, also while a server writes to it.

Each conversation in the copy is whole, as it was at some moment of the copying: its file ends
with a line that verifies and the closing line that belongs to it, and all that its lines name
is there. A conversation is copied file first, because what a line names is on disk before the
line; if the file was replaced meanwhile (a redaction, a repair) it is copied again. What moves
to the trash or back while it is copied is followed. The index is left out: it is made anew.

The copy is made beside its place and gets its name when it is complete. Nothing in the source
is locked or changed. Everything here blocks.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from msgspec import Struct

from nplt_storage.attachments import is_unfinished_copy
from nplt_storage.file_system import (
    Disk,
    FileOperations,
    make_private_directory,
    opened,
    opened_to_read,
    read_blocks,
    reader_of,
    sync_directory,
    write_blocks,
)
from nplt_storage.files.conversation_file import found_tail
from nplt_storage.files.format import (
    BadHeader,
    Damage,
    LaterFormat,
    companions,
    session_id_of,
    survey,
)
from nplt_storage.files.trash import DAYS_NAME, deleted_id

_LOOKS_MAX: Final = 3
_ROUNDS_MAX: Final = 100
_PARTS: Final = ("history", "files", "trash")


class CannotBackUp(Exception):
    """Says why, as a sentence; nothing is left at the target."""


class BackedUp(Struct):
    conversations: int = 0
    deleted: int = 0
    """In the trash."""
    size: int = 0


Progress = Callable[[int, int], None]
"""How many of how many conversations were copied."""


def back_up(data_dir: Path, target: Path, *, progress: Progress) -> BackedUp:
    """Raises `CannotBackUp`, or `OSError`."""
    if not (data_dir / "history").is_dir():
        raise CannotBackUp(f"{data_dir} is no data directory: there is no history in it")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CannotBackUp(f"{target} is there already; give a directory that is not")
    if data_dir.resolve() in (target.resolve(), *target.resolve().parents):
        raise CannotBackUp(f"{target} is inside of {data_dir}")
    beside = target.with_name(f".{target.name}.new")
    shutil.rmtree(beside, ignore_errors=True)  # left by one that was stopped
    done = BackedUp()
    try:
        for root in (data_dir, *sorted((data_dir / "histories").glob("*/"))):
            _Copy(root, beside / root.relative_to(data_dir), done, progress).run()
        for folder, _, _ in os.walk(beside):
            sync_directory(Path(folder))
        if target.exists():
            target.rmdir()
        beside.rename(target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return done


class _Copy:
    """One directory with a history, its attachments and its trash."""

    def __init__(self, source: Path, target: Path, done: BackedUp, progress: Progress) -> None:
        self._source = source
        self._target = target
        self._done = done
        self._progress = progress
        for part in ("", *_PARTS):
            make_private_directory(target / part)

    def run(self) -> None:
        """Until nothing that was copied has gone elsewhere since."""
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
        for name in strays:
            folder = self._source / "files" / name
            if name not in here and not name.startswith(".") and not is_unfinished_copy(folder):
                self._copy_tree(folder, self._target / "files" / name)
        with suppress(FileNotFoundError):
            self._copy_file(self._source / "trash" / DAYS_NAME, self._target / "trash" / DAYS_NAME)
        trash = sum(unit.startswith("trash/") for unit in copied)
        self._done.deleted += trash
        self._done.conversations += len(copied) - trash

    def _listed(self) -> list[str]:
        """The trash is looked at before and after the others: what moves is in one of them."""
        before = self._names_in("trash")
        history = [name for name in self._names_in("history") if session_id_of(name) is not None]
        trash = [name for name in {*before, *self._names_in("trash")} if deleted_id(name)]
        units = [*(f"history/{name}" for name in history), *(f"trash/{name}" for name in trash)]
        return sorted(units)

    def _names_in(self, part: str) -> list[str]:
        return Disk().names_in(self._source / part)

    def _copy(self, unit: str) -> bool:
        """False: it is gone, or on its way elsewhere."""
        source, target = self._source / unit, self._target / unit
        for _ in range(_LOOKS_MAX):
            try:
                before = self._state(unit)
                if not unit.startswith("history/"):
                    self._copy_tree(source, target)
                else:
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
        """A conversation's file that is replaced is another file, and one that is appended to
        is not; in the trash only whole files come and go."""
        path = self._source / unit
        if unit.startswith("history/"):
            return path.stat().st_ino
        if not path.is_dir():
            raise FileNotFoundError
        return sorted(str(each) for each in path.rglob("*"))

    def _copy_lines(self, source: Path, target: Path) -> None:
        """A file that is damaged, or none of ours, is copied as it is."""
        files = FileOperations()
        with opened(files, source, os.O_RDONLY) as descriptor:
            for look in range(_LOOKS_MAX):
                read = reader_of(files, descriptor)
                try:
                    found = survey(read, files.size(descriptor))
                    tail = found_tail(read, found)
                except (BadHeader, Damage, LaterFormat):
                    time.sleep(0.01 * look)  # an append may have been met half done
                    continue
                self._write(target, chain(read_blocks(read, 0, tail.end), [tail.closing_line]))
                return
        self._copy_file(source, target)

    def _copy_tree(self, source: Path, target: Path) -> None:
        """A file or a folder; fine if it is not there."""
        if source.is_dir():
            make_private_directory(target)
            for each in sorted(source.iterdir()):
                if not each.name.endswith(".part"):
                    self._copy_tree(each, target / each.name)
        elif source.is_file():
            with suppress(FileNotFoundError):
                self._copy_file(source, target)

    def _copy_file(self, source: Path, target: Path) -> None:
        with opened_to_read(FileOperations(), source) as (read, size):
            self._write(target, read_blocks(read, 0, size))

    def _write(self, target: Path, blocks: Iterable[bytes]) -> None:
        files = FileOperations()
        with opened(files, target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            self._done.size += write_blocks(files, descriptor, blocks)
            files.sync(descriptor)

    def _remove(self, unit: str) -> None:
        path = self._target / unit
        if unit.startswith("trash/"):
            shutil.rmtree(path, ignore_errors=True)
            return
        beside = [each.name for each in path.parent.iterdir()]
        for name in (path.name, *companions(beside, path)):
            each = path.with_name(name)
            if each.is_dir():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink(missing_ok=True)
        shutil.rmtree(self._target / f"files/{session_id_of(path.name)}", ignore_errors=True)
