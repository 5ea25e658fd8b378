"""Stores of JSON files for tests: opened in one line, asked in one more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tests.storage.conversations import START, Pen

from nplt_storage import (
    ConversationHistory,
    ConversationRow,
    ConversationStore,
    FileSettings,
    JsonFileStore,
    Record,
    RowQuery,
)
from nplt_storage.entries import Entry
from nplt_storage.files.conversation_file import JsonFile


async def open_store(
    data_dir: Path,
    settings: FileSettings | None = None,
    *,
    clock: Callable[[], datetime] | None = None,
) -> JsonFileStore:
    return await JsonFileStore.open_directory(
        data_dir, clock=clock or (lambda: START), settings=settings
    )


async def rows(store: ConversationStore, user: str = "local") -> list[ConversationRow]:
    return list((await store.list(user, RowQuery(limit=1000))).rows)


async def row_of(store: ConversationStore, session_id: str) -> ConversationRow:
    row = await store.row(session_id)
    assert row is not None
    return row


async def all_entries(store: ConversationStore, session_id: str) -> list[Entry]:
    return [entry async for batch in store.entries(session_id) for entry in batch]


async def write(record: Record, history: ConversationHistory, *drafts: Entry) -> None:
    pen = Pen(history)
    for draft in drafts:
        entry = pen.stamped(draft)
        await record.append(entry)
        history.add(entry)


def loaded(file: JsonFile) -> tuple[int, list[Entry]]:
    """A descriptor to append through, and every entry there is."""
    descriptor = file.open_for_appending()
    with file.reading() as source:
        return descriptor, list(source.after(0))
