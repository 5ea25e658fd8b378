"""One conversation as one JSON document that lacks nothing.

A conversation's file is such a document already, but for what stands beside it.
So an exported document is that file, byte by byte, and where there are blobs or
attachments they follow in the last line, one item each:

    ],"updated_at":"…",…,"epoch_offset":131,"beside":[
    {"blob":"<blob id>","text":"…"}
    ,{"file":"<file id>","base64":"…"}
    ]}

An item carries no checksum of its own: the entry that names it has its SHA-256.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import orjson

from nplt_storage.copying import Source, read_blob_whole
from nplt_storage.facts.entries import AttachmentEntry, Entry, ToolResultsEntry
from nplt_storage.facts.lines import encode_line
from nplt_storage.facts.tool_calls import BlobReference
from nplt_storage.files.layout import (
    Header,
    advance,
    decode_closing,
    empty_closing,
    encode_closing,
    encode_header,
)
from nplt_storage.files.reader import Read, Segment, segments_forward
from nplt_storage.trimmed import stand_ins

ItemKind: TypeAlias = Literal["blob", "file"]
ItemKey: TypeAlias = tuple[str, str]
Span: TypeAlias = tuple[int, int]
"""Where it begins, and how many bytes it has."""
ReadAttachment: TypeAlias = Callable[[AttachmentEntry], Awaitable[bytes | None]]

_BESIDE: Final = b',"beside":[\n'
_END: Final = b"]}\n"
_ITEM: Final = re.compile(rb',?\{"(blob|file)":"([A-Za-z0-9_-]{1,200})","(?:text|base64)":"')


class BadDocument(Exception):
    """Not as `export_document` wrote it."""


@dataclass(slots=True)
class Missing:
    """What the conversation names, and nobody has any more."""

    ids: list[str] = field(default_factory=list)


async def export_document(
    source: Source,
    session_id: str,
    *,
    read_attachment: ReadAttachment | None = None,
    missing: Missing | None = None,
) -> AsyncIterator[bytes]:
    """In pieces; `missing` is told what could not be put into it."""
    origin = await source.origin(session_id)
    header = Header(
        session_id=session_id, created_at=origin.created_at, user=origin.user, extra=origin.extra
    )
    first = encode_header(header)
    yield first
    lines = _Lines(header, len(first))
    async for batch in source.entries(session_id):
        yield lines.encode(batch)
    beside = _Beside(source, session_id, missing or Missing())
    end = encode_closing(lines.closing)
    async for item in beside.items(lines.blobs, lines.attachments, read_attachment):
        yield (b"," if beside.count > 1 else end[:-2] + _BESIDE) + item + b"\n"
    yield _END if beside.count else end


class _Lines:
    """The entries as lines, what the closing line says of them, and what they name."""

    def __init__(self, header: Header, first: int) -> None:
        self.closing = empty_closing(header, first)
        self.blobs: dict[str, BlobReference] = {}
        self.attachments: dict[str, AttachmentEntry] = {}
        self._offset = first

    def encode(self, entries: Sequence[Entry]) -> bytes:
        if self.closing.head_seq == 0 and entries and entries[0].seq > 1:
            entries = [*stand_ins(entries[0]), *entries[1:]]
        return b"".join(map(self._line, entries))

    def _line(self, entry: Entry) -> bytes:
        line = b"%b%b\n" % (b"," if entry.seq > 1 else b"", encode_line(entry))
        self.closing = advance(self.closing, entry.kind, at=entry.timestamp, offset=self._offset)
        self._offset += len(line)
        if isinstance(entry, AttachmentEntry) and entry.redacted_at is None:
            self.attachments[entry.file_id] = entry
        elif isinstance(entry, ToolResultsEntry):
            named = [result.blob for result in entry.results if result.blob is not None]
            self.blobs |= {blob.blob_id: blob for blob in named}
        return line


class _Beside:
    """The items of one document, and how many there were."""

    def __init__(self, source: Source, session_id: str, missing: Missing) -> None:
        self.count = 0
        self._source = source
        self._session_id = session_id
        self._missing = missing

    async def items(
        self,
        blobs: dict[str, BlobReference],
        attachments: dict[str, AttachmentEntry],
        read_attachment: ReadAttachment | None,
    ) -> AsyncIterator[bytes]:
        for blob in blobs.values():
            data = await read_blob_whole(self._source, self._session_id, blob)
            for item in self._item("blob", blob.blob_id, data):
                yield item
        for attachment in attachments.values() if read_attachment else ():
            assert read_attachment is not None
            data = await read_attachment(attachment)
            for item in self._item("file", attachment.file_id, data):
                yield item

    def _item(self, kind: ItemKind, item_id: str, data: bytes | None) -> Iterator[bytes]:
        if data is None:
            self._missing.ids.append(item_id)
        else:
            self.count += 1
            yield encode_item(kind, item_id, data)


def encode_item(kind: ItemKind, item_id: str, data: bytes) -> bytes:
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
        raise BadDocument(f"something kept beside the entries can't be read: {error}") from error


def index_items(read: Read, start: int, size: int) -> dict[ItemKey, Span] | None:
    """Where each item is; `start` is where the closing line should begin. `None`:
    there is no closing line, or not the whole of one."""
    segments = segments_forward(read, start, size)
    closing = next(segments, Segment(start, b""))
    if decode_closing(closing.data) is not None:
        return {} if start + len(closing.data) == size else None
    if not closing.data.endswith(_BESIDE):
        return None
    if decode_closing(closing.data.removesuffix(_BESIDE) + b"}\n") is None:
        return None
    return _items_in(segments, size)


def _items_in(segments: Iterator[Segment], size: int) -> dict[ItemKey, Span]:
    found: dict[ItemKey, Span] = {}
    for start, data in segments:
        if data == _END and start + len(data) == size:
            return found
        parts = _ITEM.match(data)
        if parts is None or not data.endswith(b'"}\n'):
            raise BadDocument(f"what is kept beside the entries is damaged at byte {start}")
        found[parts[1].decode(), parts[2].decode()] = (start, len(data))
    raise BadDocument("it breaks off among what is kept beside the entries")
