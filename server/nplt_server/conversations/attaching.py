"""Reading the files that go with prompts, before a context is put together.

Off the loop, each once, and bounded: of a text its beginning, pictures up to a size
and only so many of them (`pictures`). What a file is, its first bytes say;
what its sender called it is a name for people. It never fails: a file that can't be
read is shown as one that can't be read.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from typing import Final

from nplt_server.context.attachments import AttachmentReason, ContextAttachment, Shelf
from nplt_server.conversations.ledger import Ledger
from nplt_server.conversations.pictures import Mention, Picture, choose_pictures
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.errors import BadEntry, StorageError
from nplt_storage.facts.entries import AttachmentEntry, ModelInputEntry

TEXT_BYTES_MAX: Final = 64 * 1024
IMAGE_BYTES_MAX: Final = 5 * 1024 * 1024
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
        self._read_files: dict[str, ContextAttachment] = {}
        self.shelf = Shelf(files=self._read_files)
        """Another one, when what was shown of a prompt changes."""
        self.needs_epoch = False
        """What is on the shelf is not what was sent in the running epoch."""
        self.history = ledger.history
        self._ledger = ledger
        self._files = files
        self._pictures: dict[str, AttachmentEntry] = {}
        self._naming: list[ModelInputEntry] = []
        """Prompts with files, oldest first."""
        self._in_reach: frozenset[Mention] = frozenset()
        self._chosen_in: int | None = None
        self._looked_through = 0

    async def gather(self) -> None:
        """Whatever prompts that came since the last time name."""
        prompts: list[ModelInputEntry] = []
        for entry in reversed(self.history.entries):
            if entry.seq <= self._looked_through:
                break
            if isinstance(entry, ModelInputEntry) and entry.attachments:
                prompts.append(entry)
        self._looked_through = self.history.head_seq
        self._naming += reversed(prompts)
        wanted = dict.fromkeys(file_id for each in prompts for file_id in each.attachments)
        missing = [file_id for file_id in wanted if file_id not in self._read_files]
        if missing:
            described = await self._described(missing)
            for file_id in missing:
                self._read_files[file_id] = await self._read(described.get(file_id))
        if self._pictures:
            await self._choose_pictures()

    async def _choose_pictures(self) -> None:
        epoch_seq = self.history.epoch.seq if self.history.epoch is not None else 0
        pictures = tuple(self._pictures_in_reach())
        choice = choose_pictures(pictures, epoch_seq=epoch_seq)
        in_reach = frozenset(each.mention for each in pictures)
        put_away, before = in_reach - choice.shown, self.shelf.put_away
        if put_away != before:
            self.shelf = Shelf(files=self._read_files, put_away=put_away)
        is_other = not self._in_reach.isdisjoint(put_away ^ before)
        is_same_epoch, self._chosen_in = self._chosen_in == epoch_seq, epoch_seq
        self.needs_epoch = choice.needs_epoch or (is_same_epoch and (is_other or self.needs_epoch))
        self._in_reach = in_reach
        await self._hold({file_id for _, file_id in choice.shown})

    def _pictures_in_reach(self) -> Iterator[Picture]:
        """Those a model may be shown: of turns in full detail, up to the one that runs."""
        history = self.history
        begins_after = history.epoch.summary_through if history.epoch is not None else 0
        running = history.unfinished_turns()[:1]
        for prompt in self._naming:
            turn = history.turn(prompt.turn_id) if prompt.turn_id is not None else None
            is_waiting = turn is not None and not turn.is_over and prompt not in running
            if turn is None or is_waiting or prompt.seq <= begins_after:
                continue
            for file_id in prompt.attachments:
                if file_id in self._pictures:
                    size = self._pictures[file_id].size
                    yield Picture(seq=prompt.seq, file_id=file_id, size=size)

    async def _hold(self, file_ids: Container[str]) -> None:
        """The contents of these pictures, and of no others."""
        for file_id, entry in list(self._pictures.items()):
            known = self._read_files[file_id]
            if file_id not in file_ids:
                self._read_files[file_id] = _put_away(known)
            elif not known.is_image:
                try:
                    data = await self._bytes(entry, IMAGE_BYTES_MAX)
                except StorageError as error:
                    del self._pictures[file_id]
                    self._read_files[file_id] = _unread(entry, error)
                else:
                    shown = base64.b64encode(data).decode()
                    self._read_files[file_id] = replace(known, data_base64=shown, reason=None)

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
        """A picture without its contents: whether there is room for it is not known yet."""
        if entry is None or entry.redacted_at is not None:
            return ContextAttachment(name="(erased)", reason="attachment_missing")
        try:
            image_type = _image_type(await self._bytes(entry, _LOOKED_AT_BYTES))
            if image_type is None:
                return _text(entry, await self._bytes(entry, TEXT_BYTES_MAX + 1))
        except StorageError as error:
            return _unread(entry, error)
        if entry.size > IMAGE_BYTES_MAX:
            return _left_out(entry, "attachment_too_large")
        self._pictures[entry.file_id] = entry
        return _put_away(ContextAttachment(name=entry.filename, content_type=image_type))

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


def _put_away(picture: ContextAttachment) -> ContextAttachment:
    return replace(picture, data_base64=None, reason="attachment_too_many")


def _unread(entry: AttachmentEntry, error: StorageError) -> ContextAttachment:
    is_gone = isinstance(error, BadEntry)
    return _left_out(entry, "attachment_missing" if is_gone else "attachment_unreadable")


def _left_out(entry: AttachmentEntry, reason: AttachmentReason) -> ContextAttachment:
    return ContextAttachment(name=entry.filename, content_type=entry.content_type, reason=reason)
