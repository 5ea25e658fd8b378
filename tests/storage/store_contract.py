"""What every store does, as functions to be run against each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias

import anyio
import pytest
from tests.storage.conversations import START, Pen, answer, chat, clear, fault, prompt

from nplt_storage.entries import Entry, ModelInputEntry, ModelOutputEntry, RenamedEntry
from nplt_storage.errors import (
    BadEntry,
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.paging import PageQuery
from nplt_storage.store import ConversationStore, Record

Check: TypeAlias = Callable[[ConversationStore], Awaitable[None]]

HOSTILE_IDS = [
    "",
    "..",
    "../s1",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a b",
    "a\n",
    "s1\x00",
    "-a",
    "_a",
    "é",
    "x" * 65,
    "s*",
    "s1.json",
]


async def write(record: Record, history: ConversationHistory, *drafts: Entry) -> None:
    pen = Pen(history)
    for draft in drafts:
        entry = pen.stamped(draft)
        await record.append(entry)
        history.add(entry)


async def a_new_conversation_is_empty_and_listed(store: ConversationStore) -> None:
    await store.create("s1", user="ada")
    row = store.row("s1")
    assert row is not None
    assert (row.name, row.user, row.head_seq, row.damaged) == ("new conversation", "ada", 0, False)
    assert [row.session_id for row in store.rows("ada")] == ["s1"]
    assert store.rows("bob") == []
    page = await store.page("s1", PageQuery())
    assert page.messages == ()


async def what_was_appended_is_there_when_opened_again(store: ConversationStore) -> None:
    record = await store.create("s1", user="ada")
    entries = chat(8)
    for entry in entries:
        await record.append(entry)
    await record.close()
    _, history = await store.open("s1")
    assert list(history.entries) == entries


async def an_opened_conversation_can_be_continued(store: ConversationStore) -> None:
    record = await store.create("s1", user="ada")
    await write(record, ConversationHistory("s1"), prompt("t1"), answer("t1"))
    await record.close()
    record, history = await store.open("s1")
    await write(record, history, prompt("t2"), fault("t2"), clear())
    await record.close()
    _, again = await store.open("s1")
    assert list(again.entries) == list(history.entries)
    assert again.head_seq == 5


async def rows_follow_every_append(store: ConversationStore) -> None:
    record = await store.create("s1", user="ada")
    history = ConversationHistory("s1")
    await write(record, history, prompt("t1", "What now?"), answer("t1", "This."))
    row = store.row("s1")
    assert row is not None
    assert (row.name, row.preview, row.message_count, row.head_seq) == ("What now?", "This.", 2, 2)
    assert row.updated_at == history.entries[-1].timestamp
    await write(record, history, RenamedEntry(name="plans"))
    renamed = store.row("s1")
    assert renamed is not None
    assert (renamed.name, renamed.message_count) == ("plans", 2)


async def a_page_can_be_read_while_it_is_open_and_when_it_is_not(store: ConversationStore) -> None:
    record = await store.create("s1", user="ada")
    for entry in chat(20):
        await record.append(entry)
    queries = [PageQuery(), PageQuery(before=11, limit=3), PageQuery(around=5, view="entries")]
    opened = [await store.page("s1", query) for query in queries]
    await record.close()
    assert [await store.page("s1", query) for query in queries] == opened
    assert [message["seq"] for message in opened[1].messages] == [8, 9, 10]


async def the_whole_text_of_one_message_can_be_asked_for(store: ConversationStore) -> None:
    record = await store.create("s1", user="ada")
    text = "漢\x00" * 100_000
    await write(record, ConversationHistory("s1"), prompt("t1", text), answer("t1"), clear())
    assert await store.text_of("s1", 1) == text
    assert await store.text_of("s1", 2) == "hi"
    for nothing in (3, 4, 0, -1, 10**20):
        assert await store.text_of("s1", nothing) is None


async def readers_and_the_writer_do_not_disturb_each_other(store: ConversationStore) -> None:
    record = await store.create("s1", user="ada")
    entries = chat(12)
    done = anyio.Event()
    lengths: list[int] = []

    async def read() -> None:
        while not done.is_set():
            page = await store.page("s1", PageQuery(limit=200, view="entries", max_bytes=10**9))
            seqs = [message["seq"] for message in page.messages]
            assert seqs == list(range(1, len(seqs) + 1))
            lengths.append(len(seqs))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(read)
        for entry in entries:
            await record.append(entry)
            page = await store.page("s1", PageQuery(limit=1, view="entries"))
            assert page.after == entry.seq, "what was acknowledged is seen at once"
            await anyio.lowlevel.checkpoint()
        done.set()
    assert lengths


async def the_same_id_is_not_given_twice(store: ConversationStore) -> None:
    await store.create("s1", user="ada")
    with pytest.raises(ConversationExists):
        await store.create("s1", user="bob")
    row = store.row("s1")
    assert row is not None
    assert row.user == "ada"


async def what_is_not_there_is_not_found(store: ConversationStore) -> None:
    for unknown in ("s2", *HOSTILE_IDS):
        assert store.row(unknown) is None
        with pytest.raises(ConversationNotFound):
            await store.open(unknown)
        with pytest.raises(ConversationNotFound):
            await store.page(unknown, PageQuery())
        with pytest.raises(ConversationNotFound):
            await store.text_of(unknown, 1)
        with pytest.raises(ConversationNotFound):
            await store.delete(unknown)
        store.touch(unknown, START)


async def an_id_that_could_be_a_path_is_not_created(store: ConversationStore) -> None:
    for hostile in HOSTILE_IDS:
        with pytest.raises(ConversationNotFound):
            await store.create(hostile, user="ada")
    assert store.rows("ada") == []


async def a_conversation_has_one_writer(store: ConversationStore) -> None:
    first = await store.create("s1", user="ada")
    with pytest.raises(ConversationReadOnly):
        await store.open("s1")
    await first.close()
    second, history = await store.open("s1")
    with pytest.raises(ConversationReadOnly):
        await first.append(Pen().stamped(prompt("t1")))
    await first.close()
    await write(second, history, prompt("t1"))


async def an_entry_that_is_refused_is_not_there(store: ConversationStore) -> None:
    record = await store.create("s1", user="ada")
    good = Pen().stamped(prompt("t1"))
    half = ModelInputEntry(seq=1, id="e", timestamp=START, turn_id="t", content="\ud800")
    huge = ModelOutputEntry(seq=1, id="e", timestamp=START, content="x", usage={"n": 2**64})
    far = ModelInputEntry(seq=2, id="e", timestamp=START, turn_id="t", content="x")
    for bad in (half, huge, far, prompt("t1")):
        with pytest.raises(BadEntry):
            await record.append(bad)
    await record.append(good)
    with pytest.raises(BadEntry):
        await record.append(good)
    page = await store.page("s1", PageQuery())
    assert [message["id"] for message in page.messages] == [good.id]
    row = store.row("s1")
    assert row is not None
    assert row.head_seq == 1


async def a_deleted_conversation_is_gone_and_its_id_is_free(store: ConversationStore) -> None:
    record = await store.create("s1", user="ada")
    await write(record, ConversationHistory("s1"), prompt("t1"))
    await store.delete("s1")
    assert store.rows("ada") == []
    with pytest.raises(ConversationNotFound):
        await store.page("s1", PageQuery())
    with pytest.raises(ConversationReadOnly):
        await record.append(Pen().stamped(prompt("t2")))
    await store.create("s1", user="ada")
    assert (await store.page("s1", PageQuery())).messages == ()


async def last_access_is_remembered(store: ConversationStore) -> None:
    await store.create("s1", user="ada")
    at = START + timedelta(days=1)
    store.touch("s1", at)
    row = store.row("s1")
    assert row is not None
    assert row.last_accessed == at


async def it_says_what_it_is_and_what_it_promises(store: ConversationStore) -> None:
    assert store.description.backend in ("memory", "json")
    assert store.description.promise


CONTRACT: list[Check] = [
    a_new_conversation_is_empty_and_listed,
    what_was_appended_is_there_when_opened_again,
    an_opened_conversation_can_be_continued,
    rows_follow_every_append,
    a_page_can_be_read_while_it_is_open_and_when_it_is_not,
    the_whole_text_of_one_message_can_be_asked_for,
    readers_and_the_writer_do_not_disturb_each_other,
    the_same_id_is_not_given_twice,
    what_is_not_there_is_not_found,
    an_id_that_could_be_a_path_is_not_created,
    a_conversation_has_one_writer,
    an_entry_that_is_refused_is_not_there,
    a_deleted_conversation_is_gone_and_its_id_is_free,
    last_access_is_remembered,
    it_says_what_it_is_and_what_it_promises,
]
