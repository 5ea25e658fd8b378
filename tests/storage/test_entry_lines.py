"""An entry and its line are the same thing, and a changed line is noticed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields, replace
from tests.storage.conversations import START, asking, call
from tests.storage.entry_strategies import entries

from nplt_storage import BadEntry, decode_line, encode_line, entry_as_json
from nplt_storage.codec import KNOWN_KINDS, BadLine, crc_suffix, peek_kind, peek_seq, verify_line
from nplt_storage.entries import (
    Entry,
    EpochEntry,
    LevelOfDetailSections,
    ModelInputEntry,
    ModelOutputEntry,
    RollbackEntry,
    SentContext,
    UnknownEntry,
)

_FIVE = ("role", "content", "timestamp", "tool_calls", "metadata")
_SIX = ("tool_name", "arguments", "result", "status", "duration", "timestamp")


def _stamped(content: str) -> ModelInputEntry:
    return ModelInputEntry(seq=1, id="e1", timestamp=START, turn_id="t1", content=content)


def _signed(source: dict[str, object]) -> bytes:
    body = orjson.dumps(source)[:-1]
    return body + crc_suffix(body)


@settings(max_examples=60)
@given(entries)
def test_an_entry_comes_back_from_its_line_unchanged(entry: Entry) -> None:
    assert decode_line(encode_line(entry)) == entry


@settings(max_examples=60)
@given(entries)
def test_a_line_comes_back_from_its_entry_byte_by_byte(entry: Entry) -> None:
    line = encode_line(entry)
    assert encode_line(decode_line(line)) == line


@settings(max_examples=60)
@given(entries)
def test_every_line_is_one_json_object_without_a_raw_newline(entry: Entry) -> None:
    line = encode_line(entry)
    assert b"\n" not in line
    assert line.startswith(b'{"seq":%d,"id":' % entry.seq)
    source = json.loads(line)
    assert list(source)[:3] == ["seq", "id", "kind"]
    assert list(source)[-1] == "crc"
    assert set(_FIVE) <= source.keys()
    for tool_call in source["tool_calls"]:
        assert set(_SIX) <= tool_call.keys()
        assert isinstance(tool_call["arguments"], dict)


@settings(max_examples=60)
@given(entries)
def test_what_is_sent_of_an_entry_is_its_line_without_the_checksum(entry: Entry) -> None:
    source = json.loads(encode_line(entry))
    del source["crc"]
    assert orjson.loads(orjson.dumps(entry_as_json(entry))) == source


@settings(max_examples=60)
@given(entries, st.data())
def test_a_line_with_any_flipped_bit_is_refused(entry: Entry, data: st.DataObject) -> None:
    line = bytearray(encode_line(entry))
    place = data.draw(st.integers(0, len(line) * 8 - 1))
    line[place // 8] ^= 1 << place % 8
    with pytest.raises(BadLine):
        decode_line(bytes(line))


@settings(max_examples=60)
@given(entries, st.data())
def test_a_line_cut_anywhere_is_refused(entry: Entry, data: st.DataObject) -> None:
    line = encode_line(entry)
    with pytest.raises(BadLine):
        verify_line(line[: data.draw(st.integers(0, len(line) - 1))])


def test_a_line_tells_its_number_before_the_rest_is_there() -> None:
    assert peek_seq(encode_line(_stamped("hello"))[:20]) == 1


def test_the_asking_line_says_that_its_calls_are_pending() -> None:
    entry = asking("t1", call())
    source = entry_as_json(entry)
    assert source["tool_calls"] == [
        {
            "tool_name": "look",
            "arguments": {},
            "result": "",
            "status": "pending",
            "duration": 0.0,
            "timestamp": "0001-01-01T00:00:00.000000+00:00",
            "tool_call_id": "c1",
            "raw_arguments": "{}",
        }
    ]


def test_times_are_written_in_utc_with_microseconds_and_offset() -> None:
    entry = _stamped("x")
    assert entry_as_json(entry)["timestamp"] == "2026-01-02T03:04:05.000006+00:00"


def test_a_nul_character_is_kept_wherever_it_stands() -> None:
    entry = replace(
        _stamped("a\x00b"),
        metadata={"a": "\x00"},
        options={"\x00": ["\x00"]},
        sections=LevelOfDetailSections(gist=(("\x00", "\x00"),)),
    )
    assert decode_line(encode_line(entry)) == entry


def test_ten_megabytes_of_text_are_kept() -> None:
    entry = _stamped("añ漢😀\n" * 2_000_000)
    assert decode_line(encode_line(entry)) == entry


def test_an_unstamped_entry_is_not_written() -> None:
    with pytest.raises(BadEntry, match="number, id and time"):
        encode_line(ModelInputEntry(content="x", turn_id="t1"))


@pytest.mark.parametrize("value", [float("nan"), (1, 2), "\ud800", 2**64, START])
def test_what_would_come_back_different_is_not_written(value: Any) -> None:
    entry = replace(_stamped("x"), options={"odd": value})
    with pytest.raises(BadEntry):
        encode_line(entry)


def test_a_line_of_an_unknown_kind_is_kept_whole() -> None:
    source: dict[str, object] = {
        "seq": 7,
        "id": "e7",
        "kind": "telepathy",
        "turn_id": "t1",
        "role": "system",
        "content": "…",
        "timestamp": "2030-01-01T00:00:00.000000+00:00",
        "tool_calls": [],
        "metadata": {"far": True},
        "strength": [1, 2.5, None],
    }
    line = _signed(source)
    entry = decode_line(line)
    assert isinstance(entry, UnknownEntry)
    assert (entry.seq, entry.kind, entry.turn_id) == (7, "telepathy", "t1")
    assert entry.timestamp == datetime(2030, 1, 1, tzinfo=UTC)
    assert entry.fields["strength"] == [1, 2.5, None]
    assert encode_line(entry) == line


def test_a_known_kind_in_an_unknown_shape_is_kept_whole() -> None:
    output = ModelOutputEntry(seq=2, id="e2", timestamp=START, turn_id="t1", content="x")
    source = entry_as_json(output) | {"state": "dreaming"}
    line = _signed({**source})
    entry = decode_line(line)
    assert isinstance(entry, UnknownEntry)
    assert entry.kind == "model_output"
    assert encode_line(entry) == line


def test_an_unknown_field_does_not_hide_the_others() -> None:
    line = _signed({**entry_as_json(_stamped("hello")), "mood": "fine"})
    assert decode_line(line) == _stamped("hello")


def test_every_kind_there_is_can_be_written_and_read() -> None:
    kinds = {kind.kind for kind in get_args(Entry) if kind is not UnknownEntry}
    assert kinds == KNOWN_KINDS


@pytest.mark.parametrize(
    ("entry", "added"),
    [
        (
            EpochEntry(reason="budget", summary_through=1, budget_tokens=9, screen="- milk"),
            {"summary_through", "budget_tokens", "screen"},
        ),
        (RollbackEntry(to_seq=1, compaction_seq=1), {"compaction_seq"}),
        (RollbackEntry(to_seq=1, widget_seqs=(("todo", 1),)), {"widget_seqs"}),
        (
            ModelOutputEntry(
                content="x", sent=SentContext(tokens=1, budget_tokens=2, tools_digest="d")
            ),
            {"sent"},
        ),
    ],
    ids=["epoch", "compaction", "widgets", "sent"],
)
def test_a_line_from_before_these_fields_reads_as_their_default(
    entry: Entry, added: set[str]
) -> None:
    stamped = replace(entry, seq=7, id="e", timestamp=START)
    source = {**entry_as_json(stamped)}
    assert added <= source.keys()
    older = decode_line(_signed({k: v for k, v in source.items() if k not in added}))
    defaults: dict[str, Any] = {
        field.name: field.default for field in fields(entry) if field.name in added
    }
    assert older == replace(stamped, **defaults)


def test_what_holds_its_default_is_left_out() -> None:
    keys_written = {"seq", "id", "kind", "turn_id", *_FIVE}
    assert entry_as_json(_stamped("x")).keys() == keys_written
    rollback = RollbackEntry(seq=2, id="e", timestamp=START, turn_id="t", to_seq=1)
    assert entry_as_json(rollback).keys() == keys_written | {"to_seq"}
    output = ModelOutputEntry(seq=2, id="e", timestamp=START, turn_id="t", content="x")
    assert entry_as_json(output).keys() == keys_written | {"call", "state"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"to_seq": 7},
        {"to_seq": -1},
        {"to_seq": 3, "widget_seqs": [["todo", 4]]},
        {"to_seq": 3, "widget_seqs": [["todo"]]},
        {"to_seq": 3, "widget_seqs": {"todo": 1}},
        {"to_seq": 3, "hidden": [[1]]},
        {"to_seq": 3, "hidden": [[3, 4]]},
        {"to_seq": 3, "hidden": [[True, 2]]},
    ],
)
def test_a_rollback_that_leads_nowhere_is_kept_but_not_followed(wrong: dict[str, Any]) -> None:
    rollback = RollbackEntry(seq=7, id="e", timestamp=START, to_seq=1)
    line = _signed({**entry_as_json(rollback), **wrong})
    entry = decode_line(line)
    assert isinstance(entry, UnknownEntry)
    assert encode_line(entry) == line


@pytest.mark.parametrize(
    "wrong",
    [
        {"summary_through": 7},
        {"omitted_through": 3, "gist_through": 2, "summary_through": 3},
        {"omitted_through": -1},
        {"screen": 5},
    ],
)
def test_an_epoch_that_makes_no_sense_is_kept_but_not_followed(wrong: dict[str, Any]) -> None:
    line = _signed(
        {**entry_as_json(EpochEntry(seq=7, id="e", timestamp=START, reason="x")), **wrong}
    )
    entry = decode_line(line)
    assert isinstance(entry, UnknownEntry)
    assert encode_line(entry) == line


@pytest.mark.parametrize("missing", ["seq", "id", "kind", "timestamp"])
def test_a_line_without_a_shared_field_is_refused(missing: str) -> None:
    source: dict[str, object] = {**entry_as_json(_stamped("hello"))}
    del source[missing]
    with pytest.raises(BadLine):
        decode_line(_signed(source))


@pytest.mark.parametrize(
    "content",
    [b"\xff", b"\xc3(", b"\x01", b'"', b'","x":' + b"[" * 5000],
    ids=["no UTF-8", "half a letter", "control", "quote", "brackets"],
)
def test_a_line_that_is_no_json_is_refused_though_its_checksum_fits(content: bytes) -> None:
    body = encode_line(_stamped("said")).partition(b',"crc"')[0].replace(b"said", content)
    with pytest.raises(BadLine):
        decode_line(body + crc_suffix(body))


def test_a_line_of_a_time_that_no_calendar_has_is_refused() -> None:
    source = json.loads(encode_line(_stamped("said")))
    source |= {"kind": "later", "timestamp": "0001-01-01T00:00:00+23:00"}
    source.pop("crc")
    with pytest.raises(BadLine):
        decode_line(_signed(source))


def test_a_kind_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadLine):
        peek_kind(b'{"seq":1,"id":"e1","kind":"a\x01"}')
