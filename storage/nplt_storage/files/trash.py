"""Deleting a conversation: a move, not an end; for a while it can be brought back.

    trash/YYYYMMDDTHHMMSS_<id>/     when it was deleted (UTC), and all of it:
        session_YYYYMMDD_<id>.json  and what stood beside it
        files/                      its attachments

The conversation's file goes first: with it the conversation is gone, in one
step. It comes back last. What a crash left in between stands in the directory
of conversations without its file, and is moved after it at the next start.
Nothing is overwritten: what meets its own name gets another, and folders are
merged, for in them equal names hold equal bytes. Everything here blocks.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from nplt_storage.data_directory import DataDirectory
from nplt_storage.errors import ConversationExists, ConversationNotFound
from nplt_storage.file_operations import read_all
from nplt_storage.files.access import plain_errors
from nplt_storage.files.disk import Disk
from nplt_storage.files.layout import LOCAL_USER, BadHeader, LaterFormat
from nplt_storage.files.names import companion_of, companions, is_blobs, session_id_of
from nplt_storage.files.recovery import read_header

log = logging.getLogger(__name__)

KEPT_FOR: Final = timedelta(days=30)

_ATTACHMENTS: Final = "files"
_TIME: Final = "%Y%m%dT%H%M%S"
_FOLDER: Final = re.compile(r"([0-9]{8}T[0-9]{6})_([^~]+)(?:~[0-9]+)?")


class Trash:
    def __init__(self, disk: Disk, directory: DataDirectory) -> None:
        self._disk = disk
        self._directory = directory

    def put(
        self, session_id: str, *, at: datetime, gone: Callable[[], None] = lambda: None
    ) -> None:
        """Its file (two, if that is what is wrong with it) and all that belongs to it.
        `gone` is called when no file of it is left, whatever goes wrong after that."""
        disk, history = self._disk, self._directory.history
        with plain_errors(session_id):
            names = disk.names_in(history)
            paths = [history / name for name in names if session_id_of(name) == session_id]
            if not paths:
                raise ConversationNotFound(session_id)
            folder = self._new_folder(f"{at.astimezone(UTC):{_TIME}}_{session_id}")
            for path in paths:
                disk.rename(path, folder / path.name)
            gone()
            disk.sync_directory(folder)
            disk.sync_directory(history)
            self._put_companions(names, paths, folder)
            if disk.names_in(self._directory.files / session_id):
                disk.rename(self._directory.files / session_id, folder / _ATTACHMENTS)
                disk.sync_directory(self._directory.files)
                disk.sync_directory(folder)

    def take_back(self, session_id: str, *, user: str | None = None) -> list[str]:
        """The names its files have again: those of the latest deletion, of what was that
        user's."""
        disk, history, files = self._disk, self._directory.history, self._directory.files
        with plain_errors(session_id):
            folder = self._latest(session_id, user)
            names = disk.names_in(folder)
            whole = [name for name in names if session_id_of(name) == session_id]
            there = set(disk.names_in(history))
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

    def finish(self, names: Sequence[str]) -> None:
        """What a crash left behind of deletions: `names` are those in the directory
        of conversations. What can't be moved stays where it is."""
        disk, history, files = self._disk, self._directory.history, self._directory.files
        there = {session_id_of(name) for name in names}
        folders = {_owner(name): self._directory.trash / name for name in self._folders()}
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

    def empty(self, now: datetime, older_than: timedelta = KEPT_FOR) -> int:
        """Removes for good what was deleted that long ago; says how many there were."""
        oldest = f"{(now - older_than).astimezone(UTC):{_TIME}}"
        old = [name for name in self._folders() if name[: len(oldest)] < oldest]
        for name in old:
            self._disk.remove_tree(self._directory.trash / name)
        return len(old)

    def owners(self, session_id: str) -> set[str]:
        """Whose it was that can be brought back under that id."""
        with plain_errors(session_id):
            users = [self._user_of(folder, session_id) for folder in self._of(session_id)]
        return {user for user in users if user is not None}

    def _user_of(self, folder: Path, session_id: str) -> str | None:
        """Who wrote what is in it, if its file is; of one that does not say, the one there
        is without names."""
        names = self._disk.names_in(folder)
        whole = [name for name in names if session_id_of(name) == session_id]
        return self._user_in(folder / whole[0]) if whole else None

    def _user_in(self, path: Path) -> str:
        descriptor = self._disk.open(path, os.O_RDONLY)
        try:
            size = self._disk.size(descriptor)
            header, _ = read_header(partial(_read, self._disk, descriptor), size)
        except (BadHeader, LaterFormat):
            return LOCAL_USER
        finally:
            self._disk.close(descriptor)
        return header.user

    def _put_companions(self, names: Sequence[str], paths: Sequence[Path], folder: Path) -> None:
        beside = [name for path in paths for name in companions(names, path)]
        for name in beside:
            self._disk.rename(self._directory.history / name, folder / name)
        if beside:
            self._disk.sync_directory(folder)
            self._disk.sync_directory(self._directory.history)

    def _move(self, path: Path, folder: Path) -> None:
        if is_blobs(path.name):
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
        taken = set(self._disk.names_in(folder))
        return next(each for number in count(1) if (each := _numbered(name, number)) not in taken)

    def _new_folder(self, name: str) -> Path:
        folder = self._directory.trash / self._free_name(self._directory.trash, name)
        self._disk.make_directory(folder)
        return folder

    def _latest(self, session_id: str, user: str | None) -> Path:
        for folder in reversed(self._of(session_id)):
            whose = self._user_of(folder, session_id)
            if whose is not None and user in (None, whose):
                return folder
        raise ConversationNotFound(session_id)

    def _of(self, session_id: str) -> list[Path]:
        folders = self._folders()
        return [self._directory.trash / name for name in folders if _owner(name) == session_id]

    def _folders(self) -> list[str]:
        """The oldest deletion first."""
        names = self._disk.names_in(self._directory.trash)
        return sorted((name for name in names if _FOLDER.fullmatch(name)), key=_age_key)


def _read(disk: Disk, descriptor: int, offset: int, length: int) -> bytes:
    return read_all(disk, descriptor, length, offset)


@contextmanager
def _left_if_it_fails(name: str) -> Iterator[None]:
    """One leftover is no reason not to start."""
    try:
        yield
    except OSError as error:
        log.warning("%s was deleted and can't be moved to the trash: %s", name, error.strerror)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}~{number}"


def _owner(folder: str) -> str:
    parts = _FOLDER.fullmatch(folder)
    assert parts is not None
    return parts[2]


def _age_key(folder: str) -> tuple[str, int, str]:
    return folder[:15], len(folder), folder
