"""Reads the files attached to prompts, for use in contexts.

`AttachmentReader` reads each file once. If there are more images than a request may hold, a new
epoch begins and the newest images are sent, up to half the limit. PDFs count as images: their
data goes to models that read them, and their text, which is read when it is needed, to others.
"""

from __future__ import annotations

import base64
from codecs import utf_8_decode
from collections.abc import Container, Iterable, Mapping
from typing import Final, TypeAlias

from msgspec.structs import replace

from nplt_server.context.messages import (
    AttachmentContents,
    AttachmentReason,
    ContextAttachment,
    file_ids_of,
)
from nplt_server.conversations.pdf_text import PDF_BYTES_MAX, read_pdf
from nplt_server.conversations.record import QUICK_ENTRIES_MAX, ConversationRecord
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.entries import AttachmentEntry, Entry, ModelInputEntry, ToolResultsEntry
from nplt_storage.errors import BadEntry, StorageError

PICTURES_BYTES_MAX: Final = 16 * 1024 * 1024
"""The size of all images in one call. Vendors accept about 30 MB, and base64 adds a third."""

Mention: TypeAlias = tuple[int, str]
"""The seq of a prompt, and the id of a file attached to it."""


Pictures: TypeAlias = Mapping[Mention, int]
"""The sizes of images in bytes, oldest first. A file attached to several prompts is sent several
times."""


def choose_pictures(pictures: Pictures, *, epoch_seq: int) -> tuple[frozenset[Mention], bool]:
    """Returns which images to send, and whether that needs a new epoch."""
    old = _newest({each: size for each, size in pictures.items() if each[0] < epoch_seq})
    new = {each: size for each, size in pictures.items() if each[0] > epoch_seq}
    is_full = sum(old.values()) + sum(new.values()) > PICTURES_BYTES_MAX
    return frozenset(_newest(pictures) if is_full else (*old, *new)), is_full


def _newest(pictures: Pictures) -> Pictures:
    if sum(pictures.values()) <= PICTURES_BYTES_MAX:
        return pictures
    newest_seq, used = max(seq for seq, _ in pictures), 0
    chosen: dict[Mention, int] = {}
    # Newest prompt first; the images of one prompt in the order in which they are attached.
    for each, size in sorted(pictures.items(), key=lambda item: item[0][0], reverse=True):
        # The newest prompt may use the whole limit, because it is about all of its images.
        share = 1 if each[0] == newest_seq else 2
        if used + size <= PICTURES_BYTES_MAX // share:
            chosen[each] = size
            used += size
    return chosen


TEXT_BYTES_MAX: Final = 64 * 1024
IMAGE_BYTES_MAX: Final = 5 * 1024 * 1024
PDF_SENT_BYTES_MAX: Final = 8 * 1024 * 1024
"""A larger PDF is shown as its text."""
_PDF_PAGES_MAX: Final = 100
"""platform.claude.com/docs/en/build-with-claude/pdf-support: "Maximum pages per request: 600 (100
for models with a 200k-token context window)"."""
_PDF: Final = "application/pdf"
_IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_MAGIC_BYTES: Final = 16


