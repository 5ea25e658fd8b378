"""What version 1 of the format wrote is written and read the same, byte by byte."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from tests.storage.golden_entries import AT, ELSEWHERE, ODD_OBJECT, ODD_TEXT, golden_entries

from nplt_storage import ConversationRow, decode_line, encode_line, entry_as_json
from nplt_storage.entries import Entry
from nplt_storage.files.format import (
    Closing,
    Header,
    decode_closing,
    decode_header,
    encode_closing,
    encode_header,
)
from nplt_storage.rows import new_row, row_as_bytes, row_from_bytes

GOLDEN = Path(__file__).parent / "golden"
LINES = (GOLDEN / "entry_lines.jsonl").read_bytes().split(b"\n")[:-1]
ROWS = (GOLDEN / "rows.jsonl").read_bytes().split(b"\n")[:-1]
FRAMES = (GOLDEN / "headers_and_closings.jsonl").read_bytes().splitlines(keepends=True)

HEADERS = (
    Header(session_id="s1", created_at=AT),
    Header(session_id="s1", created_at=ELSEWHERE, user=ODD_TEXT, extra=ODD_OBJECT),
)
CLOSINGS = (
    Closing(updated_at=AT, head_seq=0, message_count=0, epoch_offset=0),
    Closing(updated_at=AT, head_seq=10**18, message_count=5, epoch_offset=10**18),
)
GOLDEN_ROWS = (
    new_row("s1", user="ada", created_at=AT.replace(microsecond=0)),
    ConversationRow(
        session_id="s1",
        user=ODD_TEXT,
        name=ODD_TEXT,
        message_count=1,
        created_at=AT,
        updated_at=AT,
        last_accessed=AT,
        model="p/m",
        preview=ODD_TEXT,
        pinned=True,
        archived=True,
        damaged=True,
        head_seq=9,
        named=True,
        unfinished=(("t1", 2), ("t2", 3)),
        hidden=((1, 2), (4, 5)),
        system_seq=1,
        notebook_seq=2,
        compaction_seq=3,
        widget_seqs=(("todo", 4),),
        epoch_seq=5,
        billed=(("p/m", 1, 2, 3, 2**53 - 1),),
        first_seq=6,
    ),
)


@pytest.mark.parametrize(
    ("entry", "line"),
    [pytest.param(*pair, id=pair[0].kind) for pair in zip(golden_entries(), LINES, strict=True)],
)
def test_an_entry_has_the_line_it_always_had(entry: Entry, line: bytes) -> None:
    assert encode_line(entry) == line
    assert decode_line(line) == entry
    assert encode_line(decode_line(line)) == line
    source = orjson.loads(line)
    del source["crc"]
    assert orjson.loads(orjson.dumps(entry_as_json(entry))) == source


@pytest.mark.parametrize(("row", "data"), [*zip(GOLDEN_ROWS, ROWS, strict=True)])
def test_a_row_is_kept_as_it_always_was(row: ConversationRow, data: bytes) -> None:
    assert row_as_bytes(row) == data
    assert row_from_bytes(data) == row


def test_headers_and_closing_lines_are_as_they_always_were() -> None:
    assert [*map(encode_header, HEADERS), *map(encode_closing, CLOSINGS)] == FRAMES
    expected = [{name: v for name, v in ODD_OBJECT.items() if name != "crc"}]
    assert [decode_header(line).extra for line in FRAMES[1:2]] == expected
    assert decode_header(FRAMES[0]) == HEADERS[0]
    assert tuple(map(decode_closing, FRAMES[2:])) == CLOSINGS
