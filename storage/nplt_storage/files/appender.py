"""Appending to a conversation's file: the commit, and what to do when it fails.

One commit is one line, and one write at the start of the closing line: the new
line and a new closing line. Then a sync, then the acknowledgement. No byte of
an acknowledged line changes again. If the write fails the old closing line is
put back; if the sync fails nobody knows what is on disk, so the file is closed
and made whole again, up to the last acknowledged line, before the next append.

Where syncs come later (see `durability`), one that fails is told to the next
append, which fails; making the file whole then begins at the first line that
no sync has confirmed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

from nplt_storage.errors import BadEntry, ConversationReadOnly, StorageUnavailable
from nplt_storage.facts.entries import Entry
from nplt_storage.facts.lines import encode_line
from nplt_storage.file_operations import write_all
from nplt_storage.files.access import plain_errors, reader_of
from nplt_storage.files.durability import SyncLater
from nplt_storage.files.file import JsonFile
from nplt_storage.files.layout import advance, encode_closing
from nplt_storage.files.reader import LineReader
from nplt_storage.files.recovery import Damage, Tail, make_whole

log = logging.getLogger(__name__)


class Addition(NamedTuple):
    """What an append writes, and how the file ends before and after it."""

    data: bytes
    before: Tail
    after: Tail


class Appender:
    def __init__(
        self,
        file: JsonFile,
        descriptor: int | None = None,
        *,
        sync_later: SyncLater | None = None,
    ) -> None:
        """The descriptor is ours from here on; without one the first append opens the file."""
        self._file = file
        self._files = file.files
        self._descriptor = descriptor
        self._sync_later = sync_later
        self._lock = Lock()
        """Between an append and a sync that comes later; held while the disk works."""
        self._unsynced_from: int | None = None
        """Where the first line begins that no sync has confirmed."""
        self._failure: OSError | None = None
        """What a later sync said; the next append has to know."""

    @property
    def session_id(self) -> str:
        return self._file.session_id

    def prepare(self, entry: Entry) -> Addition:
        """Touches nothing: all that can be said against an entry is said here."""
        tail = self._file.tail
        assert tail is not None
        if entry.seq != tail.closing.head_seq + 1:
            raise BadEntry(f"entry {entry.seq} can't follow entry {tail.closing.head_seq}")
        comma = b"" if tail.end == tail.first else b","
        record = b"%b%b\n" % (comma, encode_line(entry))
        closing = advance(tail.closing, entry.kind, at=entry.timestamp, offset=tail.end)
        end = tail.end + len(record)
        after = Tail(first=tail.first, last=tail.end, end=end, closing=closing)
        return Addition(record + encode_closing(closing), tail, after)

    def append(self, entry: Entry) -> None:
        """Both steps, for whoever is in a thread already."""
        self.commit(self.prepare(entry))

    def commit(self, addition: Addition, *, wanted: Callable[[], bool] = lambda: True) -> None:
        """As durable as it will be acknowledged to be when it returns. `wanted` is
        asked then: a line that nobody waits for any more is not counted in, and
        goes aside later."""
        with self._lock, self._file.writing:
            if self._file.tail is not addition.before:  # it hung while others went on
                raise ConversationReadOnly(self.session_id, "the file was opened anew meanwhile")
            self._write(addition.data, addition.before)
            if wanted():
                self._file.tail = addition.after
            else:
                self._release()

    def sync(self) -> None:
        """For what was written before and is due now."""
        with self._lock:
            if self._descriptor is None or self._unsynced_from is None:
                return
            try:
                self._sync(self._descriptor)
            except OSError as error:
                self._failure = error
                log.error("%s: the disk did not confirm: %s", self._file.path.name, error.strerror)

    def close(self) -> None:
        """Syncs what is due and gives the descriptor back."""
        self.sync()
        with self._lock:
            self._release()
            tail, confirmed = self._file.tail, self._unsynced_from
            if tail is not None and confirmed is not None and confirmed < tail.end:
                log.error("%s: its last lines may not be on disk", self._file.path.name)

    def release(self) -> None:
        """Gives the descriptor back; a further append would make the file whole first."""
        with self._lock:
            self._release()

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):  # it is closed all the same
                self._files.close(descriptor)

    def _write(self, data: bytes, tail: Tail) -> None:
        if self._failure is not None:
            error, self._failure = self._failure, None
            raise self._not_confirmed(error) from error
        descriptor = self._reopen(tail) if self._descriptor is None else self._descriptor
        self._check_undisturbed(descriptor, tail)
        try:
            write_all(self._files, descriptor, data, tail.end)
        except OSError as error:
            self._put_back(descriptor, tail)
            raise StorageUnavailable(f"writing failed: {error.strerror}") from error
        if self._sync_later is not None and self._unsynced_from is not None:
            return  # it is due already
        if not self._is_left_for_later(tail):
            try:
                self._sync(descriptor)
            except OSError as error:
                raise self._not_confirmed(error) from error

    def _check_undisturbed(self, descriptor: int, tail: Tail) -> None:
        """Nobody else may write here; who does all the same (an editor, a restored
        backup) must not make us acknowledge what nobody will find."""
        known = tail.end + len(encode_closing(tail.closing))
        try:
            is_ours = self._files.size(descriptor) == known
            if is_ours and self._files.is_at(descriptor, self._file.path):
                return
        except OSError as error:
            raise StorageUnavailable(f"the file can't be seen: {error.strerror}") from error
        raise ConversationReadOnly(
            self.session_id, "its file was changed or replaced by another program"
        )

    def _is_left_for_later(self, tail: Tail) -> bool:
        if self._sync_later is None:
            return False
        try:
            self._sync_later(self.sync)
        except StorageUnavailable:
            return False  # nobody to do it later: it is done now
        self._unsynced_from = tail.end
        return True

    def _sync(self, descriptor: int) -> None:
        try:
            self._files.sync_data(descriptor)
        except OSError:
            self._release()  # a second sync through it would lie
            raise
        self._unsynced_from = None

    def _put_back(self, descriptor: int, tail: Tail) -> None:
        closing = encode_closing(tail.closing)
        try:
            self._files.truncate(descriptor, tail.end + len(closing))
            write_all(self._files, descriptor, closing, tail.end)
            self._sync(descriptor)
        except OSError:
            self._release()

    def _reopen(self, tail: Tail) -> int:
        """After a failure: what follows the last acknowledged line goes aside,
        whole or not, for whoever asked for it was told that it failed."""
        start = tail.last if self._unsynced_from is None else min(self._unsynced_from, tail.last)
        try:
            descriptor = self._files.open(self._file.path, os.O_RDWR)
        except OSError as error:
            raise self._read_only(error) from error
        try:
            with plain_errors(self.session_id):
                self._check_lines(descriptor, start, tail)
            make_whole(self._files, descriptor, self._file.path, tail=replace(tail, last=start))
        except BaseException as error:
            self._files.close(descriptor)
            if isinstance(error, OSError):
                raise self._read_only(error) from error
            raise
        self._descriptor, self._unsynced_from = descriptor, None
        return descriptor

    def _check_lines(self, descriptor: int, start: int, tail: Tail) -> None:
        read = reader_of(self._files, descriptor)
        head_seq = 0
        for line in LineReader(read, first=tail.first, end=tail.end).forward(start):
            head_seq = line.seq
        if head_seq != tail.closing.head_seq:
            raise Damage(f"line {head_seq} stands where {tail.closing.head_seq} should")

    def _not_confirmed(self, error: OSError) -> StorageUnavailable:
        return StorageUnavailable(f"the disk did not confirm: {error.strerror}")

    def _read_only(self, error: OSError) -> ConversationReadOnly:
        reason = f"the disk is not well ({error.strerror})"
        return ConversationReadOnly(self.session_id, reason)
