"""Files taken in, and written out again: whole, without loss, or not at all."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.storage import entry_strategies
from tests.storage.care_samples import (
    FILE_ID,
    LONG_RESULT,
    all_entries,
    attachment,
    file_store,
    put,
    put_attachment,
    reference_to,
    the_file,
    with_long_result,
)
from tests.storage.conversations import START, Pen, answer, chat, file_bytes, prompt, ticking_clock
from tests.storage.disk_fakes import WatchedDisk
from tests.storage.file_fakes import Trouble
from tests.storage.json_stores import open_store
from tests.support.redis_server import RedisServer

from nplt_storage import (
    ConversationStore,
    FileSettings,
    MemoryStore,
    Origin,
    RedisStore,
    RowQuery,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.codec import crc_suffix
from nplt_storage.copying import Source
from nplt_storage.entries import (
    Entry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    wrong_reference,
)
from nplt_storage.file_system import Disk
from nplt_storage.maintenance.export import export_document
from nplt_storage.maintenance.importing import Imported, import_file
from nplt_storage.maintenance.sources import NotAConversation, opened_source

OLD: dict[str, Any] = {
    "session_id": "abc-def",
    "messages": [
        {"role": "user", "content": "帮我查看CPU使用率", "timestamp": "2025-12-31T10:00:00"},
        {"role": "assistant", "content": "3%", "timestamp": "2025-12-31T10:00:01"},
    ],
    "created_at": "2025-12-31T10:00:00",
    "uploaded_files": [{"name": "a.txt"}],
}


async def exported(source: Source, session_id: str = "s1") -> bytes:
    return b"".join([piece async for piece in export_document(source, session_id)])


def at_rest(entries: list[Entry]) -> list[Entry]:
    """With an end behind which nothing goes on."""
    last = len(entries)
    end = ForkedEntry(seq=last + 1, id="end", timestamp=START, from_session_id="s0", at_seq=last)
    return [*entries, end] if entries else []


def memory() -> MemoryStore:
    return MemoryStore(ticking_clock())


async def take_in(
    path: Path, store: ConversationStore | None = None, **options: Any
) -> tuple[Imported, ConversationStore]:
    store = store or memory()
    return await import_file(store, path, files=None, new_id=lambda: "fresh", **options), store


# Our own


async def test_importing_our_own_file_keeps_every_entry_and_its_origin(tmp_path: Path) -> None:
    path, entries = tmp_path / "any-name.json", chat(400)
    path.write_bytes(file_bytes(entries, user="ada"))
    imported, store = await take_in(path)
    assert imported == Imported(session_id="s1", entries=len(entries))
    assert await all_entries(store) == entries
    assert await store.origin("s1") == Origin(user="ada", created_at=START)


async def test_import_takes_the_companion_files(tmp_path: Path) -> None:
    async with file_store(tmp_path / "one") as one:
        entries = with_long_result(attachment(b"bytes"), answer("t1", call=1))
        await put(one, entries, blobs=[LONG_RESULT])
    put_attachment(tmp_path / "one", "s1", b"bytes")
    async with file_store(tmp_path / "two") as two:
        files = two.directory.files
        imported = await import_file(two, the_file(tmp_path / "one"), files=files)
        blob = reference_to(LONG_RESULT)
        assert await two.blob("s1", blob.blob_id, 0, blob.size) == LONG_RESULT
    assert (tmp_path / "two" / "files" / "s1" / FILE_ID).read_bytes() == b"bytes"
    assert imported.missing == ()


async def test_import_reports_missing_companion_files(tmp_path: Path) -> None:
    path = tmp_path / "history" / "session_20260102_s1.json"
    path.parent.mkdir()
    path.write_bytes(file_bytes(with_long_result(attachment(b"bytes"))))
    put_attachment(tmp_path, "s1", b"other bytes")
    imported = await import_file(memory(), path, files=tmp_path / "files2")
    assert imported.missing == (reference_to(LONG_RESULT).blob_id, FILE_ID)
    assert not (tmp_path / "files2").exists()


async def test_an_id_that_is_taken_is_exchanged_and_the_other_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(file_bytes(chat(2)))
    store = memory()
    await put(store, chat(1))
    imported, _ = await take_in(path, store)
    assert (imported.session_id, imported.taken_id) == ("fresh", "s1")
    assert await all_entries(store) == chat(1)
    assert await all_entries(store, "fresh") == chat(2)


async def test_it_can_be_given_to_someone_else(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(file_bytes(chat(1)))
    _, store = await take_in(path, user="eve")
    assert await store.count("eve") == 1


async def test_a_torn_end_is_left_out_as_opening_would(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(file_bytes(chat(2))[:-150])
    _, store = await take_in(path)
    *entries, _ = await all_entries(store)
    assert entries == chat(2)[:3]


async def test_a_file_is_only_read(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(file_bytes(chat(2))[:-150])
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    await take_in(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert list(tmp_path.iterdir()) == [path]


# Another program's


@pytest.mark.parametrize("indent", [None, 2, "\t"])
async def test_a_document_of_another_program_comes_in_whatever_its_layout(
    tmp_path: Path, indent: int | str | None
) -> None:
    path = tmp_path / "session_20251231_abc-def.json"
    path.write_text(json.dumps(OLD, ensure_ascii=False, indent=indent))
    imported, store = await take_in(path)
    asked, answered = await all_entries(store, "abc-def")
    assert isinstance(asked, ModelInputEntry)
    assert isinstance(answered, ModelOutputEntry)
    assert (imported.session_id, asked.content, answered.content) == (
        "abc-def",
        "帮我查看CPU使用率",
        "3%",
    )
    assert answered.timestamp.isoformat() == "2025-12-31T10:00:01+00:00"
    assert (await store.origin("abc-def")).extra == {"uploaded_files": [{"name": "a.txt"}]}


@pytest.mark.parametrize(
    ("session_id", "name", "becomes"),
    [
        ("abc", "x.json", "abc"),
        (None, "session_20251231_by-name.json", "by-name"),
        (None, "x.json", "fresh"),
        ("../../etc/passwd", "x.json", "fresh"),
        ("", "x.json", "fresh"),
        ("half \ud800 a pair", "x.json", "fresh"),
    ],
)
async def test_it_is_called_what_it_can_be_called(
    tmp_path: Path, session_id: str | None, name: str, becomes: str
) -> None:
    document = {key: value for key, value in OLD.items() if key != "session_id"}
    document |= {"session_id": session_id} if session_id is not None else {}
    (tmp_path / name).write_text(json.dumps(document))
    imported, _ = await take_in(tmp_path / name)
    assert imported.session_id == becomes


async def test_what_json_can_not_carry_twice_is_replaced_as_when_it_is_opened(
    tmp_path: Path,
) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(
        b'{"messages":[{"role":"user","content":"half \\ud83d","metadata":{"n":NaN,"big":'
        + str(2**64).encode()
        + b"}}]}"
    )
    _, store = await take_in(path)
    asked, _ = await all_entries(store, "fresh")
    assert isinstance(asked, ModelInputEntry)
    assert asked.content == "half \ufffd"
    assert asked.metadata == {"n": None, "big": str(2**64)}


# What can't be taken in


def _nest(depth: int) -> bytes:
    deep = b"[" * depth + b"]" * depth
    return b'{"messages":[{"role":"user","content":"x","metadata":{"deep":%b}}]}' % deep


GOOD = file_bytes(chat(3))


def _forged(content: bytes) -> bytes:
    """A file whose first line is no JSON, under a checksum that fits."""
    header, first, *rest = GOOD.splitlines(keepends=True)
    body = first.partition(b',"crc"')[0].replace(b"word 0", content)
    return b"".join([header, body + crc_suffix(body) + b"\n", *rest])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "empty"),
        (b"noise", "no JSON document"),
        (b"\0" * 5000, "no JSON document"),
        (b"\xff\xfe{}", "UTF-16"),
        ('{"messages":["é"]}'.encode("latin-1"), "not UTF-8"),
        (b"[]", "no list of messages"),
        (b'{"messages":[{"role":"user"},7]}', "message 2 of 2 is no JSON object"),
        (b'{"messages":[{"mood":"fine"}]}', "message 1 of 1 has neither a role nor a content"),
        (_nest(150), "nested deeper"),
        (_nest(100_000), "nested too deeply"),
        (GOOD.replace(b"word 1", b"word 7"), "damaged|can't be read|more than one line"),
        (GOOD.replace(b'"s1"', b'"s2"', 1), "first line"),
        (GOOD.replace(b'"format":1', b'"format":2', 1), "first line"),
        (_forged(b"\xff"), "not valid UTF-8"),
        (_forged(b"\x01"), "JSON|control"),
        (b"".join(GOOD.splitlines(keepends=True)[::2]), "is where line|not in its place|damaged"),
    ],
)
async def test_a_file_that_can_not_be_read_is_refused_with_a_sentence_and_nothing_is_there(
    tmp_path: Path, data: bytes, sentence: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    async with file_store(tmp_path / "data") as store:
        with pytest.raises(StorageError, match=sentence):
            await take_in(path, store)
        assert [path.name for path in store.directory.history.iterdir()] == []
        assert await store.count("local") == 0


async def test_attachments_go_again_if_the_conversation_does_not_come_in(tmp_path: Path) -> None:
    async with file_store(tmp_path / "one") as one:
        await put(one, Pen().write_all([prompt("t1"), attachment(b"bytes")]))
    put_attachment(tmp_path / "one", "s1", b"bytes")
    trouble = Trouble()
    two = await open_store(tmp_path / "two", FileSettings(disk=WatchedDisk(Disk(), trouble)))
    trouble.lasting["rename"] = errno.ENOSPC
    with pytest.raises(StorageUnavailable):
        await import_file(two, the_file(tmp_path / "one"), files=two.directory.files)
    assert [path for path in two.directory.files.rglob("*") if path.is_file()] == []
    trouble.lasting.clear()
    imported = await import_file(two, the_file(tmp_path / "one"), files=two.directory.files)
    assert (imported.session_id, imported.missing) == ("s1", ())
    await two.close()


async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path in (tmp_path, tmp_path / "pipe", tmp_path / "socket", tmp_path / "nothing"):
            with pytest.raises(NotAConversation):
                await take_in(path)


async def test_a_huge_file_that_is_none_of_ours_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as huge:
        huge.truncate(1 << 40)
    with pytest.raises(NotAConversation, match="first line"):
        await take_in(path)


async def test_what_this_version_would_lose_is_refused(tmp_path: Path) -> None:
    line = b'{"seq":1,"id":"e1","kind":"clear","role":"system","content":"",'
    line += b'"timestamp":"2026-01-02T03:04:05.000006+00:00","tool_calls":[],"metadata":{}'
    line += b',"mood":"fine"'
    header, closing = file_bytes([]).splitlines(keepends=True)
    path = tmp_path / "later.json"
    path.write_bytes(header + line + crc_suffix(line) + b"\n" + closing)
    with pytest.raises(StorageError, match="does not know, and would lose"):
        await take_in(path)


# There and back


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@asynccontextmanager
async def all_stores(directory: Path, redis: RedisServer) -> AsyncIterator[list[ConversationStore]]:
    async with file_store(directory) as files:
        in_redis = await RedisStore.open_url(redis.url, clock=ticking_clock())
        yield [memory(), files, in_redis]
        await in_redis.close()


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def stores(
    portal: BlockingPortal, tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer
) -> Iterator[list[ConversationStore]]:
    directory = tmp_path_factory.mktemp("files")
    with portal.wrap_async_context_manager(all_stores(directory, redis_server)) as stores:
        yield stores


def numbered(entries: list[Entry]) -> list[Entry]:
    """As a record could hold them: none names an entry that is not there before it."""
    kept: list[Entry] = []
    for entry in entries:
        next_one = replace(entry, seq=len(kept) + 1)
        if wrong_reference(next_one) is None:
            kept.append(next_one)
    return kept


_ids = count()


@settings(max_examples=20)
@given(
    entries=st.lists(entry_strategies.entries, max_size=8).map(numbered),
    extra=entry_strategies.json_objects,
)
def test_what_goes_from_store_to_store_as_a_document_stays_the_same_to_the_byte(
    portal: BlockingPortal,
    stores: list[ConversationStore],
    tmp_path_factory: pytest.TempPathFactory,
    entries: list[Entry],
    extra: dict[str, Any],
) -> None:
    session_id = f"s{next(_ids)}"
    path = tmp_path_factory.getbasetemp() / "document.json"

    async def go_round() -> None:
        origin = Origin(user="ada", created_at=START, extra=extra)
        await put(stores[0], at_rest(entries), session_id, origin=origin)
        document = await exported(stores[0], session_id)
        json.loads(document)
        for store in stores[1:]:
            path.write_bytes(document)
            await import_file(store, path, files=None)
            assert await exported(store, session_id) == document

    portal.call(go_round)


async def test_an_exported_document_holds_blobs_and_attachments_and_gives_them_back(
    tmp_path: Path,
) -> None:
    binary = bytes(range(256))
    more: list[Entry] = [attachment(binary), answer("t1", call=1)]
    async with file_store(tmp_path / "one") as one:
        await put(one, with_long_result(*more), blobs=[LONG_RESULT])
        put_attachment(tmp_path / "one", "s1", binary)
    path = tmp_path / "document.json"
    with opened_source(the_file(tmp_path / "one")) as source:
        document = export_document(source, "s1", read_attachment=source.attachment)
        path.write_bytes(b"".join([piece async for piece in document]))
    others = json.loads(path.read_bytes())["beside"]
    assert [next(iter(item)) for item in others] == ["blob", "file"]
    async with file_store(tmp_path / "two") as two:
        imported = await import_file(two, path, files=two.directory.files)
        assert imported.missing == ()
    assert the_file(tmp_path / "two").read_bytes() == the_file(tmp_path / "one").read_bytes()
    assert (tmp_path / "two" / "files" / "s1" / FILE_ID).read_bytes() == binary
    blob = the_file(tmp_path / "two").with_suffix(".blobs") / reference_to(LONG_RESULT).blob_id
    assert blob.read_bytes() == LONG_RESULT


@pytest.mark.parametrize("blob", [b"", b"\xff\xfe not text", b"\0", "\u2028 ünïcode 😀".encode()])
async def test_any_bytes_can_be_a_blob(tmp_path: Path, blob: bytes) -> None:
    store = memory()
    await put(store, with_long_result(answer("t1", call=1), data=blob), blobs=[blob])
    path = tmp_path / "document.json"
    path.write_bytes(await exported(store))
    _, again = await take_in(path)
    assert await exported(again) == path.read_bytes()


async def test_a_document_that_breaks_off_is_refused(tmp_path: Path) -> None:
    store = memory()
    await put(store, with_long_result(), blobs=[LONG_RESULT])
    document = await exported(store)
    path = tmp_path / "document.json"
    start = document.index(b'"beside"')
    for cut in range(start + len(b'"beside":[\n'), len(document), 5):
        path.write_bytes(document[:cut])
        with pytest.raises(StorageError):
            await take_in(path)


async def test_a_blob_that_was_changed_in_a_document_is_not_believed(tmp_path: Path) -> None:
    store = memory()
    await put(store, with_long_result(), blobs=[LONG_RESULT])
    path = tmp_path / "document.json"
    path.write_bytes((await exported(store)).replace(b"too long for", b"too l0ng for"))
    imported, _ = await take_in(path)
    assert imported.missing == (reference_to(LONG_RESULT).blob_id,)


async def test_export_reports_missing_blobs(tmp_path: Path) -> None:
    missing: list[str] = []
    store = memory()
    await put(store, with_long_result())
    async for _ in export_document(store, "s1", missing=missing):
        pass
    assert missing == [reference_to(LONG_RESULT).blob_id]


async def test_the_export_of_a_file_is_that_file(tmp_path: Path) -> None:
    async with file_store(tmp_path) as store:
        await put(store, Pen().write_all([prompt("t1"), answer("t1")]))
        assert await exported(store) == the_file(tmp_path).read_bytes()


MOMENTS = st.datetimes(timezones=st.none() | st.timezones(no_cache=True)) | st.sampled_from(
    [datetime(1, 1, 1), datetime(999, 6, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59)]
)
IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True) | st.text(max_size=80)


@given(moments=st.lists(MOMENTS, min_size=3, max_size=3), session_id=IDS)
def test_whatever_was_taken_in_is_found_again(
    tmp_path_factory: pytest.TempPathFactory, moments: list[datetime], session_id: str
) -> None:
    """With any time and any id that a document may carry, also after a restart."""
    folder = tmp_path_factory.mktemp("import")
    created_at, asked_at, answered_at = (moment.isoformat() for moment in moments)
    document = {
        "session_id": session_id,
        "created_at": created_at,
        "messages": [
            {"role": "user", "content": "hello", "timestamp": asked_at},
            {"role": "assistant", "content": "good day", "timestamp": answered_at},
        ],
    }
    path = folder / "document.json"
    path.write_text(json.dumps(document))

    async def take_in_and_look() -> None:
        store = await open_store(folder / "data")
        imported = await import_file(store, path, files=None)
        await store.close()
        store = await open_store(folder / "data")
        try:
            listed = await store.list("local", RowQuery(limit=10))
            assert [row.session_id for row in listed.rows] == [imported.session_id]
            opened = await store.open(imported.session_id)
            assert opened.history.head_seq == imported.entries == 2
        finally:
            await store.close()

    anyio.run(take_in_and_look)
