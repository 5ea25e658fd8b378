"""What a running answer has said so far, so that it outlives the process.

    {"turn_id":"…","call":0,"kind":"text","text":"Hel","crc":"9ae0daaf"}

One line per piece beside the conversation's file, written before the piece is
shown; no sync, no second write, a few microseconds. Once the record holds the
call, or the turn has ended, the pieces are stale: the next answer begins by
emptying the file, and closing the conversation removes it. Nothing here is
ever an error: the entry at the end of the call is what counts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import orjson

from nplt_storage.facts.entries import Entry
from nplt_storage.facts.lines import crc_suffix
from nplt_storage.file_operations import FileOperations, read_all
from nplt_storage.files.access import opened
from nplt_storage.said import Piece, outdates
from nplt_storage.store import SaidSoFar

log = logging.getLogger(__name__)

_READ_BYTES_MAX: Final = 64 * 1024 * 1024
_CRC_BYTES: Final = len(crc_suffix(b""))


class LiveJournal:
    """Used by the conversation's one writer."""

    def __init__(self, path: Path, *, files: FileOperations, said: SaidSoFar | None = None) -> None:
        """`said`: what the file holds from before and still counts. It stays until
        an entry outdates it, or another call begins to speak."""
        self._path = path
        self._files = files
        self._descriptor: int | None = None
        self._end = 0
        self._call = None if said is None else (said.turn_id, said.call)
        """Whose pieces are in the file; `None`: nobody's that still count."""
        self._is_whole = False
        self._has_complained = False

    def say(self, turn_id: str, call: int, kind: Literal["text", "reasoning"], text: str) -> None:
        try:
            if self._descriptor is None or self._call != (turn_id, call):
                self._begin(turn_id, call)
            elif not self._is_whole:
                return  # a piece is missing: what comes after it would be joined wrongly
            piece = encode_piece((turn_id, call, kind, text))
            assert self._descriptor is not None
            written = self._files.write(self._descriptor, piece, self._end)
            self._end += written
            self._is_whole = written == len(piece)
        except (OSError, orjson.JSONEncodeError) as error:
            self._is_whole = False
            if not self._has_complained:
                log.warning("%s: what is being said can't be noted: %s", self._path.name, error)
                self._has_complained = True

    def note(self, entry: Entry) -> None:
        """That entry is in the record now. No descriptor is kept for silence."""
        if self._call is not None and outdates(entry, *self._call):
            self._call = None
            with suppress(OSError):
                self._release()

    def close(self) -> None:
        """Blocks. What is stale goes; what still counts stays for the next process."""
        with suppress(OSError):
            self._release()
            self.drop_stale()

    def drop_stale(self) -> None:
        """Blocks. Pieces of a running answer stay."""
        if self._call is None:
            self._release()
            self._files.remove(self._path)

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._files.close(descriptor)

    def _begin(self, turn_id: str, call: int) -> None:
        self._call, self._is_whole = (turn_id, call), False
        if self._descriptor is None:
            self._descriptor = self._files.open(self._path, os.O_WRONLY | os.O_CREAT)
        self._files.truncate(self._descriptor, 0)
        self._end = 0


def encode_piece(piece: Piece) -> bytes:
    turn_id, call, kind, text = piece
    source = {"turn_id": turn_id, "call": call, "kind": kind, "text": text}
    body = orjson.dumps(source)[:-1]
    return b"%b%b\n" % (body, crc_suffix(body))


def sound_pieces(data: bytes) -> Iterator[Piece]:
    """Up to the first that is not whole."""
    for line in data.splitlines(keepends=True):
        body = line[: -_CRC_BYTES - 1]
        if line != body + crc_suffix(body) + b"\n":
            return
        piece = orjson.loads(body + b"}")
        yield piece["turn_id"], piece["call"], piece["kind"], piece["text"]


def read_journal(files: FileOperations, path: Path) -> bytes:
    """Nothing, if there is none or it can't be read."""
    try:
        with opened(files, path, os.O_RDONLY) as descriptor:
            return read_all(files, descriptor, min(files.size(descriptor), _READ_BYTES_MAX), 0)
    except OSError:
        return b""
