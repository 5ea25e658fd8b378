"""The first and the last line of a conversation's file, byte by byte.

    {"session_id":"…","format":1,"created_at":"…","crc":"9ae0daaf","messages":[
    ],"updated_at":"…","head_seq":2,"message_count":2,"epoch_offset":131}

Between them stands one line per entry. The closing line says nothing that the
lines before it don't: it is written over by every append, and made anew when
it is missing. Pure functions over bytes; storage/FORMAT.md is the full text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from zlib import crc32

import orjson

from nplt_storage.facts.entries import EpochEntry, ModelInputEntry, ModelOutputEntry
from nplt_storage.facts.entry_to_json import time_as_text
from nplt_storage.facts.json_values import JsonObject, JsonValue
from nplt_storage.facts.shapes import Shape, WrongShape

FORMAT: Final = 1
LOCAL_USER: Final = "local"

_MESSAGES = b',"messages":['
_CRC_KEY = re.compile(rb',"crc":"([0-9a-f]{8})"$')
_CLOSING = re.compile(
    rb'\],"updated_at":"([0-9T:.+-]{32})","head_seq":([0-9]{1,19}),'
    rb'"message_count":([0-9]{1,19}),"epoch_offset":([0-9]{1,19})\}\n'
)
_OF_HEADER = ("session_id", "format", "created_at", "user", "crc", "messages")
_OF_CLOSING = ("updated_at", "head_seq", "message_count", "epoch_offset")
_OURS = frozenset((*_OF_HEADER, *_OF_CLOSING))


class BadHeader(Exception):
    """The first line is not one of ours, or not as it was written."""


class LaterFormat(Exception):
    """A later version wrote this: not to be opened, not to be touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    session_id: str
    created_at: datetime
    user: str = LOCAL_USER
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
    """What an older program said about the conversation, kept as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    updated_at: datetime
    head_seq: int
    message_count: int
    epoch_offset: int


def encode_header(header: Header) -> bytes:
    source: JsonObject = {
        "session_id": header.session_id,
        "format": FORMAT,
        "created_at": time_as_text(header.created_at),
    }
    if header.user != LOCAL_USER:
        source["user"] = header.user
    source |= {name: value for name, value in header.extra.items() if name not in _OURS}
    body = orjson.dumps(source)[:-1]
    return body + b',"crc":"%08x"' % crc32(body) + _MESSAGES + b"\n"


def decode_header(line: bytes) -> Header:
    """`line` with its newline. A header without a checksum is taken as it is."""
    if not line.endswith(_MESSAGES + b"\n"):
        raise BadHeader("the first line does not open a list of messages")
    body = line[: -len(_MESSAGES) - 1]
    if (crc := _CRC_KEY.search(body)) is not None:
        body = body[: crc.start()]
        if crc[1] != b"%08x" % crc32(body):
            raise BadHeader("the first line's checksum does not fit")
    try:
        source = orjson.loads(body + b"}")
        shape = Shape(source)
        if shape.integer("format") != FORMAT:
            raise LaterFormat(f"format {shape.integer('format')} is not known to this version")
        return Header(
            session_id=shape.text("session_id"),
            created_at=shape.time("created_at"),
            user=shape.text_or_none("user") or LOCAL_USER,
            extra={name: value for name, value in source.items() if name not in _OURS},
        )
    except (orjson.JSONDecodeError, WrongShape) as error:
        raise BadHeader(f"the first line can't be read: {error}") from error


def encode_closing(closing: Closing) -> bytes:
    return b'],"updated_at":"%s","head_seq":%d,"message_count":%d,"epoch_offset":%d}\n' % (
        time_as_text(closing.updated_at).encode(),
        closing.head_seq,
        closing.message_count,
        closing.epoch_offset,
    )


def decode_closing(line: bytes) -> Closing | None:
    """`None`: these bytes are not exactly one closing line."""
    parts = _CLOSING.fullmatch(line)
    if parts is None:
        return None
    try:
        updated_at = datetime.fromisoformat(parts[1].decode())
    except ValueError:
        return None
    closing = Closing(
        updated_at=updated_at,
        head_seq=int(parts[2]),
        message_count=int(parts[3]),
        epoch_offset=int(parts[4]),
    )
    return closing if encode_closing(closing) == line else None


def empty_closing(header: Header, header_bytes: int) -> Closing:
    return Closing(
        updated_at=header.created_at, head_seq=0, message_count=0, epoch_offset=header_bytes
    )


def advance(closing: Closing, kind: str, *, at: datetime, offset: int) -> Closing:
    """The closing line after one more line of that kind, which begins at `offset`."""
    is_message = kind in (ModelInputEntry.kind, ModelOutputEntry.kind)
    return Closing(
        updated_at=at,
        head_seq=closing.head_seq + 1,
        message_count=closing.message_count + is_message,
        epoch_offset=offset if kind == EpochEntry.kind else closing.epoch_offset,
    )