class AttachmentReader:
    """Reads the files attached to prompts, before a context is built.

    Each file is read once: the beginning of a text, images up to a size. The type is taken
    from the first bytes, never from the name. A file that can't be read is shown with a
    reason; no error is raised. Each history object has its own reader.
    """

    def __init__(self, record: ConversationRecord, files: AttachmentFiles) -> None:
        self._read_files: dict[str, ContextAttachment] = {}
        self.contents = AttachmentContents()
        """Replaced by a new object with the first file, and when the shown contents of a
        prompt change."""
        self.needs_epoch = False
        """Whether the contents differ from those sent in the current epoch."""
        self.history = record.history
        self._record = record
        self._files = files
        self._pictures: dict[str, AttachmentEntry] = {}
        """Images and PDFs, by file id."""
        self._pdfs: dict[str, ContextAttachment] = {}
        """PDFs that were read, with their texts."""
        self._prompts: list[ModelInputEntry | ToolResultsEntry] = []
        """Prompts and results with files, oldest first."""
        self._in_reach: frozenset[Mention] = frozenset()
        self._chosen_in: int | None = None
        self._read_through = 0

    async def gather(self) -> None:
        """Reads the files of prompts that were added since the last call."""
        if self.history.head_seq - self._read_through > QUICK_ENTRIES_MAX:
            async with self._record.exclusive():
                prompts = await self._record.in_thread(self._new_prompts)
        else:
            prompts = self._new_prompts()
        if prompts:
            await self._read_files_of(prompts)
        if self._pictures:
            await self._choose_pictures()

    async def _read_files_of(self, prompts: Iterable[ModelInputEntry | ToolResultsEntry]) -> None:
        await self.read(file_id for each in prompts for file_id in file_ids_of(each))

    async def read(self, file_ids: Iterable[str]) -> None:
        """Reads files, also those of a prompt that is not stored yet."""
        wanted = dict.fromkeys(file_ids)
        missing = [file_id for file_id in wanted if file_id not in self._read_files]
        if not missing:
            return
        if not self._read_files:
            self.contents = AttachmentContents(files=self._read_files)
        described = await self._described(missing)
        for file_id in missing:
            self._read_files[file_id] = await self._read(described.get(file_id))

    def _new_prompts(self) -> list[ModelInputEntry | ToolResultsEntry]:
        """The prompts and results with files since the last call, newest first."""
        prompts = [
            entry
            for entry in self.history.newest_after(self._read_through)
            if isinstance(entry, ModelInputEntry | ToolResultsEntry) and file_ids_of(entry)
        ]
        self._read_through = self.history.head_seq
        self._prompts += reversed(prompts)
        return prompts

    async def _choose_pictures(self) -> None:
        epoch_seq = self.history.epoch.seq if self.history.epoch is not None else 0
        pictures = self._pictures_in_reach()
        shown, needs_epoch = choose_pictures(pictures, epoch_seq=epoch_seq)
        in_reach = frozenset(pictures)
        put_away, before = in_reach - shown, self.contents.put_away
        if put_away != before:
            self.contents = AttachmentContents(files=self._read_files, put_away=put_away)
        is_other = not self._in_reach.isdisjoint(put_away ^ before)
        is_same_epoch, self._chosen_in = self._chosen_in == epoch_seq, epoch_seq
        self.needs_epoch = needs_epoch or (is_same_epoch and (is_other or self.needs_epoch))
        self._in_reach = in_reach
        await self._hold({file_id for _, file_id in shown})

    def _pictures_in_reach(self) -> Pictures:
        """The images that may be shown: those of live turns, up to the running turn."""
        history = self.history
        begins_after = history.epoch.summary_through if history.epoch is not None else 0
        running = [prompt.turn_id for prompt in history.unfinished_turns()[:1]]
        sizes: dict[Mention, int] = {}
        for prompt in self._prompts:
            turn = history.turn(prompt.turn_id) if prompt.turn_id is not None else None
            is_waiting = turn is not None and not turn.is_over and prompt.turn_id not in running
            if turn is None or is_waiting or prompt.seq <= begins_after:
                continue
            for file_id in file_ids_of(prompt):
                if file_id in self._pictures:
                    mention = prompt.seq, file_id  # maybe twice in the same prompt
                    size = self._pictures[file_id].size
                    if size > PDF_SENT_BYTES_MAX:  # a PDF of which only the text is shown
                        size = TEXT_BYTES_MAX
                    sizes[mention] = sizes.get(mention, 0) + size
        return sizes

    async def _hold(self, file_ids: Container[str]) -> None:
        """Keeps the contents of these images in memory, and drops those of the others."""
        for file_id, entry in list(self._pictures.items()):
            known = self._read_files[file_id]
            if file_id not in file_ids:
                self._read_files[file_id] = _put_away(known)
            elif not known.is_image and not known.is_document:
                try:
                    shown = await self._shown(entry, known)
                except StorageError as error:
                    shown = _unread(entry, error)
                if not shown.is_image and not shown.is_document:
                    del self._pictures[file_id]
                self._read_files[file_id] = shown

    async def _shown(self, entry: AttachmentEntry, known: ContextAttachment) -> ContextAttachment:
        """An image or a PDF with its contents."""
        if known.content_type != _PDF:
            image = await self._bytes(entry, IMAGE_BYTES_MAX)
            return replace(known, data_base64=base64.b64encode(image).decode(), reason=None)
        data = await self._bytes(entry, PDF_BYTES_MAX)
        read = self._pdfs.get(entry.file_id)
        if read is None:
            read = self._pdfs[entry.file_id] = await _pdf_as_text(entry, data)
        may_be_sent = (
            len(data) <= PDF_SENT_BYTES_MAX
            and read.pages <= _PDF_PAGES_MAX
            and read.reason not in ("attachment_encrypted", "attachment_unreadable")
        )
        return replace(read, pdf_base64=base64.b64encode(data).decode()) if may_be_sent else read

    async def _described(self, file_ids: Iterable[str]) -> dict[str, AttachmentEntry]:
        """The attachment entries of the files; older ones are read from the store."""
        wanted, history = set(file_ids), self.history

        def find(entries: Iterable[Entry]) -> dict[str, AttachmentEntry]:
            attached = (entry for entry in entries if isinstance(entry, AttachmentEntry))
            return {entry.file_id: entry for entry in attached if entry.file_id in wanted}

        described = find(history.entries)
        if history.first_seq > 1 and len(described) < len(wanted):
            store = self._record.profile.store
            async for batch in store.entries(history.session_id, through=history.first_seq):
                described |= find(batch)
        return described

    async def _read(self, entry: AttachmentEntry | None) -> ContextAttachment:
        """Reads a text, or recognizes an image. An image's contents are read later, if it is
        chosen."""
        if entry is None or entry.redacted_at is not None:
            return ContextAttachment(name="(erased)", reason="attachment_missing")
        try:
            start = await self._bytes(entry, _MAGIC_BYTES)
            is_webp = start[:4] == b"RIFF" and start[8:12] == b"WEBP"
            types = (kind for magic, kind in _IMAGES.items() if start.startswith(magic))
            image_type = "image/webp" if is_webp else next(types, None)
            if image_type is None and start.startswith(b"%PDF-"):
                image_type = _PDF
            if image_type is None:
                return _text(entry, await self._bytes(entry, TEXT_BYTES_MAX + 1))
        except StorageError as error:
            return _unread(entry, error)
        if entry.size > (PDF_BYTES_MAX if image_type == _PDF else IMAGE_BYTES_MAX):
            return _left_out(entry, "attachment_too_large")
        self._pictures[entry.file_id] = entry
        return _put_away(ContextAttachment(name=entry.filename, content_type=image_type))

    async def _bytes(self, entry: AttachmentEntry, length: int) -> bytes:
        session_id = self._record.session_id
        return await self._files.read(session_id, entry.file_id, offset=0, length=length)


