"""Building the list of conversations from the files themselves.

Read-only, and never an exception: a file that can't be read is a row that says
so, for the list shows all there is. Each file is read once, line by line, with
little memory; the same `fold` as everywhere makes its row.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from nplt_storage.catalog import ConversationRow, fold, fold_all, new_row
from nplt_storage.errors import ConversationDamaged, StorageError
from nplt_storage.file_operations import FileOperations
from nplt_storage.ids import is_session_id
from nplt_storage.json_layout import LOCAL_USER, BadHeader
from nplt_storage.json_opening import (
    lines_of,
    opened,
    plain_errors,
    read_older_shape,
    reader_of,
    survey_file,
)
from nplt_storage.lines import decode_verified
from nplt_storage.recovery import read_header

log = logging.getLogger(__name__)

_NAME = re.compile(r"session_([0-9]{8})_(.+)\.json", re.DOTALL)


def file_name(session_id: str, created_at: datetime) -> str:
    return f"session_{created_at.astimezone(UTC):%Y%m%d}_{session_id}.json"


def session_id_of(path: Path) -> str | None:
    """`None`: not the name of a conversation's file."""
    parts = _NAME.fullmatch(path.name)
    return parts[2] if parts and is_session_id(parts[2]) else None


def find_files(directory: Path) -> dict[str, list[Path]]:
    """By id; as a rule there is one file for each."""
    found: dict[str, list[Path]] = {}
    for path in sorted(directory.iterdir()):
        session_id = session_id_of(path)
        if session_id is not None:
            found.setdefault(session_id, []).append(path)
    return found


def row_of(
    files: FileOperations, path: Path, session_id: str, *, new_id: Callable[[], str]
) -> tuple[ConversationRow, str | None]:
    """The row, and what is wrong with the file if something is."""
    sketch = _Sketch(new_row(session_id, user=LOCAL_USER, created_at=_date_of(path)))
    try:
        with plain_errors(session_id), opened(files, path, os.O_RDONLY) as descriptor:
            try:
                sketch.read_ours(files, descriptor)
            except BadHeader:
                sketch.read_older_shape(files, descriptor, new_id)
    except StorageError as error:
        log.warning("%s: %s", path.name, error)
        reason = error.reason if isinstance(error, ConversationDamaged) else str(error)
        return replace(sketch.row, damaged=True), reason
    return sketch.row, None


def damaged_row(paths: Iterable[Path], session_id: str) -> ConversationRow:
    created_at = min(map(_date_of, paths))
    return replace(new_row(session_id, user=LOCAL_USER, created_at=created_at), damaged=True)


class _Sketch:
    """A row as far as it was read: if the file breaks off, that much can be shown."""

    def __init__(self, row: ConversationRow) -> None:
        self.row = row

    def read_ours(self, files: FileOperations, descriptor: int) -> None:
        session_id = self.row.session_id
        read = reader_of(files, descriptor)
        header, _ = read_header(read, files.size(descriptor))
        self.row = new_row(session_id, user=header.user, created_at=header.created_at)
        found = survey_file(files, descriptor, session_id)
        for line in lines_of(read, found):
            self.row = fold(self.row, decode_verified(line.data))

    def read_older_shape(
        self, files: FileOperations, descriptor: int, new_id: Callable[[], str]
    ) -> None:
        session_id = self.row.session_id
        header, entries, _ = read_older_shape(files, descriptor, session_id, new_id=new_id)
        row = new_row(session_id, user=header.user, created_at=header.created_at)
        self.row = fold_all(row, entries)


def _date_of(path: Path) -> datetime:
    try:
        return datetime.strptime(path.name[8:16], "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
