"""An entry as one line of a conversation's file, byte by byte.

    {"seq":N,"id":"…","kind":"…",…,"crc":"9ae0daaf"}

The checksum (CRC-32, eight hexadecimal digits) covers the object's bytes
before `,"crc"`. The comma that joins a line to the one before and the newline
that ends it belong to the file, not to the line. A raw newline never occurs
inside: JSON writes it as an escape. What the fields mean: storage/FORMAT.md.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

import orjson

from nplt_storage.errors import BadEntry
from nplt_storage.facts.checks import check_entry
from nplt_storage.facts.entries import UNSTAMPED, Entry
from nplt_storage.facts.entry_from_json import entry_from_json
from nplt_storage.facts.entry_to_json import entry_as_json
from nplt_storage.facts.shapes import WrongShape

__all__ = [
    "BadLine",
    "decode_line",
    "decode_verified",
    "encode_line",
    "entry_as_json",
    "peek_kind",
    "peek_seq",
    "verify_line",
]

_CRC_BYTES: Final = len(b',"crc":"00000000"}')
_HEAD = re.compile(rb'\{"seq":([1-9][0-9]{0,18}),"id":"')
_KIND = re.compile(rb'\{"seq":[0-9]+,"id":"(?:[^"\\]|\\.)*","kind":"((?:[^"\\]|\\.)*)"')


class BadLine(Exception):
    """These bytes are not what was written."""


def encode_line(entry: Entry) -> bytes:
    """Raises `BadEntry` for what could not be read back the same."""
    if entry.seq < 1 or not entry.id or entry.timestamp == UNSTAMPED:
        raise BadEntry("an entry gets its number, id and time before it is written")
    check_entry(entry)
    try:
        body = orjson.dumps(entry_as_json(entry))[:-1]
    except orjson.JSONEncodeError as error:
        raise BadEntry(f"this entry can't be written as JSON: {error}") from error
    return body + crc_suffix(body)


def decode_line(line: bytes) -> Entry:
    verify_line(line)
    return decode_verified(line)


def decode_verified(line: bytes) -> Entry:
    """For a line that went through `verify_line` already."""
    try:
        source = orjson.loads(line)
        del source["crc"]
        return entry_from_json(source)
    except (orjson.JSONDecodeError, WrongShape) as error:
        raise BadLine(str(error)) from error


def verify_line(line: bytes) -> int:
    """The line's number, if every byte is as it was written."""
    body = memoryview(line)[:-_CRC_BYTES]
    if line[-_CRC_BYTES:] != crc_suffix(body):
        raise BadLine("the checksum does not fit")
    return peek_seq(line)


def peek_seq(line: bytes) -> int:
    """The number at the start of a line; the rest need not be there, nor be right."""
    head = _HEAD.match(line)
    if head is None:
        raise BadLine("a line does not begin with its number")
    return int(head[1])


def peek_kind(line: bytes) -> str:
    """What kind of entry a verified line holds, without reading the rest."""
    head = _KIND.match(line)
    if head is None:
        raise BadLine("a line does not say its kind")
    return str(orjson.loads(b'"%b"' % head[1]))


def crc_suffix(body: bytes | memoryview) -> bytes:
    return b',"crc":"%08x"}' % crc32(body)
