"""Reads a document of ours that another program has reformatted: indented it, or written it
without our line ends, its keys in another order, or 0 for 0.0 (jq).

It is encoded again in our layout, and a line is accepted if its checksum then fits.
"""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

import orjson
from msgspec import Struct

from nplt_storage.codec import BadLine, crc_suffix, decode_verified, encode_line, peek_seq
from nplt_storage.errors import BadEntry
from nplt_storage.files.format import (
    CLOSING_KEYS,
    BadHeader,
    LaterFormat,
    decode_header,
    empty_tail,
    encode_header,
)
from nplt_storage.files.json_document import FileBytes, JsonDocument, NotForeign
from nplt_storage.json_values import JsonObject, JsonValue

_BYTES_MAX: Final = 64 * 1024 * 1024
"""The document is held in memory several times."""
_NOT_OF_HEADER: Final = frozenset((*CLOSING_KEYS, "crc", "messages", "beside"))


class ReformattedDocument(Struct, frozen=True, kw_only=True):
    header: bytes
    lines: tuple[bytes, ...]
    """The lines whose checksum still fits."""
    count: int
    """The number of all lines."""
    closing: JsonObject
    other_members: tuple[JsonValue, ...]


def read_reformatted(data: FileBytes | bytes) -> ReformattedDocument | None:
    """`None` if the document is not one of ours."""
    try:
        return reformatted_in(JsonDocument(data))
    except NotForeign:
        return None


def reformatted_in(document: JsonDocument) -> ReformattedDocument | None:
    is_ours = {"crc", *CLOSING_KEYS} <= document.member_texts.keys()
    if not is_ours or not document.has_messages or len(document) > _BYTES_MAX:
        return None
    lines: list[bytes] = []
    try:
        members: dict[str, Any] = {}
        for text in document.member_texts.values():
            members |= orjson.loads(f"{{{text}}}")
        header = _header_as_written(members)
        other_members = members.get("beside", [])
        if header is None or not isinstance(other_members, list):
            return None
        for text in document.message_texts():
            line = _line_as_written(orjson.loads(text))
            if line is not None:
                lines.append(line)
    except orjson.JSONDecodeError:
        return None
    return ReformattedDocument(
        header=header,
        lines=tuple(lines),
        count=document.count,
        closing={name: members[name] for name in CLOSING_KEYS},
        other_members=tuple(other_members),
    )


def as_it_was_written(reformatted: ReformattedDocument | None) -> bytes | None:
    """The document in our layout; `None` if it is not one of ours or has been changed."""
    if reformatted is None or len(reformatted.lines) < reformatted.count:
        return None
    parts, created_at = [reformatted.header], decode_header(reformatted.header).created_at
    tail = empty_tail(created_at, len(reformatted.header))
    for due, line in enumerate(reformatted.lines, 1):
        if peek_seq(line) != due:
            return None
        added, tail = tail.extended(decode_verified(line), line)
        parts.append(added)
    closing = tail.closing_line
    if orjson.loads(b"{" + closing[2:]) != reformatted.closing:
        return None
    if reformatted.other_members:
        items = b"\n,".join(map(orjson.dumps, reformatted.other_members))
        closing = closing[:-2] + b',"beside":[\n' + items + b"\n]}\n"
    return b"".join((*parts, closing))


def _header_as_written(document: dict[str, Any]) -> bytes | None:
    source = {name: value for name, value in document.items() if name not in _NOT_OF_HEADER}
    try:
        body = orjson.dumps(source)[:-1]
        plain = body + b',"crc":"%08x","messages":[\n' % crc32(body)
        candidates = [plain, encode_header(decode_header(plain))]
    except (BadHeader, LaterFormat, orjson.JSONEncodeError):
        return None
    crc = f',"crc":"{document["crc"]}","messages":[\n'.encode()
    return next((line for line in candidates if line.endswith(crc)), None)


def _line_as_written(message: Any) -> bytes | None:
    if not isinstance(message, dict) or not isinstance(message.get("crc"), str):
        return None
    crc = f',"crc":"{message["crc"]}"}}'.encode()
    try:
        body = orjson.dumps({name: value for name, value in message.items() if name != "crc"})[:-1]
        line = body + crc_suffix(body)
        if not line.endswith(crc):
            line = encode_line(decode_verified(line))
        peek_seq(line)
    except (BadEntry, BadLine, orjson.JSONEncodeError):
        return None
    return line if line.endswith(crc) else None
