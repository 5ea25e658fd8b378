"""Work on one conversation takes no more memory beside thousands of others.

What a request takes for a moment, Python's allocator keeps for a long time: it gives an arena back
only when nothing in it is used.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from tests.server.services import Clock, echo_or_wait, make_services, model_of
from tests.storage.care_samples import file_store, put
from tests.storage.conversations import chat, file_bytes

from nplt_server.conversations.redaction import Erased, ErasedText, find_copies
from nplt_storage import JsonFileStore, MemoryStore
from nplt_storage.files import store as store_module
from nplt_storage.files.format import file_name
from nplt_storage.rows import ConversationRow, RowPage, RowQuery, new_row

_MANY = 3_000
_DAY = datetime(2026, 1, 1, tzinfo=UTC)
_BYTES_MAX = 120_000
"""The names alone of so many files take half a million bytes."""


def ids() -> Iterator[str]:
    return (f"{number:032x}" for number in range(_MANY))


@contextmanager
def little_memory(bytes_max: int = _BYTES_MAX) -> Iterator[None]:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield
        _, most = tracemalloc.get_traced_memory()
        assert most - before < bytes_max
    finally:
        tracemalloc.stop()


def fill(data_dir: Path) -> None:
    """Adds files, after the store was opened: it has no rows of them."""
    for session_id in ids():
        (data_dir / "history" / file_name(session_id, _DAY)).touch()
        (data_dir / "trash" / f"20260101T000000_{session_id}").mkdir()


async def deleted(store: JsonFileStore) -> None:
    await store.delete("s1")


async def deleted_and_restored(store: JsonFileStore) -> None:
    await store.delete("s1")
    await store.undelete("s1", user="local")


async def imported(store: JsonFileStore) -> None:
    await put(store, chat(2), "s2")


async def repaired(store: JsonFileStore) -> None:
    await store.repair("s1")


@pytest.mark.parametrize("work", [deleted, deleted_and_restored, imported, repaired])
async def test_work_on_one_file_does_not_hold_the_names_of_all(
    tmp_path: Path, work: Callable[[JsonFileStore], Awaitable[object]]
) -> None:
    async with file_store(tmp_path) as store:
        for session_id in ("s1", "warm"):
            await put(store, chat(2), session_id)
        await store.repair("warm")
        await store.delete("warm")
        await store.undelete("warm")
        await anyio.to_thread.run_sync(fill, tmp_path)
        with little_memory():
            await work(store)


async def test_pages_of_the_trash_leave_few_of_its_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_TRASH_ROWS_MAX", 10)
    async with file_store(tmp_path) as store:
        await put(store, chat(1), "s1")
        await store.delete("s1")
        await store.trash("local", limit=1)  # imports modules
        for session_id in islice(ids(), 800):
            folder = tmp_path / "trash" / f"20270101T000000_{session_id}"
            folder.mkdir()
            (folder / file_name(session_id, _DAY)).write_bytes(file_bytes(chat(1), session_id))
        tracemalloc.start()
        listed = len(await store.trash("local", limit=1))  # those of one second are all read
        await anyio.to_thread.run_sync(int)  # the thread that listed them has forgotten them now
        left, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (listed, left < 300_000) == (800, True)


async def test_the_size_of_one_conversation_is_summed_without_the_paths_of_all(
    tmp_path: Path,
) -> None:
    async with file_store(tmp_path) as store, anyio.create_task_group() as tasks:
        await put(store, chat(2), "s1")
        await anyio.to_thread.run_sync(fill, tmp_path)
        quotas = make_services(tasks, model_of(echo_or_wait), store=store).quotas
        size = await quotas.size_of("s1")
        with little_memory():
            assert await quotas.size_of("s1") == size > 0


class ManyRows(MemoryStore):
    """Reads each row when it is asked for, as stores on disk do."""

    async def row(self, session_id: str) -> ConversationRow | None:
        row = new_row(session_id, user="local", created_at=_DAY)
        return replace(row, name=f"{session_id} {'n' * 2_000}")

    async def list(self, user: str, query: RowQuery) -> RowPage:
        wanted = [id_ for id_ in ids() if query.cursor is None or id_ > query.cursor]
        rows = [await self.row(session_id) for session_id in wanted[: query.limit]]
        cursor = wanted[query.limit - 1] if len(wanted) > query.limit else None
        return RowPage(rows=tuple(row for row in rows if row is not None), next_cursor=cursor)


async def test_copies_of_an_erased_text_are_searched_without_the_rows_of_all_conversations() -> (
    None
):
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(echo_or_wait), store=ManyRows(Clock()))
        erased = Erased(
            session_id="s1",
            user="local",
            seqs=(1,),
            message_ids=(),
            text=ErasedText("what nobody else said"),
            providers=(),
        )
        await find_copies(services, erased)
        with little_memory(2_000 * _MANY // 3):
            await find_copies(services, erased)
