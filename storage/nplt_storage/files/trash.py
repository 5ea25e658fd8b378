"""Moves deleted conversations to the trash, and back.

    trash/days.json                 on which day of service each was deleted
    trash/YYYYMMDDTHHMMSS_<id>/     the time of deletion (UTC); the conversation's files:
        session_YYYYMMDD_<id>.json  its own file, and those next to it
        files/                      its attachments

The conversation's own file is moved first, which deletes the conversation, and restored last. If
a crash interrupts a deletion, the other files stay behind without it, and are moved at the next
start. Nothing is overwritten: a file whose name is taken gets another name, and folders are
merged, because files with equal names in them have equal bytes. Everything here blocks.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import chain, count, islice
from pathlib import Path
from typing import Final

from msgspec import DecodeError, Struct, field
from msgspec.json import decode, encode

from nplt_storage.codec import BadLine
from nplt_storage.errors import ConversationExists, ConversationNotFound
from nplt_storage.file_system import (
    DataDirectory,
    Disk,
    NotOurs,
    opened_to_read,
    write_new_file,
)
from nplt_storage.files.conversation_file import plain_errors
from nplt_storage.files.format import (
    LOCAL_USER,
    BadHeader,
    LaterFormat,
    companion_of,
    companions,
    read_header,
    session_id_of,
)
from nplt_storage.files.salvage import salvaged

log = logging.getLogger(__name__)

KEPT_FOR: Final = timedelta(days=30)

DAYS_NAME: Final = "days.json"
_DAYS_BYTES_MAX: Final = 16 * 1024 * 1024
_ATTACHMENTS: Final = "files"
_TIME: Final = "%Y%m%dT%H%M%S"
_FOLDER: Final = re.compile(r"([0-9]{8}T[0-9]{6})_([^~]+)(?:~[0-9]+)?")


class _ServerDays(Struct, frozen=True):
    """The number of days on which a server has used this directory."""

    day: int = 0
    date: str = ""
    """The last of these dates."""
    deleted: dict[str, int] = field(default_factory=dict)
    """The day on which each folder was first seen."""


class Trash:
    def __init__(
        self, disk: Disk, directory: DataDirectory, *, unknown_user: str = LOCAL_USER
    ) -> None:
        """`unknown_user` is the owner of a conversation whose file names none."""
        self._disk = disk
        self._directory = directory
        self._unknown_user = unknown_user

    def put(
        self, session_id: str, *, at: datetime, gone: Callable[[], None] = lambda: None
    ) -> None:
        """Moves a conversation's file (or both, if it has two) and everything that belongs to it to
        the trash. `gone` is called as soon as no file of it is left, even if a later step fails."""
        disk, history = self._disk, self._directory.history
        with plain_errors(session_id):
            names = disk.names_in(history, with_part=session_id)
            paths = [history / name for name in names if session_id_of(name) == session_id]
            if not paths:
                raise ConversationNotFound(session_id)
            trash, name = self._directory.trash, f"{at.astimezone(UTC):{_TIME}}_{session_id}"
            folder = trash / self._free_name(trash, name)
            disk.make_directory(folder)
            for path in paths:
                disk.rename(path, folder / path.name)
            gone()
            disk.sync_directory(folder)
            disk.sync_directory(history)
            companion_names = [name for path in paths for name in companions(names, path)]
            for name in companion_names:
                disk.rename(history / name, folder / name)
            if companion_names:
                disk.sync_directory(folder)
                disk.sync_directory(history)
            if disk.names_in(self._directory.files / session_id):
                disk.rename(self._directory.files / session_id, folder / _ATTACHMENTS)
                disk.sync_directory(folder)
                disk.sync_directory(self._directory.files)

    def restore(self, session_id: str, *, user: str | None = None) -> list[str]:
        """Restores the files of the latest deletion of that user's conversation, and returns
        their names."""
        disk, history, files = self._disk, self._directory.history, self._directory.files
        with plain_errors(session_id):
            found = self._deletions(session_id)
            latest = next(
                (path for path in found if user in (None, self._user_in(path, session_id))), None
            )
            if latest is None:
                raise ConversationNotFound(session_id)
            folder = latest.parent
            names = disk.names_in(folder)
            whole = [name for name in names if session_id_of(name) == session_id]
            there = disk.names_in(history, with_part=session_id)
            if any(session_id_of(name) == session_id for name in there):
                raise ConversationExists(session_id)
            if _ATTACHMENTS in names:
                self._merge(folder / _ATTACHMENTS, files / session_id)
                disk.sync_directory(files)
            for name in names:
                if name not in (*whole, _ATTACHMENTS):
                    self._move(folder / name, history)
            disk.sync_directory(history)
            for name in whole:
                disk.rename(folder / name, history / name)
            disk.sync_directory(history)
            disk.remove_tree(folder)
        return whole

    def conversations(self) -> Iterator[tuple[datetime, str, Path]]:
        """The time of deletion, the id and the file of each, last deleted first."""
        for name in reversed(self._folders()):
            session_id = deleted_id(name)
            folder = self._directory.trash / name
            with suppress(ValueError):  # not a date, so the folder was made by hand
                at = datetime.strptime(name[:15], _TIME).replace(tzinfo=UTC)
                for file in self._disk.names_in(folder):
                    if session_id is not None and session_id_of(file) == session_id:
                        yield at, session_id, folder / file

    def _deletions(self, session_id: str) -> Iterator[Path]:
        """The file of each deletion of that conversation, last deleted first. If one has two files,
        the first names the owner."""
        for name in reversed(self._folders(session_id)):
            if deleted_id(name) == session_id:
                folder = self._directory.trash / name
                names = self._disk.names_in(folder)
                files = (folder / file for file in names if session_id_of(file) == session_id)
                yield from islice(files, 1)

    def finish(self, names: Sequence[str]) -> None:
        """Completes deletions that a crash interrupted. `names` are the files in the directory of
        conversations; files that can't be moved stay there."""
        disk, history, files = self._disk, self._directory.history, self._directory.files
        there = {session_id_of(name) for name in names}
        folders = {deleted_id(name): self._directory.trash / name for name in self._folders()}
        left = {owner: folder for owner, folder in folders.items() if owner not in there}
        for name in names:
            if (owner := companion_of(name)) in left:
                with _left_if_it_fails(name):
                    self._move(history / name, left[owner])
        for owner in disk.names_in(files):
            if owner in left:
                with _left_if_it_fails(f"{_ATTACHMENTS}/{owner}"):
                    if disk.names_in(files / owner):
                        self._merge(files / owner, left[owner] / _ATTACHMENTS)

    def empty(self, now: datetime, *, days_served: int = 1) -> int:
        """Removes conversations deleted longer ago than `KEPT_FOR` for good, and returns their
        number. Because a clock may be wrong, a server must also have run on that many days since.
        `days_served` counts the days since the last call, unless that was on the same day."""
        count = self._count_days(now, days_served)
        oldest = f"{(now - KEPT_FOR).astimezone(UTC):{_TIME}}"
        old = [
            name
            for name, day in count.deleted.items()
            if name[: len(oldest)] < oldest and count.day - day > KEPT_FOR.days
        ]
        for name in old:
            self._disk.remove_tree(self._directory.trash / name)
        return len(old)

    def _count_days(self, now: datetime, days_served: int) -> _ServerDays:
        """Records the deletions since the last call as deleted today."""
        path = self._directory.trash / DAYS_NAME
        before, today = _ServerDays(), f"{now.astimezone(UTC):%Y-%m-%d}"
        with (
            suppress(OSError, DecodeError, UnicodeDecodeError),
            opened_to_read(self._disk, path) as (read, size),
        ):
            before = decode(read(0, min(size, _DAYS_BYTES_MAX)), type=_ServerDays)
        day = before.day + (max(1, days_served) if before.date not in ("", today) else 0)
        deleted = {name: before.deleted.get(name, day) for name in self._folders()}
        count = _ServerDays(day=day, date=today, deleted=deleted)
        if count != before and (deleted or before.deleted):
            try:
                write_new_file(self._disk, path, encode(count))
            except OSError as error:
                log.warning("the days of the trash can't be counted: %s", error.strerror)
        return count

    def owners(self, session_id: str) -> set[str]:
        """The users whose deleted conversations of that id are in the trash."""
        with plain_errors(session_id):
            return {self._user_in(path, session_id) for path in self._deletions(session_id)}

    def _user_in(self, path: Path, session_id: str) -> str:
        try:
            with opened_to_read(self._disk, path) as (read, size):
                try:
                    return read_header(read, size)[0].user
                except (BadHeader, BadLine):
                    header, _ = salvaged(read, size, session_id)
                    return self._unknown_user if header is None else header.user
        except (LaterFormat, NotOurs):
            return self._unknown_user

    def _move(self, path: Path, folder: Path) -> None:
        if path.suffix == ".blobs":
            self._merge(path, folder / path.name)
        else:
            self._disk.rename(path, folder / self._free_name(folder, path.name))

    def _merge(self, source: Path, target: Path) -> None:
        there = set(self._disk.names_in(target))
        if not there:
            self._disk.rename(source, target)
            return
        for name in self._disk.names_in(source):
            if name not in there:
                self._disk.rename(source / name, target / name)
        self._disk.sync_directory(target)
        self._disk.remove_tree(source)

    def _free_name(self, folder: Path, name: str) -> str:
        taken = self._disk.names_in(folder, with_part=name)
        numbered = (f"{name}~{number}" for number in count(2))
        return next(each for each in chain([name], numbered) if each not in taken)

    def _folders(self, session_id: str = "") -> list[str]:
        """The folders, oldest deletion first; with `session_id`, those whose names contain it."""
        names = self._disk.names_in(self._directory.trash, with_part=session_id)
        found = [name for name in names if _FOLDER.fullmatch(name)]
        return sorted(found, key=lambda name: (name[:15], len(name), name))


@contextmanager
def _left_if_it_fails(name: str) -> Iterator[None]:
    """Logs a failure and continues, because one leftover must not prevent the start."""
    try:
        yield
    except OSError as error:
        log.warning("%s was deleted and can't be moved to the trash: %s", name, error.strerror)


def deleted_id(folder: str) -> str | None:
    """The id of the conversation in that folder of the trash, or `None`."""
    parts = _FOLDER.fullmatch(folder)
    return parts[2] if parts else None
