"""Exports a conversation as one document, and reads what it has besides the entries.

The document is the conversation's file, byte for byte; its blobs and attachments follow in the
last line, one item each:

    ],"updated_at":"…",…,"epoch_offset":131,"beside":[
    {"blob":"<blob id>","text":"…"}
    ,{"file":"<file id>","base64":"…"}
    ]}

An item has no checksum of its own: the entry that names it has its SHA-256.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import AsyncIterator, Iterator
from typing import Final, TypeAlias

import orjson

from nplt_storage.copying import ReadAttachment, Source, read_blob_whole, stand_ins
from nplt_storage.entries import AttachmentEntry, BlobReference, ToolResultsEntry
from nplt_storage.files.format import Damage, Header, Segment, empty_tail, encode_header

ItemKey: TypeAlias = tuple[str, str]
"""`blob` or `file`, and its id."""
Span: TypeAlias = tuple[int, int]
"""The offset and length in bytes."""
OTHER_MEMBERS: Final = b',"beside":[\n'
_END: Final = b"]}\n"
ITEM_BYTES_MAX: Final = 256 * 1024 * 1024
"""Blobs and attachments may be longer than a line."""
_ITEM: Final = re.compile(rb',?\{"(blob|file)":"([A-Za-z0-9_-]{1,200})","(?:text|base64)":"')


async def export_document(
    source: Source,
    session_id: str,
    *,
    read_attachment: ReadAttachment | None = None,
    missing: list[str] | None = None,
) -> AsyncIterator[bytes]:
    """Yields the document in pieces. Blobs and attachments that the conversation names and that
    can't be found are added to `missing`."""
    origin = await source.origin(session_id)
    header = Header(
        session_id=session_id, created_at=origin.created_at, user=origin.user, extra=origin.extra
    )
    first = encode_header(header)
    yield first
    tail = empty_tail(origin.created_at, len(first))
    blobs: dict[str, BlobReference] = {}
    attachments: dict[str, AttachmentEntry] = {}
    async for batch in source.entries(session_id):
        lines: list[bytes] = []
        is_trimmed = tail.end == tail.first and batch and batch[0].seq > 1
        for entry in [*stand_ins(batch[0]), *batch[1:]] if is_trimmed else batch:
            line, tail = tail.extended(entry)
            lines.append(line)
            if isinstance(entry, AttachmentEntry) and entry.redacted_at is None:
                attachments[entry.file_id] = entry
            elif isinstance(entry, ToolResultsEntry):
                named = [result.blob for result in entry.results if result.blob is not None]
                blobs |= {blob.blob_id: blob for blob in named}
        yield b"".join(lines)

    async def items() -> AsyncIterator[tuple[ItemKey, bytes | None]]:
        for blob in blobs.values():
            yield ("blob", blob.blob_id), await read_blob_whole(source, session_id, blob)
        if read_attachment is not None:
            for attachment in attachments.values():
                yield ("file", attachment.file_id), await read_attachment(attachment)

    end, count = tail.closing_line, 0
    async for key, data in items():
        if data is None:
            if missing is not None:
                missing.append(key[1])
        else:
            yield (b"," if count else end[:-2] + OTHER_MEMBERS) + encode_item(key, data) + b"\n"
            count += 1
    yield _END if count else end


def encode_item(key: ItemKey, data: bytes) -> bytes:
    kind, item_id = key
    if kind == "blob":
        try:
            return orjson.dumps({kind: item_id, "text": data.decode()})
        except UnicodeDecodeError:
            pass
    return orjson.dumps({kind: item_id, "base64": base64.b64encode(data).decode()})


def decode_item(line: bytes) -> bytes:
    try:
        item = orjson.loads(line.removeprefix(b","))
        if "text" in item:
            return str(item["text"]).encode()
        return base64.b64decode(item["base64"], validate=True)
    except (orjson.JSONDecodeError, binascii.Error, KeyError, TypeError) as error:
        raise Damage(f"something kept beside the entries can't be read: {error}") from error


def items_in(segments: Iterator[Segment], size: int) -> dict[ItemKey, Span]:
    found: dict[ItemKey, Span] = {}
    for start, data in segments:
        if data == _END and start + len(data) == size:
            return found
        parts = _ITEM.match(data)
        if parts is None or not data.endswith(b'"}\n'):
            raise Damage(f"what is kept beside the entries is damaged at byte {start}")
        found[parts[1].decode(), parts[2].decode()] = (start, len(data))
    raise Damage("it breaks off among what is kept beside the entries")
