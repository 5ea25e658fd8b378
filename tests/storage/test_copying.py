"""Conversations copied and forked, whole or not at all, by any store."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.storage.care_samples import (
    FILE_ID,
    LONG_RESULT,
    all_entries,
    attachment,
    put,
    put_attachment,
    reference_to,
    with_long_result,
)
from tests.storage.conversations import (
    START,
    Pen,
    answer,
    asking,
    call,
    chat,
    prompt,
    ticking_clock,
)
from tests.support.redis_server import RedisServer

from nplt_storage import (
    BadEntry,
    ConversationExists,
    ConversationNotFound,
    ConversationStore,
    JsonFileStore,
    MemoryStore,
    NewFork,
    Origin,
    RedisStore,
    StorageUnavailable,
    fork,
)
from nplt_storage.copying import copy_conversation
from nplt_storage.entries import (
    CheckpointEntry,
    Entry,
    ForkedEntry,
    ModelSwitchedEntry,
    PinnedEntry,
    RenamedEntry,
    SystemInstructionEntry,
    WidgetEntry,
)
from nplt_storage.rows import Checkpoint, StateEntry, checkpoint_state, fold_all, new_row

ORIGIN = Origin(user="ada", created_at=START, extra={"uploaded_files": [{"name": "a.txt"}]})
LONG = chat(400)
"""More than one batch."""
FORK = NewFork(session_id="forked", user="eve", created_at=START, entry_id="f1")


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture(params=["memory", "files", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ConversationStore]:
    opened: ConversationStore
    match request.param:
        case "memory":
            opened = MemoryStore(ticking_clock())
        case "files":
            opened = await JsonFileStore.open_directory(tmp_path / "data", clock=ticking_clock())
        case _:
            server: RedisServer = request.getfixturevalue("redis_server")
            prefix = f"{tmp_path.name}:"
            opened = await RedisStore.open_url(server.url, clock=ticking_clock(), key_prefix=prefix)
    yield opened
    await opened.close()


async def test_a_copy_holds_every_entry_and_the_attributes_of_the_conversation(
    store: ConversationStore,
) -> None:
    source = MemoryStore(ticking_clock())
    await put(source, LONG, origin=ORIGIN)
    copied = await copy_conversation(source, "s1", store, "copy")
    assert await all_entries(store, "copy") == LONG
    assert await store.origin("copy") == ORIGIN
    assert copied.head_seq == len(LONG)


async def test_what_was_too_long_for_an_entry_comes_along(store: ConversationStore) -> None:
    source = MemoryStore(ticking_clock())
    await put(source, with_long_result(answer("t1", call=1)), blobs=[LONG_RESULT])
    await copy_conversation(source, "s1", store, "copy")
    assert await all_entries(store, "copy") == await all_entries(source)
    blob = reference_to(LONG_RESULT)
    assert await store.blob("copy", blob.blob_id, 0, blob.size) == LONG_RESULT


async def test_a_lost_blob_is_reported_and_its_entry_copied(
    store: ConversationStore,
) -> None:
    source = MemoryStore(ticking_clock())
    await put(source, with_long_result())
    copied = await copy_conversation(source, "s1", store, "copy")
    assert copied.missing == (reference_to(LONG_RESULT).blob_id,)
    assert await all_entries(store, "copy") == await all_entries(source)


async def test_a_source_that_fails_in_the_middle_leaves_no_copy(store: ConversationStore) -> None:
    class Failing(MemoryStore):
        async def entries(
            self, session_id: str, *, after: int = 0, through: int | None = None
        ) -> AsyncIterator[Sequence[Entry]]:
            async for batch in super().entries(session_id, after=after, through=through):
                yield batch
                raise StorageUnavailable("gone")

    source = Failing(ticking_clock())
    await put(source, chat(3))
    with pytest.raises(StorageUnavailable):
        await copy_conversation(source, "s1", store, "copy")
    assert await store.row("copy") is None
    await put(store, chat(1), "copy")


async def test_a_fork_at_any_entry_is_the_beginning_and_one_entry_more(
    store: ConversationStore,
) -> None:
    entries = chat(3)
    await put(store, entries, origin=ORIGIN)
    for at_seq in range(1, len(entries) + 1):
        new = replace(FORK, session_id=f"fork-{at_seq}")
        forked = await fork(store, "s1", at_seq=at_seq, new=new)
        *copied, last = await all_entries(store, new.session_id)
        assert copied == entries[:at_seq]
        assert last == ForkedEntry(
            seq=at_seq + 1, id="f1", timestamp=START, from_session_id="s1", at_seq=at_seq
        )
        assert forked.head_seq == at_seq + 1
        assert (await store.origin(new.session_id)).user == "eve"
    assert await all_entries(store) == entries


@pytest.mark.parametrize("at_seq", [-1, 0, 9, 2**63])
async def test_a_fork_where_there_is_no_entry_is_refused_and_leaves_nothing(
    store: ConversationStore, at_seq: int
) -> None:
    await put(store, chat(3))
    with pytest.raises(BadEntry, match="no entry"):
        await fork(store, "s1", at_seq=at_seq, new=FORK)
    assert await store.row("forked") is None


async def test_a_fork_of_what_is_not_there_or_onto_what_is_there_is_refused(
    store: ConversationStore,
) -> None:
    await put(store, chat(1))
    await put(store, chat(2), "forked")
    with pytest.raises(ConversationNotFound):
        await fork(store, "nobody", at_seq=1, new=replace(FORK, session_id="other"))
    with pytest.raises(ConversationExists):
        await fork(store, "s1", at_seq=1, new=FORK)
    assert await all_entries(store, "forked") == chat(2)


async def test_an_unfinished_turn_is_not_resumed_in_the_fork(
    store: ConversationStore,
) -> None:
    await put(store, Pen().write_all([prompt("t1"), asking("t1", call())]))
    await fork(store, "s1", at_seq=2, new=FORK)
    forked, original = await store.row("forked"), await store.row("s1")
    assert forked is not None
    assert original is not None
    assert (forked.unfinished, original.unfinished) == ((), (("t1", 1),))
    opened = await store.open("forked")
    assert opened.history.unfinished_turns() == []
    await opened.record.close()


async def test_attachments_belong_to_both_and_either_may_go(tmp_path: Path) -> None:
    store = MemoryStore(ticking_clock())
    await put(store, Pen().write_all([attachment(b"bytes"), prompt("t1")]))
    original = put_attachment(tmp_path, "s1", b"bytes")
    copied = await fork(store, "s1", at_seq=2, new=FORK, files=tmp_path / "files")
    original.unlink()
    assert (tmp_path / "files" / "forked" / FILE_ID).read_bytes() == b"bytes"
    assert copied.missing == ()


async def test_where_a_file_can_not_have_two_names_attachments_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "link", refuse)
    store = MemoryStore(ticking_clock())
    await put(store, Pen().write_all([attachment(b"bytes")]))
    put_attachment(tmp_path, "s1", b"bytes")
    await fork(store, "s1", at_seq=1, new=FORK, files=tmp_path / "files")
    (copy,) = (tmp_path / "files" / "forked").iterdir()
    assert (copy.name, copy.read_bytes()) == (FILE_ID, b"bytes")
    assert copy.stat().st_mode & 0o777 == 0o600


async def test_only_attachments_of_the_beginning_come_along(tmp_path: Path) -> None:
    store = MemoryStore(ticking_clock())
    await put(store, Pen().write_all([prompt("t1"), attachment(b"bytes")]))
    put_attachment(tmp_path, "s1", b"bytes")
    await fork(store, "s1", at_seq=1, new=FORK, files=tmp_path / "files")
    assert not (tmp_path / "files" / "forked").exists()


async def test_a_missing_attachment_is_reported_by_the_copy(tmp_path: Path) -> None:
    store = MemoryStore(ticking_clock())
    await put(store, Pen().write_all([attachment(b"bytes")]))
    copied = await fork(store, "s1", at_seq=1, new=FORK, files=tmp_path / "files")
    assert copied.missing == (FILE_ID,)
    assert not (tmp_path / "files" / "forked").exists()


class Trimmed(MemoryStore):
    """Gives a checkpoint and what is after it, as a store does that trims."""

    def __init__(self, whole: list[Entry], cut: int) -> None:
        super().__init__(ticking_clock())
        row = fold_all(new_row("s1", user="local", created_at=START), whole[:cut])
        there = [entry for entry in whole[:cut] if isinstance(entry, StateEntry)]
        state = checkpoint_state(Checkpoint(row=row, state_entries=tuple(there)))
        last = whole[cut - 1]
        checkpoint = CheckpointEntry(seq=last.seq, id="c", timestamp=last.timestamp, state=state)
        self.left: list[Entry] = [checkpoint, *whole[cut:]]

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        yield self.left

    async def origin(self, session_id: str) -> Origin:
        return ORIGIN


TRIMMED = Trimmed(
    Pen().write_all(
        [
            SystemInstructionEntry(content="be brief"),
            prompt("t1"),
            WidgetEntry(widget="todo", state={"items": ["measure"]}),
            replace(answer("t1"), usage={"input_tokens": 4, "output_tokens": 2}),
            RenamedEntry(name="load"),
            ModelSwitchedEntry(model="a/b"),
            PinnedEntry(pinned=True),
            prompt("t2", "and now?"),
            answer("t2"),
        ]
    ),
    cut=7,
)


async def test_what_a_store_has_trimmed_is_stood_in_for_where_every_number_needs_an_entry(
    store: ConversationStore,
) -> None:
    await copy_conversation(TRIMMED, "s1", store, "copy")
    row = await store.row("copy")
    assert row is not None
    assert (row.name, row.model, row.pinned) == ("load", "a/b", True)
    assert (row.head_seq, row.system_seq, row.widget_seqs) == (9, 1, (("todo", 3),))
    assert row.billed == (("", 1, 4, 2, 0),)
    assert (await all_entries(store, "copy"))[-2:] == TRIMMED.left[1:]
    opened = await store.open("copy")
    assert opened.history.system_instruction == "be brief"
    assert opened.history.widget_states == {"todo": {"items": ["measure"]}}
    await opened.record.close()
