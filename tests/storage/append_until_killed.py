"""Processes that append for ever and say which entries were acknowledged.

    python append_until_killed.py DATA_DIR SESSION_ID

For every line on its input it forks a writer (so that starting one costs no
imports) and says `gone` when that writer was killed. A writer says its process
id first, then `seq id` for each entry. Used by test_killed_writers.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import anyio

from nplt_storage import ConversationHistory, ConversationNotFound, JsonFileStore, Record
from nplt_storage.entries import Entry, ModelInputEntry, ModelOutputEntry
from nplt_storage.ids import new_entry_id


def now() -> datetime:
    return datetime.now(UTC)


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def write_for_ever(data_dir: Path, session_id: str) -> None:
    store = await JsonFileStore.open_directory(data_dir, clock=now)
    try:
        opened = await store.open(session_id)
        record, history = opened.record, opened.history
    except ConversationNotFound:
        record = await store.create(session_id, user="local")
        history = ConversationHistory(session_id)
    for prompt in history.unfinished_turns():
        await append(record, history, ModelOutputEntry(turn_id=prompt.turn_id, content="late"))
    while True:
        turn_id = new_entry_id()
        size = history.head_seq * 37 % 3000
        await append(record, history, ModelInputEntry(turn_id=turn_id, content="p" + "x" * size))
        await append(record, history, ModelOutputEntry(turn_id=turn_id, content="a" * (size + 1)))


async def append(record: Record, history: ConversationHistory, draft: Entry) -> None:
    entry = history.stamp(draft, id=new_entry_id(), timestamp=now())
    await record.append(entry)
    history.add(entry)
    say(f"{entry.seq} {entry.id}")


def main() -> None:
    for _ in sys.stdin:
        writer = os.fork()
        if writer == 0:
            say(str(os.getpid()))
            anyio.run(write_for_ever, Path(sys.argv[1]), sys.argv[2])
        os.waitpid(writer, 0)
        say("gone")


if __name__ == "__main__":
    main()
