"""The live journal: the text of a running answer, stored in case the process dies.

    {"turn_id":"…","call":0,"kind":"text","text":"Hel","crc":"9ae0daaf"}

It has one line per piece, written without a sync before the piece is sent. Once the record
contains the call's entry, or the turn has ended, the pieces are stale: the next answer overwrites
them, and closing the conversation removes the file. A failure here is only logged, because the
entry at the end of the call is authoritative.

Every write ends with an empty line, which the next write overwrites; anything after the empty
line is stale. So the file need not be truncated for each answer, which on ext4 costs more than
all other writes of a short answer. It stays open for the next answer, because opening it takes
longer than the write.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

import orjson

from nplt_storage.codec import crc_suffix
from nplt_storage.entries import Entry
from nplt_storage.file_system import FileOperations, opened, read_all
from nplt_storage.partial_answers import DeltaKind, PartialAnswer, Piece, outdates

log = logging.getLogger(__name__)

_READ_BYTES_MAX: Final = 64 * 1024 * 1024
_CRC_BYTES: Final = len(crc_suffix(b""))


class LiveJournal:
    """The text of a running answer. Used by the conversation's one writer, and by its redactions in
    a worker thread."""

    def __init__(
        self, path: Path, *, files: FileOperations, partial_answer: PartialAnswer | None = None
    ) -> None:
        """`partial_answer` is the text in the file that is still valid. It stays until an entry
        outdates it, or another call begins."""
        self._path = path
        self._files = files
        self._descriptor: int | None = None
        self._end = 0
        self._call: tuple[str, int] | None = None
        """The turn and call of the pieces in the file; `None` if they are no longer valid."""
        if partial_answer is not None:
            self._call = (partial_answer.turn_id, partial_answer.call)
        self._is_whole = False
        self._has_complained = False
        self._lock = Lock()

    def journal_delta(self, turn_id: str, call: int, kind: DeltaKind, text: str) -> None:
        with self._lock:
            try:
                self._write((turn_id, call, kind, text))
            except (OSError, orjson.JSONEncodeError) as error:
                self._is_whole = False
                if not self._has_complained:
                    log.warning("%s: what is being said can't be noted: %s", self._path.name, error)
                    self._has_complained = True

    def note(self, entry: Entry) -> None:
        """Called when `entry` is in the record."""
        with self._lock:
            if self._call is not None and outdates(entry, *self._call):
                self._call = None

    def close(self) -> None:
        """Removes stale text and keeps valid text for the next process. Blocks."""
        with suppress(OSError):
            self.drop_stale()
        with self._lock, suppress(OSError):
            self._release()

    def drop_stale(self) -> None:
        """Removes stale text; pieces of a running answer stay. Blocks."""
        with self._lock:
            if self._call is None:
                self._release()
                self._files.remove(self._path)
                return
            end = sum(map(len, sound_lines(read_journal(self._files, self._path))))
            with opened(self._files, self._path, os.O_WRONLY) as descriptor:
                self._files.truncate(descriptor, end)

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._files.close(descriptor)

    def _write(self, piece: Piece) -> None:
        if self._descriptor is None or self._call != piece[:2]:
            self._call, self._is_whole, self._end = piece[:2], True, 0
            if self._descriptor is None:
                self._descriptor = self._files.open(self._path, os.O_WRONLY | os.O_CREAT)
        if self._is_whole:  # otherwise a piece is missing, and the next one would be joined wrongly
            line = encode_piece(piece)
            written = self._files.write(self._descriptor, line + b"\n", self._end)
            self._is_whole = written == len(line) + 1
            self._end += len(line)


def encode_piece(piece: Piece) -> bytes:
    turn_id, call, kind, text = piece
    source = {"turn_id": turn_id, "call": call, "kind": kind, "text": text}
    body = orjson.dumps(source)[:-1]
    return b"%b%b\n" % (body, crc_suffix(body))


def sound_lines(data: bytes) -> Iterator[bytes]:
    """The lines up to the first that is incomplete or empty."""
    start = 0
    while (end := data.find(b"\n", start) + 1) > 0:
        line, start = data[start:end], end
        body = line[: -_CRC_BYTES - 1]
        if line != body + crc_suffix(body) + b"\n":
            return
        yield line


def sound_pieces(data: bytes) -> Iterator[Piece]:
    for line in sound_lines(data):
        piece = orjson.loads(line)
        yield piece["turn_id"], piece["call"], piece["kind"], piece["text"]


def read_journal(files: FileOperations, path: Path) -> bytes:
    """The journal's bytes, or b"" if there is no journal or it can't be read."""
    try:
        with opened(files, path, os.O_RDONLY) as descriptor:
            return read_all(files, descriptor, min(files.size(descriptor), _READ_BYTES_MAX), 0)
    except OSError:
        return b""
