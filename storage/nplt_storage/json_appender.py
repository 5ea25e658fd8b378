"""Appending to a conversation's file: the commit, and what to do when it fails.

One commit is one line, and one write at the start of the closing line: the new
line and a new closing line. Then a sync, then the acknowledgement. No byte of
an acknowledged line changes again. If the write fails the old closing line is
put back; if the sync fails nobody knows what is on disk, so the file is closed
and made whole again, up to the last acknowledged line, before the next append.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from nplt_storage.entries import Entry
from nplt_storage.errors import BadEntry, ConversationReadOnly, StorageUnavailable
from nplt_storage.file_operations import write_all
from nplt_storage.json_file import JsonFile
from nplt_storage.json_layout import advance, encode_closing
from nplt_storage.json_opening import plain_errors, reader_of
from nplt_storage.json_reader import Segment, verified
from nplt_storage.lines import encode_line
from nplt_storage.recovery import Damage, Tail, make_whole


class Appender:
    def __init__(self, file: JsonFile, descriptor: int | None = None) -> None:
        """The descriptor is ours from here on; without one the first append opens the file."""
        self._file = file
        self._files = file.files
        self._descriptor = descriptor

    @property
    def session_id(self) -> str:
        return self._file.session_id

    def append(self, entry: Entry, *, wanted: Callable[[], bool] = lambda: True) -> None:
        """On disk when it returns. `wanted` is asked once it is there: a line that
        nobody waits for any more is not counted in, and goes aside later."""
        with self._file.writing:
            tail = self._file.tail
            assert tail is not None
            if entry.seq != tail.closing.head_seq + 1:
                raise BadEntry(f"entry {entry.seq} can't follow entry {tail.closing.head_seq}")
            comma = b"" if tail.end == tail.first else b","
            record = b"%b%b\n" % (comma, encode_line(entry))
            closing = advance(tail.closing, entry.kind, at=entry.timestamp, offset=tail.end)
            self._commit(record + encode_closing(closing), tail)
            if wanted():
                end = tail.end + len(record)
                self._file.tail = Tail(first=tail.first, last=tail.end, end=end, closing=closing)
            else:
                self.release()

    def release(self) -> None:
        """Gives the descriptor back; a further append would make the file whole first."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):  # it is closed all the same
                self._files.close(descriptor)

    def _commit(self, data: bytes, tail: Tail) -> None:
        descriptor = self._reopen(tail) if self._descriptor is None else self._descriptor
        try:
            write_all(self._files, descriptor, data, tail.end)
        except OSError as error:
            self._put_back(descriptor, tail)
            raise StorageUnavailable(f"writing failed: {error.strerror}") from error
        try:
            self._files.sync_data(descriptor)
        except OSError as error:
            self.release()
            raise StorageUnavailable(f"the disk did not confirm: {error.strerror}") from error

    def _put_back(self, descriptor: int, tail: Tail) -> None:
        closing = encode_closing(tail.closing)
        try:
            self._files.truncate(descriptor, tail.end + len(closing))
            write_all(self._files, descriptor, closing, tail.end)
            self._files.sync_data(descriptor)
        except OSError:
            self.release()

    def _reopen(self, tail: Tail) -> int:
        """After a failure: what follows the last acknowledged line goes aside,
        whole or not, for whoever asked for it was told that it failed."""
        try:
            descriptor = self._files.open(self._file.path, os.O_RDWR)
        except OSError as error:
            raise self._read_only(error) from error
        try:
            with plain_errors(self.session_id):
                self._check_last_line(descriptor, tail)
            make_whole(self._files, descriptor, self._file.path, tail=tail)
        except BaseException as error:
            self._files.close(descriptor)
            if isinstance(error, OSError):
                raise self._read_only(error) from error
            raise
        self._descriptor = descriptor
        return descriptor

    def _check_last_line(self, descriptor: int, tail: Tail) -> None:
        if tail.last < tail.end:
            data = reader_of(self._files, descriptor)(tail.last, tail.end - tail.last)
            line = verified(Segment(tail.last, data), first=tail.first)
            if line.seq != tail.closing.head_seq:
                raise Damage(f"line {line.seq} stands where {tail.closing.head_seq} should")

    def _read_only(self, error: OSError) -> ConversationReadOnly:
        reason = f"the disk is not well ({error.strerror})"
        return ConversationReadOnly(self.session_id, reason)
