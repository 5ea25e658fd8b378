"""Which entry a prompt is, by its sender's own name for it.

So that a prompt sent twice is known without reading a long file. It is asked
also whether it has all of a conversation's prompts: entries are taken in from
the first on, and `through` is how far that goes without a gap. Beyond it the
file must be read, and tells what is missing (`learn`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from nplt_storage.facts.entries import Entry, ModelInputEntry


class PromptIndex:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, conversation: int, entries: Iterable[Entry]) -> None:
        known = through = self.through(conversation)
        for entry in entries:
            if isinstance(entry, ModelInputEntry) and entry.message_id is not None:
                # It may be here already: noted when it was said, and met again by a survey.
                self._connection.execute(
                    "INSERT OR IGNORE INTO prompts VALUES (?, ?, ?)",
                    (conversation, entry.message_id, entry.seq),
                )
            if entry.seq == through + 1:
                through = entry.seq
        if through != known:
            self._reaches(conversation, through)

    def learn(self, conversation: int, prompts: Mapping[str, int], through: int) -> None:
        """All there are up to `through`, by number."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO prompts VALUES (?, ?, ?)",
            ((conversation, message_id, seq) for message_id, seq in prompts.items()),
        )
        self._reaches(conversation, max(through, self.through(conversation)))

    def seq_of(self, conversation: int, message_id: str) -> int | None:
        question = "SELECT seq FROM prompts WHERE conversation = ? AND message_id = ?"
        found = self._connection.execute(question, (conversation, message_id)).fetchone()
        return None if found is None else found[0]

    def through(self, conversation: int) -> int:
        question = "SELECT through FROM prompts_known WHERE conversation = ?"
        found = self._connection.execute(question, (conversation,)).fetchone()
        return 0 if found is None else found[0]

    def remove_some(self, conversation: int, count: int) -> int:
        """How many there were to remove, at most `count`."""
        self._connection.execute(
            "DELETE FROM prompts_known WHERE conversation = ?", (conversation,)
        )
        return self._connection.execute(
            "DELETE FROM prompts WHERE conversation = ?1 AND message_id IN "
            "(SELECT message_id FROM prompts WHERE conversation = ?1 LIMIT ?2)",
            (conversation, count),
        ).rowcount

    def _reaches(self, conversation: int, through: int) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO prompts_known VALUES (?, ?)", (conversation, through)
        )
