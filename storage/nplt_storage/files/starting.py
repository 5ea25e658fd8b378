"""What changed in the directory of conversations since the catalogue last saw it.

As a rule nothing: names, sizes and times are compared, and no file is opened.
What was written on is read on; what is new or odd is read whole; what is gone
is forgotten. Also swept here: what a crash left half done. Everything blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final

from nplt_storage.catalogue.freshness import FileStamp, FoundFile, compare
from nplt_storage.catalogue.learned import Gone, Learned
from nplt_storage.conversation.rows import new_row
from nplt_storage.errors import StorageUnavailable
from nplt_storage.files.disk import Disk
from nplt_storage.files.indexing import FileReading, void_stamp
from nplt_storage.files.layout import LOCAL_USER
from nplt_storage.files.names import day_of, is_unfinished, session_id_of
from nplt_storage.files.reading_order import ReadingOrder

log = logging.getLogger(__name__)

_SAY_EVERY: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDo:
    names: dict[str, str]
    """All there are, by id."""
    grown: tuple[str, ...]
    """Written on, it seems: after a crash, those that were in use."""
    unknown: tuple[str, ...]
    """To be read from beginning to end."""
    bytes_unknown: int
    is_all: bool
    """Whether nothing is to be done beside."""


class Shelf:
    """The directory of conversations, as found."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        new_id: Callable[[], str],
        damaged: Callable[[str, str], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._new_id = new_id
        self._damaged = damaged
        self.order = ReadingOrder()
        self.unread: set[str] = set()
        """Those that could not be read, though nothing may be wrong with them."""

    def found(self) -> dict[str, list[FoundFile]]:
        """By id; as a rule there is one file for each."""
        by_id: dict[str, list[FoundFile]] = {}
        try:
            for file in self._disk.found_in(self._directory):
                session_id = session_id_of(file.name)
                if session_id is not None:
                    by_id.setdefault(session_id, []).append(file)
        except OSError as error:
            raise StorageUnavailable(f"the files can't be listed: {error.strerror}") from error
        return by_id

    def to_do(self, known: Mapping[str, FileStamp]) -> ToDo:
        found = self.found()
        single = {id_: files[0] for id_, files in found.items() if len(files) == 1}
        freshness = compare(single, known)
        return ToDo(
            names={id_: files[-1].name for id_, files in found.items()},
            grown=freshness.grown,
            unknown=freshness.unknown,
            bytes_unknown=sum(max(single[id_].size, 0) for id_ in freshness.unknown),
            is_all=len(single) == len(found) and not freshness.gone,
        )

    def changes(self, known: Mapping[str, FileStamp]) -> Iterator[Learned | Gone]:
        """All that is not as it was known to be, read whole."""
        found = self.found()
        freshness = compare({id_: files[-1] for id_, files in found.items()}, known)
        for session_id in freshness.gone:
            entries = known[session_id].head_seq
            log.warning("the file of %s is gone; it held %d entries", session_id, entries)
            yield Gone(session_id=session_id)
        several = {id_ for id_, files in found.items() if len(files) > 1}
        to_read = sorted({*freshness.grown, *freshness.unknown, *several})
        self.order.begin(to_read)
        for number in count(1):
            due = self.order.take()
            if due is None:
                return
            for piece in self._read(due, found, known):
                yield piece
                # Between two pieces of a long one, those somebody waits for.
                while (urgent := self.order.take_urgent()) is not None:
                    yield from self._read(urgent, found, known)
            if number % _SAY_EVERY == 0:
                log.info("read %d of %d conversations", number, len(to_read))

    def _read(
        self,
        session_id: str,
        found: Mapping[str, Sequence[FoundFile]],
        known: Mapping[str, FileStamp],
    ) -> Iterator[Learned]:
        names = [file.name for file in found[session_id]]
        yield from self.pieces(session_id, names, known.get(session_id))
        self.order.done(session_id)

    def pieces(
        self, session_id: str, names: Sequence[str], known: FileStamp | None = None
    ) -> Iterator[Learned]:
        if len(names) > 1:
            self._damaged(session_id, "there is more than one file for it")
            row = new_row(session_id, user=LOCAL_USER, created_at=min(map(day_of, names)))
            stamp = void_stamp(names[-1], known)
            yield Learned(row=replace(row, damaged=True), stamp=stamp, anew=True)
        else:
            reading = self.reading(session_id, names[0], known)
            yield from reading.whole()
            if reading.is_unread:
                self.unread.add(session_id)

    def reading(self, session_id: str, name: str, known: FileStamp | None = None) -> FileReading:
        return FileReading(
            self._disk,
            self._directory / name,
            session_id,
            new_id=self._new_id,
            damaged=self._damaged,
            known=known,
        )

    def sweep(self) -> list[str]:
        """Removes what a crash left on its way in; gives the names that remain."""
        names = self._disk.names_in(self._directory)
        for name in filter(is_unfinished, names):
            if name.endswith(".blobs.new"):
                self._disk.remove_tree(self._directory / name)
                continue
            try:
                self._disk.remove(self._directory / name)
            except OSError as error:  # one leftover is no reason not to start
                log.warning("%s can't be removed: %s", name, error.strerror)
        return [name for name in names if not is_unfinished(name)]
