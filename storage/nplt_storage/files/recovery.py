"""The opening rule: what of a file is sound, and making it whole again.

A crash can only tear what an append was writing: from the closing line's start
to the end of the file. So the last line that verifies is searched from the
end; what follows it, unless it is exactly one closing line, is what a torn
append left, and is set aside. A torn append holds at most one line: if more
than one is unreadable there, or none can be read at all, that is damage, not
a crash, and nothing is touched. `survey` only reads; `make_whole` writes.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from nplt_storage.facts.lines import BadLine
from nplt_storage.file_operations import FileOperations, read_all, write_all
from nplt_storage.files.layout import (
    Closing,
    Header,
    decode_closing,
    decode_header,
    encode_closing,
)
from nplt_storage.files.reader import (
    Line,
    Read,
    segments_backward,
    segments_forward,
    verified,
)

log = logging.getLogger(__name__)

_CLOSING_BYTES_MAX = 256
_JOINT = re.compile(rb'"crc":"[0-9a-f]{8}"\}.,\{"seq":', re.DOTALL)
_COPY_BYTES = 1024 * 1024


class Damage(Exception):
    """Not the work of a crash: the file is left as it is, for a person to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Where the sound part of a file ends."""

    first: int
    """Where the first line begins, or would."""
    last: int
    """Where the last line begins; equal to `end` while there is none."""
    end: int
    """Where the closing line begins."""
    closing: Closing


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    header: Header
    first: int
    last: int
    end: int
    head_seq: int
    closing: Closing | None
    """`None`: what follows the last line is not exactly one closing line."""


def read_header(read: Read, size: int) -> tuple[Header, int]:
    """The header and its length; `BadHeader`: it may be another program's file."""
    line = next((segment.data for segment in segments_forward(read, 0, size)), b"")
    return decode_header(line), len(line)


def survey(read: Read, size: int) -> Survey:
    """Raises `BadHeader` or `Damage`."""
    header, first = read_header(read, size)
    last = _last_sound_line(read, first, size)
    end, head_seq = (last.end, last.seq) if last else (first, 0)
    rest = read(end, size - end) if size - end <= _CLOSING_BYTES_MAX else b""
    closing = decode_closing(rest)
    if closing is not None and closing.head_seq != head_seq:
        closing = None
    if closing is not None and not first <= closing.epoch_offset <= end:
        closing = None
    return Survey(
        header=header,
        first=first,
        last=last.start if last else first,
        end=end,
        head_seq=head_seq,
        closing=closing,
    )


def _last_sound_line(read: Read, first: int, size: int) -> Line | None:
    unreadable, closed_at = 0, 0
    for segment in segments_backward(read, first, size):
        try:
            return verified(segment, first=first)
        except BadLine as reason:
            closing = decode_closing(segment.data[:_CLOSING_BYTES_MAX])
            closed_at = max(closed_at, closing.head_seq if closing else 0)
            unreadable += _lines_in(segment.data)
            if unreadable > 1:
                raise Damage(f"more than one line at the end can't be read: {reason}") from reason
    if closed_at:
        raise Damage(f"no line can be read, yet there were {closed_at}")
    return None


def _lines_in(data: bytes) -> int:
    """How many lines begin in a segment that can't be read: the newline between
    two may itself be what is broken."""
    return data.startswith((b'{"seq":', b',{"seq":')) + len(_JOINT.findall(data))


def make_whole(files: FileOperations, descriptor: int, path: Path, *, tail: Tail) -> None:
    """Sets aside what does not belong after the last sound line, and writes that
    line and the closing line once more: what is only in the system's memory
    after a failed sync, or a crash before one, reaches the disk before anything
    is answered from it."""
    rest = read_all(files, descriptor, _CLOSING_BYTES_MAX, tail.end)
    if rest and decode_closing(rest) is None:
        _set_aside(files, descriptor, path, start=tail.end)
    line = read_all(files, descriptor, tail.end - tail.last, tail.last)
    closing = encode_closing(tail.closing)
    write_all(files, descriptor, line + closing, tail.last)
    files.truncate(descriptor, tail.end + len(closing))
    files.sync_data(descriptor)
    files.sync_directory(path.parent)


def _set_aside(files: FileOperations, descriptor: int, path: Path, *, start: int) -> None:
    broken, copy = _new_broken_file(files, path)
    try:
        try:
            offset = start
            while block := read_all(files, descriptor, _COPY_BYTES, offset):
                write_all(files, copy, block, offset - start)
                offset += len(block)
            files.sync(copy)
        finally:
            files.close(copy)
    except OSError:
        files.remove(broken)
        raise
    files.sync_directory(path.parent)
    log.warning("%s: a torn append was set aside as %s", path.name, broken.name)


def _new_broken_file(files: FileOperations, path: Path) -> tuple[Path, int]:
    for number in count(1):
        broken = path.with_name(f"{path.name}.broken-{number}")
        try:
            return broken, files.open(broken, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            continue
    raise AssertionError
