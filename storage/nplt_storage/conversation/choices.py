"""What holds in a conversation whether the entry that said it stands or not.

Names, models, pins and the archive are people's choices about a conversation: a
rollback does not undo them. A prompt's `message_id` stays known too, since what
is sent twice runs once; and what a checkpoint quotes of entries that are gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from nplt_storage.conversation.checkpoints import read_checkpoint
from nplt_storage.conversation.landmarks import Told
from nplt_storage.conversation.rows import ConversationRow, name_from
from nplt_storage.facts.entries import (
    ArchivedEntry,
    CheckpointEntry,
    Entry,
    ModelInputEntry,
    ModelSwitchedEntry,
    PinnedEntry,
    RenamedEntry,
)


class Choices:
    def __init__(self, entries: Iterable[Entry], row: ConversationRow | None) -> None:
        """Where there is a row it knows better: the entries may be only the newest."""
        self.name: str | None = None
        """Someone gave it, or else the first prompt."""
        self.model: str | None = None
        self.pinned = False
        self.archived = False
        self.prompts: dict[str, ModelInputEntry] = {}
        self.quoted: dict[int, Told] = {}
        """Entries that may be gone otherwise, by number."""
        for entry in entries:
            self.add(entry)
        if row is not None:
            self.name = row.name if row.named else None
            self.model = row.model
            self.pinned = row.pinned
            self.archived = row.archived

    def add(self, entry: Entry) -> None:
        match entry:
            case ModelInputEntry():
                if entry.message_id is not None:
                    self.prompts.setdefault(entry.message_id, entry)
                if self.name is None:
                    self.name = name_from(entry.content)
            case RenamedEntry():
                self.name = entry.name
            case ModelSwitchedEntry():
                self.model = entry.model
            case PinnedEntry():
                self.pinned = entry.pinned
            case ArchivedEntry():
                self.archived = entry.archived
            case CheckpointEntry():
                checkpoint = read_checkpoint(entry)
                if checkpoint is not None:
                    self.quoted |= {told.seq: told for told in checkpoint.told}
            case _:
                pass
