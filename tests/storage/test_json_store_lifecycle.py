"""Whatever happens to conversations, the directory and the index: nothing is mixed up.

A random life, over restarts, crashes and lost indexes, beside a model that
is nothing but lists of entries.
"""

from __future__ import annotations

import shutil
import tempfile
from itertools import count
from pathlib import Path

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.storage.conversations import START, answer, clear, prompt
from tests.storage.json_stores import all_entries, open_store, rows

from nplt_storage import (
    ConversationHistory,
    JsonFileStore,
    NotInReach,
    Opened,
    PageQuery,
    Record,
    SearchQuery,
)
from nplt_storage.entries import Entry, ModelInputEntry, PinnedEntry, RenamedEntry
from nplt_storage.memory import EntryList
from nplt_storage.pages import read_page
from nplt_storage.rows import fold_all, new_row

MOVES = (
    *("create", "talk", "talk", "talk", "rename", "pin", "clear", "go back", "redact", "close"),
    *("delete", "undelete", "restart", "crash", "lose the index"),
)
Move = tuple[str, int]


class Life:
    def __init__(self, root: Path) -> None:
        self._places = (root / f"{number}" for number in count())
        self._data_dir = next(self._places)
        self._numbers = count(1)
        self._open: dict[str, tuple[Record, ConversationHistory]] = {}
        self._kept: dict[str, list[Entry]] = {}
        self._deleted: dict[str, list[Entry]] = {}

    async def live(self, moves: list[Move]) -> None:
        self._store = await open_store(self._data_dir)
        for move, choice in moves:
            await self._do(move, choice)
        await self._check()
        await self._restart("restart")
        await self._check()
        await self._store.close()

    async def _do(self, move: str, choice: int) -> None:
        match move:
            case "create":
                session_id = f"s{next(self._numbers)}"
                record = await self._store.create(session_id, user="local")
                self._kept[session_id] = []
                self._open[session_id] = (record, ConversationHistory(session_id))
            case "restart" | "crash" | "lose the index":
                await self._restart(move)
            case "undelete":
                for session_id in list(self._deleted):
                    await self._store.undelete(session_id)
                    self._kept[session_id] = self._deleted.pop(session_id)
            case _ if self._kept:
                session_id = sorted(self._kept)[choice % len(self._kept)]
                await self._do_with(session_id, move, choice)

    async def _do_with(self, session_id: str, move: str, choice: int) -> None:
        record, history = await self._opened(session_id)
        match move:
            case "talk":
                turn_id = f"t{next(self._numbers)}"
                await self._write(session_id, prompt(turn_id, f"word{choice} {turn_id}"))
                await self._write(session_id, answer(turn_id, f"re {choice}"))
            case "rename":
                await self._write(session_id, RenamedEntry(name=f"name {choice}"))
            case "pin":
                await self._write(session_id, PinnedEntry(pinned=bool(choice % 2)))
            case "clear":
                await self._write(session_id, clear())
            case "go back" if history.head_seq > 1:
                await self._go_back(session_id, 1 + choice % (history.head_seq - 1))
            case "redact" if history.head_seq:
                await self._redact(session_id, record, 1 + choice % history.head_seq)
            case "close":
                await record.close()
                del self._open[session_id]
            case "delete":
                await self._store.delete(session_id)
                del self._open[session_id]
                self._deleted[session_id] = self._kept.pop(session_id)
            case _:
                pass

    async def _opened(self, session_id: str) -> tuple[Record, ConversationHistory]:
        if session_id not in self._open:
            opened: Opened = await self._store.open(session_id)
            self._open[session_id] = (opened.record, opened.history)
        return self._open[session_id]

    async def _write(self, session_id: str, draft: Entry) -> None:
        record, history = self._open[session_id]
        entry = history.stamp(draft, id=f"e{next(self._numbers)}", timestamp=START)
        await record.append(entry)
        history.add(entry)
        self._kept[session_id].append(entry)

    async def _go_back(self, session_id: str, to_seq: int) -> None:
        record, history = self._open[session_id]
        try:
            rollback = history.rollback_to(to_seq)
        except NotInReach:
            history = ConversationHistory(session_id, self._kept[session_id])
            self._open[session_id] = (record, history)
            rollback = history.rollback_to(to_seq)
        await self._write(session_id, rollback)

    async def _redact(self, session_id: str, record: Record, seq: int) -> None:
        entries = self._kept[session_id]
        if isinstance(entries[seq - 1], ModelInputEntry) and not any(
            entry.kind == "rollback" for entry in entries
        ):
            entries[seq - 1] = await record.redact(seq, at=START)
            await record.close()  # a history in memory knows nothing of it
            del self._open[session_id]

    async def _restart(self, how: str) -> None:
        if how == "crash":
            left, self._data_dir = self._data_dir, next(self._places)
            shutil.copytree(left, self._data_dir)
        await self._store.close()
        self._open.clear()
        if how == "lose the index":
            for path in self._data_dir.glob("catalog.sqlite*"):
                path.unlink()
        self._store = await open_store(self._data_dir)

    async def _check(self) -> None:
        store: JsonFileStore = self._store
        expected = {}
        for session_id, entries in self._kept.items():
            row = fold_all(new_row(session_id, user="local", created_at=START), entries)
            expected[session_id] = row
            assert await all_entries(store, session_id) == entries
            query = PageQuery(limit=200, bytes_max=10**9)
            page = read_page(query, EntryList(entries), hidden=row.hidden)
            assert await store.page(session_id, query) == page
        found = {row.session_id: row for row in await rows(store)}
        assert {id_: replace(row, last_accessed=START) for id_, row in found.items()} == {
            id_: replace(row, last_accessed=START) for id_, row in expected.items()
        }
        hits = (await store.search("local", SearchQuery(text="word", limit=1000))).hits
        assert {(hit.session_id, hit.seq) for hit in hits} == {
            (session_id, entry.seq)
            for session_id, entries in self._kept.items()
            for entry in entries
            if isinstance(entry, ModelInputEntry)
            and entry.redacted_at is None
            and not any(a <= entry.seq <= b for a, b in expected[session_id].hidden)
        }


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 10**6)), max_size=30))
def test_everything_is_where_it_should_be_after_any_life(moves: list[Move]) -> None:
    with tempfile.TemporaryDirectory() as root:
        anyio.run(Life(Path(root)).live, moves)
