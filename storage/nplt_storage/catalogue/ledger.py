"""The database and what becomes of it when things go wrong; for one thread.

Notes come in batches, each one transaction. A batch that can't be committed
because the disk is full or can't be written to is owed: it is tried again with
the next one, and until then laid on for each question and taken off again. A
database that is broken is made anew, from a survey of the files, and the
question is then answered; if that happens twice, it is kept in memory.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from nplt_storage.catalogue.books import Books
from nplt_storage.catalogue.database import (
    checkpoint,
    in_memory,
    make_anew,
    open_database,
    roll_back,
    transaction,
)
from nplt_storage.catalogue.learned import Note, Survey
from nplt_storage.errors import StorageError

log = logging.getLogger(__name__)

_MAY_PASS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
}
_T = TypeVar("_T")


class Ledger:
    def __init__(self, path: Path, survey: Survey) -> None:
        self._path = path
        self._survey = survey
        self._connection = open_database(path)
        self._books = Books(self._connection)
        self._owed: list[Note] = []
        self._began_anew = False
        self._tired = False
        self._has_complained = False

    @property
    def untidy(self) -> bool:
        return self._books.untidy and not self._tired

    def take_in(self, notes: Sequence[Note]) -> None:
        self._owed += notes
        try:
            self._settle()
        except sqlite3.Error as error:
            self._cope(error)
        except Exception:
            # One of them is odd. It must not stand in the way of the others for ever.
            owed, self._owed = self._owed, []
            self._books = Books(self._connection)
            self._take_in_singly(owed)

    def answer(self, question: Callable[[Books], _T]) -> _T:
        if self._owed:
            self.take_in(())
        try:
            if self._owed:
                return self._answer_as_if_settled(question)
            return question(self._books)
        except sqlite3.Error as error:
            self._cope(error)
        try:
            return question(self._books)
        except sqlite3.Error as error:
            self._begin_anew(error)
            return question(self._books)

    def changes(self) -> Iterator[Note]:
        """What the files say that is not known yet."""
        return self._survey(self.answer(lambda books: books.rows.stamps()))

    def tidy(self) -> None:
        self._tired = True
        try:
            self._books.tidy()
            self._tired = False
        except sqlite3.Error as error:
            # What is left to do is written down in the database itself.
            self._cope(error)

    def close(self) -> None:
        try:
            checkpoint(self._connection)
        except sqlite3.Error as error:
            log.warning("%s is not as small as it could be: %s", self._path, error)
        self._connection.close()

    def _settle(self) -> None:
        with transaction(self._connection):
            self._books.apply(self._owed)
        self._owed = []
        self._tired = self._has_complained = False

    def _answer_as_if_settled(self, question: Callable[[Books], _T]) -> _T:
        self._connection.execute("BEGIN")
        try:
            self._books.apply(self._owed)
            return question(self._books)
        finally:
            roll_back(self._connection)
            self._books = Books(self._connection)

    def _cope(self, error: sqlite3.Error) -> None:
        if _code(error) not in _MAY_PASS:
            self._begin_anew(error)
            return
        if not self._has_complained:
            self._has_complained = True
            log.warning("%s can't be used as it should now: %s", self._path, error)
        self._books = Books(self._connection)

    def _begin_anew(self, error: sqlite3.Error) -> None:
        log.error("%s is broken (%s) and is made anew from the files", self._path, error)
        self._connection.close()
        self._connection = in_memory() if self._began_anew else make_anew(self._path)
        self._began_anew = True
        self._books = Books(self._connection)
        owed, self._owed = self._owed, []
        try:
            self._take_in_singly(self._survey({}))
        except (OSError, StorageError):
            log.exception("the files can't be surveyed: lists are not complete")
        self._take_in_singly(owed)

    def _take_in_singly(self, notes: Iterable[Note]) -> None:
        for note in notes:
            try:
                with transaction(self._connection):
                    self._books.apply([note])
            except Exception:
                log.exception("%s can't be catalogued and is left out", type(note).__name__)
                self._books = Books(self._connection)


def _code(error: sqlite3.Error) -> int | None:
    """The primary one; SQLite tells some of them apart further."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
