"""A damaged first line costs nothing but itself: every sound entry below it can be read and is
kept by a repair, and whose the conversation is comes from the index, or from nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.care_samples import all_entries, examined, file_store, planned, the_file
from tests.storage.conversations import START, chat, file_bytes, ticking_clock
from tests.storage.json_stores import row_of, rows

from nplt_storage import ConversationNotFound, FileSettings, JsonFileStore
from nplt_storage.files.format import decode_header
from nplt_storage.files.repair import repair_file
from nplt_storage.files.salvage import CannotRepair, KnownElsewhere
from nplt_storage.ids import new_entry_id
from nplt_storage.rows import UNKNOWN_USER
from nplt_storage.store import Origin

ENTRIES = chat(4)
WHOLE = file_bytes(ENTRIES)
FIRST, REST = WHOLE[: WHOLE.index(b"\n") + 1], WHOLE[WHOLE.index(b"\n") + 1 :]


def flipped(line: bytes, *places: int) -> bytes:
    damaged = bytearray(line)
    for place in places:
        damaged[place] ^= 0x11
    return bytes(damaged)


KINDS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "bom": lambda first, rest: b"\xef\xbb\xbf" + first + rest,
    "one bit": lambda first, rest: first[:20] + bytes([first[20] ^ 1]) + first[21:] + rest,
    "two bits": lambda first, rest: flipped(first, 5, 30) + rest,
    "bits of the id": lambda first, rest: flipped(first, 15, 16) + rest,
    "bits of the checksum": lambda first, rest: flipped(first, -18, -20) + rest,
    "bits of its end": lambda first, rest: flipped(first, -2, -3) + rest,
    "its newline and a bit": lambda first, rest: flipped(first, 3, -1) + rest,
    "zeroed": lambda first, rest: bytes(len(first) - 1) + b"\n" + rest,
    "zeroed with its newline": lambda first, rest: bytes(len(first)) + rest,
    "junk before it": lambda first, rest: b"junk\x00\xff before" + first + rest,
    "lines before it": lambda first, rest: b"<<<<<<< HEAD\n\n=======\n" + first + rest,
    "gone": lambda first, rest: rest,
    "gone but for its newline": lambda first, rest: b"\n" + rest,
    "cut": lambda first, rest: first[: len(first) // 2] + rest,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def damaged(kind: str, data: bytes = WHOLE) -> bytes:
    first = data.index(b"\n") + 1
    return KINDS[kind](data[:first], data[first:])


def put(data_dir: Path, data: bytes, session_id: str = "s1") -> Path:
    path = data_dir / "history" / f"session_20260102_{session_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)
    return path


async def open_for_users(data_dir: Path) -> JsonFileStore:
    """As a server does that has users."""
    settings = FileSettings(unknown_user=UNKNOWN_USER)
    return await JsonFileStore.open_directory(data_dir, clock=ticking_clock(), settings=settings)


@every_kind
async def test_every_entry_below_a_damaged_first_line_is_read_and_listed(
    tmp_path: Path, kind: str
) -> None:
    put(tmp_path, damaged(kind))
    put(tmp_path, file_bytes(chat(1), "s2"), "s2")
    async with file_store(tmp_path) as store:
        row = await row_of(store, "s1")
        messages = sum(entry.kind in ("model_input", "model_output") for entry in ENTRIES)
        assert (row.message_count, row.name) == (messages, "word 0")
        assert await all_entries(store, "s1") == ENTRIES
        assert await all_entries(store, "s2") == chat(1)


@every_kind
async def test_a_repair_while_the_server_runs_rewrites_the_first_line(
    tmp_path: Path, kind: str
) -> None:
    path = put(tmp_path, damaged(kind))
    async with file_store(tmp_path) as store:
        if (await row_of(store, "s1")).damaged:
            repaired = await store.repair("s1")
            assert (repaired.kept, repaired.lost) == (len(ENTRIES), ())
        opened = await store.open("s1")
        assert (opened.row.damaged, opened.row.user) == (False, "local")
        assert opened.history.head_seq == len(ENTRIES)
        await opened.record.close()
        assert await all_entries(store, "s1") == ENTRIES
    assert REST[: REST.rindex(b"]")] in path.read_bytes()


@every_kind
def test_the_lines_stay_as_they_are_byte_by_byte(kind: str) -> None:
    repair, repaired = planned(damaged(kind))
    assert (repair.kept, repair.lost) == (len(ENTRIES), ())
    header = decode_header(repaired[: repaired.index(b"\n") + 1])
    assert (header.session_id, header.user) == ("s1", "local")
    assert header.created_at.date() == START.date()
    assert repaired[repaired.index(b"\n") + 1 :].startswith(REST[: REST.rindex(b"]")])
    again, _ = planned(repaired)
    assert again.says == ()


@every_kind
def test_the_doctor_says_how_many_entries_can_be_read(kind: str) -> None:
    found = examined(damaged(kind))
    if found.findings[0].code in ("older_shape", "unchecked_header"):
        return  # it is taken in as it is
    (finding,) = found.findings
    assert finding.is_wrong
    assert f"{len(ENTRIES)} entries" in finding.message


@pytest.mark.parametrize("kind", ["two bits", "zeroed", "gone"])
async def test_whose_it_is_comes_from_the_index(tmp_path: Path, kind: str) -> None:
    path = put(tmp_path, file_bytes(ENTRIES, user="ada"))
    before = await open_for_users(tmp_path)
    known = await row_of(before, "s1")
    await before.close()
    path.write_bytes(damaged(kind, path.read_bytes()))
    store = await open_for_users(tmp_path)
    (row,) = await rows(store, "ada")
    assert (row.damaged, row.created_at) == (True, known.created_at)
    assert await all_entries(store, "s1") == ENTRIES
    await store.repair("s1")
    (row,) = await rows(store, "ada")
    assert not row.damaged
    assert await store.origin("s1") == Origin(user="ada", created_at=START)
    await store.close()


@pytest.mark.parametrize("kind", ["bom", "junk before it", "lines before it", "one bit"])
async def test_a_first_line_that_can_be_found_still_names_the_owner_without_an_index(
    tmp_path: Path, kind: str
) -> None:
    put(tmp_path, damaged(kind, file_bytes(ENTRIES, user="ada")))
    store = await open_for_users(tmp_path)
    (row,) = await rows(store, "ada")
    assert row.created_at == START
    assert await all_entries(store, "s1") == ENTRIES
    await store.delete("s1")
    assert [each.row.session_id for each in await store.trash("ada")] == ["s1"]
    await store.undelete("s1", user="ada")
    if row.damaged:  # a byte order mark alone is no damage
        await store.repair("s1")
    (row,) = await rows(store, "ada")
    assert not row.damaged
    assert await all_entries(store, "s1") == ENTRIES
    await store.close()


async def test_the_owner_comes_from_an_index_that_knows_fewer_entries(tmp_path: Path) -> None:
    path = put(tmp_path, file_bytes(chat(1), user="ada"))
    before = await open_for_users(tmp_path)
    await before.close()
    path.write_bytes(damaged("gone", file_bytes(ENTRIES, user="ada")))
    store = await open_for_users(tmp_path)
    (row,) = await rows(store, "ada")
    assert (row.damaged, row.created_at) == (True, START)
    await store.close()


@pytest.mark.parametrize("kind", ["two bits", "zeroed", "gone"])
async def test_a_conversation_without_a_known_owner_has_no_user_where_there_are_users(
    tmp_path: Path, kind: str
) -> None:
    path = put(tmp_path, damaged(kind, file_bytes(ENTRIES, user="ada")))
    store = await open_for_users(tmp_path)
    for user in ("local", "ada"):
        assert await rows(store, user) == []
    assert (await row_of(store, "s1")).user == UNKNOWN_USER
    await store.delete("s1")
    assert await store.trash("local") == []
    assert await store.is_trash_of_another("s1", "local")
    with pytest.raises(ConversationNotFound):
        await store.undelete("s1", user="local")
    await store.undelete("s1")
    await store.close()
    with pytest.raises(CannotRepair, match="its owner"):
        repair_file(path, "s1", clock=ticking_clock(), new_id=new_entry_id)
    owner = KnownElsewhere(user="ada")
    repair_file(path, "s1", clock=ticking_clock(), new_id=new_entry_id, known=owner)
    (tmp_path / "catalog.sqlite").unlink()
    store = await open_for_users(tmp_path)
    (row,) = await rows(store, "ada")
    assert not row.damaged
    assert await all_entries(store, "s1") == ENTRIES
    await store.close()


async def test_a_conversation_without_an_owner_is_the_local_users_once_there_are_no_users(
    tmp_path: Path,
) -> None:
    put(tmp_path, damaged("gone"))
    store = await open_for_users(tmp_path)
    await store.close()
    async with file_store(tmp_path) as local:
        (row,) = await rows(local)
        assert row.damaged


def test_what_holds_no_line_of_ours_is_not_made_one() -> None:
    for data in (b"junk\n" * 100, bytes(4096), b"{}", b"\n"):
        with pytest.raises(CannotRepair):
            planned(data)


def test_a_first_line_is_made_of_the_name_where_no_entry_tells_the_time(tmp_path: Path) -> None:
    lines = WHOLE.split(b"\n")
    path = put(tmp_path, b"\n".join([b"", b"x", *lines[2:]]))
    later = path.rename(path.with_name("session_20251231_s1.json"))
    owner = KnownElsewhere(user="local")
    repaired = repair_file(later, "s1", clock=ticking_clock(), new_id=new_entry_id, known=owner)
    assert repaired.lost == ((1, 1),)
    header = decode_header(later.read_bytes().split(b"\n")[0] + b"\n")
    assert f"{header.created_at:%Y%m%d}" == "20251231"
    assert the_file(tmp_path) == later
