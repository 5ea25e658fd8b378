"""Finding a prompt in Redis by its sender's own name for it. Blocking: used in a thread.

Beside the stream a hash has the number of every prompt that came with a name. Of
one that is trimmed it keeps the turn and how that ended, in a few bytes: so it
does not run again either. A number is believed once the line was looked at: one
that was taken back may have left its name here.

`meta` counts the names. If there are fewer (Redis evicts keys one by one), the
stream is read and those that are still in it are noted again.
"""

from __future__ import annotations

from typing import Any

import orjson

from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.conversation.sent_before import SentBefore, sent_before
from nplt_storage.facts.entries import ModelInputEntry
from nplt_storage.redis_streams import scripts
from nplt_storage.redis_streams.connection import RedisConnection
from nplt_storage.redis_streams.finding import Finder
from nplt_storage.redis_streams.keys import Keyspace, name_of, place_in_stream


class Prompts:
    def __init__(self, connection: RedisConnection, keyspace: Keyspace, finder: Finder) -> None:
        self._connection = connection
        self._keyspace = keyspace
        self._finder = finder

    def find(self, session_id: str, message_id: str) -> SentBefore | None:
        row = self._finder.row(session_id)
        noted, is_all = self._noted(session_id, message_id)
        if not is_all:
            self._note_again(row)
            noted, _ = self._noted(session_id, message_id)
        if noted is None:
            return None
        found = self._in_stream(row, noted[0], message_id)
        if found is None:  # trimmed, perhaps just now
            noted, _ = self._noted(session_id, message_id)
            found = None if noted is None else _trimmed(noted)
        return found

    def _noted(self, session_id: str, message_id: str) -> tuple[list[Any] | None, bool]:
        """What is noted under that name, and whether all names are there."""
        keys = [self._keyspace.of(session_id).base, self._keyspace.prefix]
        noted, is_all = self._connection.run(scripts.PROMPT_WITH, keys, message_id)
        return (None if noted is None else orjson.loads(noted)), bool(is_all)

    def _in_stream(self, row: ConversationRow, seq: int, message_id: str) -> SentBefore | None:
        source = self._finder.source(row, head_seq=max(row.head_seq, seq))
        prompt = source.at(seq)
        if not isinstance(prompt, ModelInputEntry) or prompt.message_id != message_id:
            return None
        return sent_before(source.after(seq - 1), hidden=row.hidden)

    def _note_again(self, row: ConversationRow) -> None:
        keys = self._keyspace.of(row.session_id)
        self._connection.call_many(
            ("HSETNX", keys.prompts, name, place_in_stream(entry))
            for entry in self._finder.source(row).after(0)
            if (name := name_of(entry))
        )
        self._connection.run(scripts.COUNT_PROMPTS, [keys.base, self._keyspace.prefix])


def _trimmed(noted: list[Any]) -> SentBefore | None:
    match noted:
        case [int(seq), str(turn_id), "completed" | "interrupted" | "failed" as state]:
            return SentBefore(seq=seq, turn_id=turn_id, state=state, text=None)
        case _:
            return None
