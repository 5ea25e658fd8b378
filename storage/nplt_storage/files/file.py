"""One conversation's file: opened by the rule, read anywhere, appended to by one.

It knows where the acknowledged lines end (`tail`); that only ever grows, but
for a redaction, which puts another file in its place. Readers take the tail
and the file in one step, so they need nothing else to be safe beside the
writer. Until the opening rule was applied once in this process, nothing is
answered from the file. Everything here blocks and is called from worker threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from nplt_storage.errors import ConversationExists, ConversationReadOnly
from nplt_storage.file_operations import FileOperations, write_new_file
from nplt_storage.files.access import (
    adopt_older_shape,
    found_tail,
    is_ours,
    opened,
    plain_errors,
    reader_of,
    survey_file,
)
from nplt_storage.files.layout import Header, empty_closing, encode_closing, encode_header
from nplt_storage.files.reader import FileEntries, LineReader, Read, Segment, verified
from nplt_storage.files.recovery import Damage, Tail, make_whole, read_header


class JsonFile:
    def __init__(
        self, path: Path, session_id: str, *, files: FileOperations, new_id: Callable[[], str]
    ) -> None:
        self.path = path
        self.session_id = session_id
        self.files = files
        self.tail: Tail | None = None
        """`None` until the opening rule was applied to it in this process."""
        self.head_seq_min = 0
        """What the catalogue has seen of it before that."""
        self.writing = Lock()
        """Held by an append that is under way, also by one nobody waits for any more."""
        self._new_id = new_id
        self._settling = Lock()

    def create(self, header: Header) -> int:
        """A new file with no lines in it; gives a descriptor to append through."""
        first = encode_header(header)
        closing = empty_closing(header, len(first))
        # A reader who comes late must not make whole what is being made, nor take
        # it for what it was before it was taken back.
        with self._settling, plain_errors(self.session_id):
            if self._is_there():
                raise ConversationExists(self.session_id)
            try:
                write_new_file(self.files, self.path, first + encode_closing(closing))
                descriptor = self.files.open(self.path, os.O_RDWR)
            except OSError:
                with suppress(OSError):
                    self.files.remove(self.path)  # nobody will know that it is there
                raise
            self.tail = Tail(first=len(first), last=len(first), end=len(first), closing=closing)
        return descriptor

    def remove_unused(self) -> None:
        """Takes back a creation: nothing was ever acknowledged in it."""
        with self._settling, plain_errors(self.session_id):
            self.files.remove(self.path)
            self.tail = None
            self.files.sync_directory(self.path.parent)

    def open_for_appending(self) -> int:
        with self.not_writing(), self._settling, plain_errors(self.session_id):
            return self._made_whole()

    def settle(self) -> None:
        """Applies the opening rule without opening it for appending."""
        if self.tail is not None:
            return
        with self._settling, plain_errors(self.session_id):
            if self.tail is None:
                self.files.close(self._made_whole())

    @contextmanager
    def reading(self, through: int | None = None) -> Iterator[FileEntries]:
        """The entries as they stand now, or as they stood when `through` was the
        last; appends meanwhile are not among them."""
        self.settle()
        with plain_errors(self.session_id), self._taken() as (read, tail):
            head_seq, end = tail.closing.head_seq, tail.end
            if through is not None and through < head_seq:
                end = LineReader(read, first=tail.first, end=end).find(through + 1)
                head_seq = through
            yield FileEntries(read, first=tail.first, end=end, head_seq=head_seq)

    @contextmanager
    def reading_lines(self) -> Iterator[tuple[Read, Tail]]:
        """Its bytes, and where the lines are among them."""
        self.settle()
        with plain_errors(self.session_id), self._taken() as taken:
            yield taken

    def header(self) -> Header:
        with self.reading_lines() as (read, tail):
            return read_header(read, tail.first)[0]

    def replace(self, beside: Path, tail: Tail) -> None:
        """Another file takes this one's place, in one step for readers and crashes."""
        with self._settling:
            self.files.rename(beside, self.path)
            self.tail = tail
        self.files.sync_directory(self.path.parent)

    @contextmanager
    def _taken(self) -> Iterator[tuple[Read, Tail]]:
        with self._settling:
            tail = self.tail
            assert tail is not None
            descriptor = self.files.open(self.path, os.O_RDONLY)
        try:
            yield reader_of(self.files, descriptor), tail
        finally:
            self.files.close(descriptor)

    def _made_whole(self) -> int:
        if self.tail is None and not is_ours(self.files, self.path):
            adopt_older_shape(self.files, self.path, self.session_id, new_id=self._new_id)
        descriptor = self.files.open(self.path, os.O_RDWR)
        try:
            read = reader_of(self.files, descriptor)
            tail = self.tail
            if tail is None:
                found = survey_file(
                    self.files, descriptor, self.session_id, head_seq_min=self.head_seq_min
                )
                tail = found_tail(read, found)
            else:
                # What follows the last acknowledged line goes aside, whole or
                # not: whoever asked for it was told that it failed.
                check_last_line(read, tail)
            make_whole(self.files, descriptor, self.path, tail=tail)
        except BaseException:
            self.files.close(descriptor)
            raise
        self.tail = tail
        return descriptor

    def _is_there(self) -> bool:
        try:
            with opened(self.files, self.path, os.O_RDONLY):
                return True
        except FileNotFoundError:
            return False

    @contextmanager
    def not_writing(self) -> Iterator[None]:
        if not self.writing.acquire(blocking=False):
            raise ConversationReadOnly(self.session_id, "the disk has not answered yet")
        try:
            yield
        finally:
            self.writing.release()


def check_last_line(read: Read, tail: Tail) -> None:
    """Raises unless the last acknowledged line is where it was."""
    if tail.last < tail.end:
        segment = Segment(tail.last, read(tail.last, tail.end - tail.last))
        line = verified(segment, first=tail.first)
        if line.seq != tail.closing.head_seq:
            raise Damage(f"line {line.seq} stands where {tail.closing.head_seq} should")
