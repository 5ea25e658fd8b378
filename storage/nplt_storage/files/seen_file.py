"""The marks of a data directory's conversations, in one file.

    <data_dir>/seen.jsonl

Each line is a mark, `{"session_id": …, "seen_seq": …}`; the last line of a conversation counts. A
mark that a client set is synced before it is acknowledged; several that wait share one sync. The
first mark of a conversation is only written: if a power cut loses it, the conversation gets another
one when it is opened again. A deleted conversation keeps its mark, because it may be restored. The
file is rewritten when most of its lines are out of date or of conversations that are gone, whose
marks are forgotten then. A line that can't be read is ignored.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec
from msgspec import Struct

from nplt_storage.errors import StorageUnavailable
from nplt_storage.file_system import Disk, opened, opened_to_read, write_all, write_new_file
from nplt_storage.seen_marks import first_mark

log = logging.getLogger(__name__)

NAME: Final = "seen.jsonl"
_SURPLUS_LINES_MAX: Final = 1_000


class _Mark(Struct, frozen=True):
    session_id: str
    seen_seq: int


_decode: Final = msgspec.json.Decoder(_Mark).decode
_encode: Final = msgspec.json.Encoder().encode


class SeenFile:
    """May be used from any thread. `marks` has the marks, those changed last at the end; only this
    class changes it."""

    def __init__(self, disk: Disk, path: Path, *, known: Collection[str]) -> None:
        """`known` has the ids of the conversations that are there."""
        self.marks: dict[str, int] = {}
        self._disk = disk
        self._path = path
        self._known = known
        self._lock = Lock()
        """Held while `marks` or the lines to write are changed."""
        self._writing = Lock()
        """Held while the file is written."""
        self._unwritten: dict[str, int] = {}
        self._size = 0
        self._lines = 0
        self._is_sound = False
        """Whether the file is there, and holds whole lines only, all of them written without an
        error. If not, the next write replaces it."""
        self._is_synced = False

    def load(self) -> None:
        """Blocks. A file that can't be read is left as it is until the first mark is written."""
        try:
            with opened_to_read(self._disk, self._path) as (read, size):
                data = read(0, size)
        except FileNotFoundError:
            return
        except OSError as error:
            log.error("%s can't be read, everything counts as seen: %s", self._path.name, error)
            return
        self._size = len(data)
        self._is_sound = not data or data.endswith(b"\n")
        for line in data.splitlines():
            self._lines += 1
            try:
                mark = _decode(line)
            except msgspec.DecodeError:
                self._is_sound = False
                continue
            self.marks.pop(mark.session_id, None)
            self.marks[mark.session_id] = mark.seen_seq

    def begin(self, session_id: str, head_seq: int) -> None:
        """Gives a conversation that is opened for writing its first mark, if it has none that
        fits. Blocks."""
        known = self.marks.get(session_id)
        mark = first_mark(known, head_seq)
        if mark != known:
            self.note(session_id, mark)
            try:
                self.write(sync=False)
            except StorageUnavailable as error:
                log.warning("a mark is not written yet: %s", error)

    def note(self, session_id: str, seq: int) -> None:
        """Sets the mark in memory; `write` puts it on disk."""
        with self._lock:
            self.marks.pop(session_id, None)
            self.marks[session_id] = seq
            self._unwritten[session_id] = seq

    def write(self, *, sync: bool = True) -> None:
        """Writes the marks that were noted. When this returns, all that were noted before are
        written, whichever thread did it. Blocks."""
        with self._writing:
            with self._lock:
                unwritten, self._unwritten = self._unwritten, {}
            try:
                if not self._is_sound or self._lines > 2 * len(self._known) + _SURPLUS_LINES_MAX:
                    self._rewrite(unwritten)
                elif unwritten:
                    self._append(unwritten)
                if sync:
                    self._sync()
            except OSError as error:
                # What a failed write or sync has left on disk is unknown.
                self._is_sound = False
                raise StorageUnavailable(f"{NAME} can't be written: {error.strerror}") from error

    def _append(self, marks: Mapping[str, int]) -> None:
        data = _lines_of(marks)
        with opened(self._disk, self._path, os.O_WRONLY) as descriptor:
            write_all(self._disk, descriptor, data, self._size)
        self._is_synced = False
        self._size += len(data)
        self._lines += len(marks)

    def _rewrite(self, unwritten: Mapping[str, int]) -> None:
        """Rewrites the file. The conversations of `unwritten` may not be created yet."""
        with self._lock:
            spared = unwritten.keys() | self._unwritten.keys()
            for session_id in [each for each in self.marks if each not in self._known]:
                if session_id not in spared:
                    del self.marks[session_id]
            marks = dict(self.marks)
        data = _lines_of(marks)
        write_new_file(self._disk, self._path, data)
        self._size, self._lines = len(data), len(marks)
        self._is_sound = self._is_synced = True

    def _sync(self) -> None:
        if not self._is_synced:
            with opened(self._disk, self._path, os.O_WRONLY) as descriptor:
                self._disk.sync_data(descriptor)
            self._is_synced = True


def _lines_of(marks: Mapping[str, int]) -> bytes:
    return b"".join(_encode(_Mark(session_id, seq)) + b"\n" for session_id, seq in marks.items())
