"""One conversation's file: opened by the rule, read anywhere, appended to by one.

It knows where the acknowledged lines end (`tail`); that only ever grows, so
readers need nothing else to be safe beside the writer. Until the opening rule
was applied once in this process, nothing is answered from the file. Everything
here blocks and is called from worker threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from nplt_storage.entries import Entry
from nplt_storage.errors import ConversationExists, ConversationReadOnly
from nplt_storage.file_operations import FileOperations, write_new_file
from nplt_storage.json_layout import Header, empty_closing, encode_closing, encode_header
from nplt_storage.json_opening import (
    adopt_older_shape,
    counted_tail,
    found_tail,
    is_ours,
    lines_of,
    opened,
    plain_errors,
    reader_of,
    survey_file,
)
from nplt_storage.json_reader import FileEntries, Line
from nplt_storage.lines import decode_verified
from nplt_storage.recovery import Survey, Tail, make_whole


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
        with plain_errors(self.session_id):
            if self._is_there():
                raise ConversationExists(self.session_id)
            write_new_file(self.files, self.path, first + encode_closing(closing))
            descriptor = self.files.open(self.path, os.O_RDWR)
        self.tail = Tail(first=len(first), last=len(first), end=len(first), closing=closing)
        return descriptor

    def load(self) -> tuple[int, list[Entry]]:
        """A descriptor to append through, and all there is. Every line is read and
        verified before anything is written, so damage is met with the file untouched."""
        entries: list[Entry] = []

        def decoded(lines: Iterator[Line]) -> Iterator[Line]:
            for line in lines:
                entries.append(decode_verified(line.data))
                yield line

        with self._not_writing(), self._settling, plain_errors(self.session_id):
            self._adopt_if_foreign()
            descriptor = self.files.open(self.path, os.O_RDWR)
            try:
                found = self._survey(descriptor)
                lines = lines_of(reader_of(self.files, descriptor), found)
                tail = counted_tail(found, decoded(lines))
                make_whole(self.files, descriptor, self.path, tail=tail)
            except BaseException:
                self.files.close(descriptor)
                raise
            self.tail = tail
        return descriptor, entries

    def settle(self) -> None:
        """Applies the opening rule without opening it for appending; as a rule
        only the tail is read."""
        if self.tail is not None:
            return
        with self._settling, plain_errors(self.session_id):
            if self.tail is not None:
                return
            self._adopt_if_foreign()
            with opened(self.files, self.path, os.O_RDWR) as descriptor:
                found = self._survey(descriptor)
                tail = found_tail(reader_of(self.files, descriptor), found)
                make_whole(self.files, descriptor, self.path, tail=tail)
            self.tail = tail

    @contextmanager
    def reading(self) -> Iterator[FileEntries]:
        """The entries as they stand now; appends meanwhile are not among them."""
        self.settle()
        tail = self.tail
        assert tail is not None
        with (
            plain_errors(self.session_id),
            opened(self.files, self.path, os.O_RDONLY) as descriptor,
        ):
            yield FileEntries(
                reader_of(self.files, descriptor),
                first=tail.first,
                end=tail.end,
                head_seq=tail.closing.head_seq,
            )

    def _is_there(self) -> bool:
        try:
            with opened(self.files, self.path, os.O_RDONLY):
                return True
        except FileNotFoundError:
            return False

    @contextmanager
    def _not_writing(self) -> Iterator[None]:
        if not self.writing.acquire(blocking=False):
            raise ConversationReadOnly(self.session_id, "the disk has not answered yet")
        try:
            yield
        finally:
            self.writing.release()

    def _survey(self, descriptor: int) -> Survey:
        known = self.tail.closing.head_seq if self.tail else self.head_seq_min
        return survey_file(self.files, descriptor, self.session_id, head_seq_min=known)

    def _adopt_if_foreign(self) -> None:
        if not is_ours(self.files, self.path):
            adopt_older_shape(self.files, self.path, self.session_id, new_id=self._new_id)
