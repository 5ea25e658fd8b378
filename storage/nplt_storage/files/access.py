"""Opening a conversation's file: whose it is, what is sound in it, what it holds.

    ours        the header and the tail are surveyed, the lines read in order
    another's   one JSON document in the older shape: taken in by atomic
                replace, the original kept beside it as `.orig`
    neither     damaged: left alone, for a person to look at

What the operating system and broken files can say is turned into this room's
errors here, in one place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from nplt_storage.errors import ConversationDamaged, ConversationNotFound, StorageUnavailable
from nplt_storage.facts.entries import Entry
from nplt_storage.facts.lines import BadLine, decode_verified, encode_line, peek_kind
from nplt_storage.file_operations import FileOperations, read_all, write_new_file
from nplt_storage.files.foreign import NotForeign, read_foreign
from nplt_storage.files.layout import (
    BadHeader,
    Header,
    LaterFormat,
    advance,
    empty_closing,
    encode_closing,
    encode_header,
)
from nplt_storage.files.reader import Line, LineReader, Read
from nplt_storage.files.recovery import Damage, Survey, Tail, read_header, survey


@contextmanager
def plain_errors(session_id: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ConversationNotFound(session_id) from error
    except OSError as error:
        raise StorageUnavailable(f"the disk is not well: {error.strerror}") from error
    except (Damage, BadHeader, LaterFormat, BadLine, NotForeign) as error:
        raise ConversationDamaged(session_id, str(error)) from error


def reader_of(files: FileOperations, descriptor: int) -> Read:
    return lambda offset, length: read_all(files, descriptor, length, offset)


@contextmanager
def opened(files: FileOperations, path: Path, flags: int) -> Iterator[int]:
    descriptor = files.open(path, flags)
    try:
        yield descriptor
    finally:
        files.close(descriptor)


def is_ours(files: FileOperations, path: Path) -> bool:
    with opened(files, path, os.O_RDONLY) as descriptor:
        try:
            read_header(reader_of(files, descriptor), files.size(descriptor))
        except BadHeader:
            return False
        return True


def survey_file(
    files: FileOperations, descriptor: int, session_id: str, *, head_seq_min: int = 0
) -> Survey:
    """`head_seq_min` is what is known to have been there: less is damage, not a crash."""
    found = survey(reader_of(files, descriptor), files.size(descriptor))
    if found.header.session_id != session_id:
        raise Damage(f"the file says it is conversation {found.header.session_id!r}")
    if found.head_seq < head_seq_min:
        raise Damage(f"it ends at line {found.head_seq}, but there were {head_seq_min}")
    return found


def lines_of(read: Read, found: Survey) -> Iterator[Line]:
    return LineReader(read, first=found.first, end=found.end).forward(found.first)


def found_tail(read: Read, found: Survey) -> Tail:
    """Trusts the closing line if there is one; goes through the lines only if not."""
    if found.closing is None:
        return counted_tail(found, lines_of(read, found))
    return Tail(first=found.first, last=found.last, end=found.end, closing=found.closing)


def counted_tail(found: Survey, lines: Iterable[Line]) -> Tail:
    """The tail as the lines themselves have it, whatever the closing line says."""
    created_at = found.header.created_at
    closing = empty_closing(found.header, found.first)
    last = None
    for last in lines:
        closing = advance(closing, peek_kind(last.data), at=created_at, offset=last.start)
    if last is not None:
        closing = replace(closing, updated_at=decode_verified(last.data).timestamp)
    return Tail(first=found.first, last=found.last, end=found.end, closing=closing)


def read_older_shape(
    files: FileOperations, descriptor: int, session_id: str, *, new_id: Callable[[], str]
) -> tuple[Header, list[Entry], bytes]:
    data = read_all(files, descriptor, files.size(descriptor), 0)
    header, entries = read_foreign(data, session_id, new_id=new_id)
    return header, entries, data


def adopt_older_shape(
    files: FileOperations, path: Path, session_id: str, *, new_id: Callable[[], str]
) -> None:
    """Puts a file of ours in the place of another program's; `NotForeign` if it isn't one."""
    with opened(files, path, os.O_RDONLY) as descriptor:
        header, entries, original = read_older_shape(files, descriptor, session_id, new_id=new_id)
    first = encode_header(header)
    closing = empty_closing(header, len(first))
    parts, offset = [first], len(first)
    for entry in entries:
        line = b"%b%b\n" % (b"," if entry.seq > 1 else b"", encode_line(entry))
        closing = advance(closing, entry.kind, at=entry.timestamp, offset=offset)
        parts.append(line)
        offset += len(line)
    _keep_original(files, path, original)
    write_new_file(files, path, b"".join(parts) + encode_closing(closing))


def _keep_original(files: FileOperations, path: Path, original: bytes) -> None:
    for number in count(1):
        kept = path.with_name(f"{path.name}.orig" + (f"-{number}" if number > 1 else ""))
        try:
            with opened(files, kept, os.O_RDONLY) as descriptor:
                # A crash may have come between keeping it and replacing it.
                if read_all(files, descriptor, files.size(descriptor), 0) == original:
                    return
        except FileNotFoundError:
            write_new_file(files, kept, original)
            return
