"""What comes in as a document runs nothing and allows nothing by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.storage.care_samples import all_entries
from tests.storage.conversations import Pen, answer, asking, call, chat, file_bytes, prompt
from tests.storage.test_importing import at_rest, take_in

from nplt_storage.entries import ApprovalEntry, Entry, ForkedEntry

ALWAYS = ApprovalEntry(
    approval_id="a", tool_call_id="c", tool_name="look", state="allowed", remember=True
)
BILLED = replace(answer("t1"), usage={"input_tokens": 4, "output_tokens": 2})


@pytest.mark.parametrize(
    "left_open",
    [
        [prompt("t2")],
        [prompt("t2"), prompt("t3")],
        [prompt("t2"), asking("t2", call())],
        [ALWAYS],
    ],
    ids=["a prompt", "prompts", "calls", "a decision"],
)
async def test_what_was_open_in_a_document_is_ended(tmp_path: Path, left_open: list[Entry]) -> None:
    entries = Pen().write_all([prompt("t1"), BILLED, *left_open])
    path = tmp_path / "file.json"
    path.write_bytes(file_bytes(entries))
    imported, store = await take_in(path)
    *same, end = await all_entries(store)
    assert (same, imported.entries) == (entries, len(entries) + 1)
    assert isinstance(end, ForkedEntry)
    assert (end.from_session_id, end.at_seq) == ("s1", len(entries))
    opened = await store.open("s1")
    assert opened.history.unfinished_turns() == []
    assert opened.row.unfinished == ()
    assert opened.row.billed == (("", 1, 4, 2, 0),), "what was billed was billed"
    assert opened.row.updated_at == entries[-1].timestamp, "lists have it where it was"
    again, _ = await take_in(path, store)
    assert again.was_there


async def test_entries_that_start_nothing_are_imported_unchanged(tmp_path: Path) -> None:
    for entries in (chat(2), at_rest(Pen().write_all([prompt("t1"), ALWAYS])), []):
        path = tmp_path / "file.json"
        path.write_bytes(file_bytes(entries))
        _, store = await take_in(path)
        assert await all_entries(store) == entries
