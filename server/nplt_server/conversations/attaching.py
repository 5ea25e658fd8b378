"""Reading the files that go with prompts, before a context is put together.

Off the loop, each once, and bounded: of a text its beginning, pictures up to a size
and only so many of them in one conversation. What a file is, its first bytes say;
what its sender called it is a name for people. It never fails: a file that can't be
read is shown as one that can't be read.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Final

from nplt_server.context.attachments import AttachmentReason, ContextAttachment
from nplt_server.conversations.ledger import Ledger
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.errors import BadEntry, StorageError
from nplt_storage.facts.entries import AttachmentEntry, ModelInputEntry

TEXT_BYTES_MAX: Final = 64 * 1024
IMAGE_BYTES_MAX: Final = 5 * 1024 * 1024
IMAGES_BYTES_MAX: Final = 16 * 1024 * 1024
"""In one conversation: vendors take some thirty megabytes in one request, and what is
sent is a third longer."""
_IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_LOOKED_AT_BYTES: Final = 16


class AttachmentReader:
    """Of one conversation, as long as its history is the same."""

    def __init__(self, ledger: Ledger, files: AttachmentFiles) -> None:
        self.shelf: dict[str, ContextAttachment] = {}
        self.history = ledger.history
        self._ledger = ledger
        self._files = files
        self._image_bytes = 0
        self._looked_through = 0

    async def gather(self) -> None:
        """Whatever prompts that came since the last time name."""
        history = self.history
        wanted: list[str] = []
        for entry in reversed(history.entries):
            if entry.seq <= self._looked_through:
                break
            if isinstance(entry, ModelInputEntry):
                wanted = [*entry.attachments, *wanted]
        self._looked_through = history.head_seq
        missing = [file_id for file_id in wanted if file_id not in self.shelf]
        if not missing:
            return
        described = await self._described(missing)
        for file_id in missing:
            self.shelf[file_id] = await self._read(described.get(file_id))

    async def _described(self, file_ids: Iterable[str]) -> dict[str, AttachmentEntry]:
        """What was said of them when they came; that may be long ago."""
        wanted, history = set(file_ids), self.history
        found = {
            entry.file_id: entry
            for entry in history.entries
            if isinstance(entry, AttachmentEntry) and entry.file_id in wanted
        }
        if history.first_seq > 1 and len(found) < len(wanted):
            store = self._ledger.profile.store
            async for batch in store.entries(history.session_id, through=history.first_seq):
                found |= {
                    entry.file_id: entry
                    for entry in batch
                    if isinstance(entry, AttachmentEntry) and entry.file_id in wanted
                }
        return found

    async def _read(self, entry: AttachmentEntry | None) -> ContextAttachment:
        if entry is None or entry.redacted_at is not None:
            return ContextAttachment(name="(erased)", reason="attachment_missing")
        try:
            start = await self._bytes(entry, _LOOKED_AT_BYTES)
            image_type = _image_type(start)
            if image_type is not None:
                return await self._image(entry, image_type)
            return _text(entry, await self._bytes(entry, TEXT_BYTES_MAX + 1))
        except BadEntry:
            return _left_out(entry, "attachment_missing")
        except StorageError:
            return _left_out(entry, "attachment_unreadable")

    async def _image(self, entry: AttachmentEntry, image_type: str) -> ContextAttachment:
        is_large = entry.size > IMAGE_BYTES_MAX
        if is_large or self._image_bytes + entry.size > IMAGES_BYTES_MAX:
            return _left_out(entry, "attachment_too_large")
        data = await self._bytes(entry, IMAGE_BYTES_MAX)
        self._image_bytes += len(data)
        return ContextAttachment(
            name=entry.filename,
            content_type=image_type,
            data_base64=base64.b64encode(data).decode(),
        )

    async def _bytes(self, entry: AttachmentEntry, length: int) -> bytes:
        session_id = self._ledger.session_id
        return await self._files.read(session_id, entry.file_id, offset=0, length=length)


def _image_type(start: bytes) -> str | None:
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES.items() if start.startswith(magic)), None)


def _text(entry: AttachmentEntry, data: bytes) -> ContextAttachment:
    is_cut = len(data) > TEXT_BYTES_MAX
    data = data[:TEXT_BYTES_MAX]
    try:
        # Cut, it may end inside a character.
        text = data.decode(errors="strict") if not is_cut else _decoded_beginning(data)
    except UnicodeDecodeError:
        return _left_out(entry, "attachment_not_taken")
    if "\x00" in text:
        return _left_out(entry, "attachment_not_taken")
    return ContextAttachment(
        name=entry.filename,
        content_type=entry.content_type,
        text=text,
        reason="attachment_cut" if is_cut else None,
    )


def _decoded_beginning(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3:
            raise
        return data[: error.start].decode()


def _left_out(entry: AttachmentEntry, reason: AttachmentReason) -> ContextAttachment:
    return ContextAttachment(name=entry.filename, content_type=entry.content_type, reason=reason)
