"""Our own document, indented by another program, says what it said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.storage.care_samples import LONG_RESULT, put, with_long_result
from tests.storage.conversations import START, answer, chat, file_bytes, ticking_clock

from nplt_storage import MemoryStore, Origin, StorageError
from nplt_storage.files.reformatted import as_it_was_written, read_reformatted
from nplt_storage.maintenance.export import export_document
from nplt_storage.maintenance.importing import import_file


async def exported(store: MemoryStore) -> bytes:
    return b"".join([piece async for piece in export_document(store, "s1")])


def indented(document: bytes) -> bytes:
    return json.dumps(json.loads(document), indent=4).encode()


@pytest.mark.parametrize("turns", [0, 3])
def test_every_byte_comes_back(turns: int) -> None:
    document = file_bytes(chat(turns, content="wörd "), user="ada")
    assert as_it_was_written(read_reformatted(indented(document))) == document
    assert as_it_was_written(read_reformatted(document)) == document


async def test_an_indented_export_is_imported_with_its_other_members(tmp_path: Path) -> None:
    one, two = MemoryStore(ticking_clock()), MemoryStore(ticking_clock())
    origin = Origin(user="ada", created_at=START, extra={"mood": "fine"})
    entries = with_long_result(answer("t1", call=1))
    await put(one, entries, origin=origin, blobs=[LONG_RESULT])
    document = await exported(one)
    path = tmp_path / "document.json"
    path.write_bytes(indented(document))
    imported = await import_file(two, path, files=None)
    assert (imported.session_id, imported.missing) == ("s1", ())
    assert await exported(two) == document


async def test_other_members_may_be_in_one_line(tmp_path: Path) -> None:
    one, two = MemoryStore(ticking_clock()), MemoryStore(ticking_clock())
    await put(one, with_long_result(answer("t1", call=1)), blobs=[LONG_RESULT])
    document = await exported(one)
    lines, begin, items = document.partition(b'"beside":[\n')
    path = tmp_path / "document.json"
    path.write_bytes(lines + begin.rstrip() + items.replace(b"\n", b"") + b"\n")
    assert (await import_file(two, path, files=None)).missing == ()
    assert await exported(two) == document


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"word 1", b"word 7"),
        (b'"session_id": "s1"', b'"session_id": "s2"'),
        (b'"head_seq"', b'"head"'),
    ],
)
async def test_a_reformatted_document_with_changed_content_is_not_imported(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    data = indented(file_bytes(chat(3)))
    assert old in data
    path = tmp_path / "document.json"
    path.write_bytes(data.replace(old, new))
    with pytest.raises(StorageError, match=r"its layout was changed|first line is damaged"):
        await import_file(MemoryStore(ticking_clock()), path, files=None)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"messages":[]}', b'{"messages":[7]}'])
def test_what_is_none_of_ours_is_left_to_others(data: bytes) -> None:
    assert as_it_was_written(read_reformatted(data)) is None
