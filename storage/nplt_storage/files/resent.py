"""Finding a prompt in a file by its sender's own name for it.

The catalogue knows its number, and the line is looked at before it is believed.
Where the catalogue does not know all of the file, or knows it wrong, the file is
read from its beginning, once: the catalogue is told what was found.
"""

from __future__ import annotations

from nplt_storage.catalogue.learned import PromptsFound
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.conversation.sent_before import SentBefore, sent_before
from nplt_storage.errors import StorageUnavailable
from nplt_storage.facts.entries import ModelInputEntry
from nplt_storage.facts.lines import decode_verified, peek_kind
from nplt_storage.files.desk import Desk
from nplt_storage.files.file import JsonFile
from nplt_storage.files.reader import LineReader
from nplt_storage.files.workshop import Workshop


class PromptFinder:
    def __init__(self, workshop: Workshop, desk: Desk) -> None:
        self._workshop = workshop
        self._desk = desk

    async def find(self, session_id: str, message_id: str) -> SentBefore | None:
        row, file = await self._desk.find(session_id)
        seq, through = await self._known(session_id, message_id)
        if seq is None and through >= row.head_seq:
            return None
        found = await self._read(file, row, seq, message_id)
        if found is None:
            searched = await self._desk.reading(file, row, lambda: all_prompts(file))
            self._workshop.catalogue.note_prompts(searched)
            found = await self._read(file, row, searched.prompts.get(message_id), message_id)
        return found

    async def _known(self, session_id: str, message_id: str) -> tuple[int | None, int]:
        try:
            return await self._workshop.catalogue.prompt(session_id, message_id)
        except StorageUnavailable:
            return None, 0  # the file knows as well

    async def _read(
        self, file: JsonFile, row: ConversationRow, seq: int | None, message_id: str
    ) -> SentBefore | None:
        if seq is None:
            return None

        def read() -> SentBefore | None:
            with file.reading() as entries:
                prompt = next(entries.after(seq - 1), None)
                if not isinstance(prompt, ModelInputEntry) or prompt.message_id != message_id:
                    return None
                return sent_before(entries.after(seq - 1), hidden=row.hidden)

        return await self._desk.reading(file, row, read)


def all_prompts(file: JsonFile) -> PromptsFound:
    """Blocks, as long as the file is long. Of two with one name the first counts."""
    prompts: dict[str, int] = {}
    with file.reading_lines() as (read, tail):
        for line in LineReader(read, first=tail.first, end=tail.end).forward(tail.first):
            if peek_kind(line.data) == ModelInputEntry.kind:
                entry = decode_verified(line.data)
                if isinstance(entry, ModelInputEntry) and entry.message_id is not None:
                    prompts.setdefault(entry.message_id, line.seq)
        through = tail.closing.head_seq
    return PromptsFound(session_id=file.session_id, prompts=prompts, through=through)