def _text(entry: AttachmentEntry, data: bytes) -> ContextAttachment:
    is_cut = len(data) > TEXT_BYTES_MAX
    try:
        # A text that was cut may end inside a character.
        text, _ = utf_8_decode(data[:TEXT_BYTES_MAX], "strict", not is_cut)
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


async def _pdf_as_text(entry: AttachmentEntry, data: bytes) -> ContextAttachment:
    found = await read_pdf(data, text_bytes_max=TEXT_BYTES_MAX)
    return ContextAttachment(
        name=entry.filename,
        content_type=_PDF,
        text=found.text or None,
        pages=found.pages,
        reason="attachment_cut" if found.is_cut else found.reason,
    )


def _put_away(picture: ContextAttachment) -> ContextAttachment:
    return replace(
        picture, text=None, data_base64=None, pdf_base64=None, reason="attachment_too_many"
    )


def _unread(entry: AttachmentEntry, error: StorageError) -> ContextAttachment:
    is_gone = isinstance(error, BadEntry)
    return _left_out(entry, "attachment_missing" if is_gone else "attachment_unreadable")


def _left_out(entry: AttachmentEntry, reason: AttachmentReason) -> ContextAttachment:
    return ContextAttachment(name=entry.filename, content_type=entry.content_type, reason=reason)
