"""One odd message in another program's document is no reason to refuse the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nplt_storage import encode_line
from nplt_storage.entries import DebugEntry, Entry, ModelInputEntry
from nplt_storage.files.foreign import read_foreign
from nplt_storage.files.format import Header
from nplt_storage.files.json_document import NotForeign


def read(document: dict[str, Any] | bytes, session_id: str = "s1") -> tuple[Header, list[Entry]]:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    header, entries = read_foreign(data, session_id, new_id=lambda: "x")
    for entry in entries:
        encode_line(entry)  # whatever it is, it can be kept
    return header, entries


def asked(**message: Any) -> ModelInputEntry:
    _, entries = read({"messages": [{"role": "user", **message}]})
    assert isinstance(entries[0], ModelInputEntry)
    return entries[0]


@pytest.mark.parametrize("message", [{}, {"content": None}])
def test_no_content_is_an_empty_one(message: dict[str, Any]) -> None:
    entry = asked(**message)
    assert (entry.content, entry.metadata) == ("", {})


def test_of_a_list_of_parts_the_text_is_joined_and_the_rest_kept() -> None:
    parts = [{"type": "text", "text": "look:"}, {"type": "image", "url": "x.png"}, "well?"]
    entry = asked(content=parts, metadata={"mood": "fine"})
    assert entry.content == "look:\nwell?"
    assert entry.metadata == {"mood": "fine", "imported_content": parts}


def test_a_content_that_is_something_else_is_shown_as_json() -> None:
    entry = asked(content=7)
    assert (entry.content, entry.metadata) == ("7", {"imported_content": 7})


def test_what_is_kept_is_cut_if_it_is_large() -> None:
    entry = asked(content=[{"image": "A" * 1_000_000}])
    kept = entry.metadata["imported_content"]
    assert isinstance(kept, str)
    assert kept.startswith('[{"image": "AAA')
    assert len(kept) < 20_000


@pytest.mark.parametrize(
    ("message", "metadata"),
    [
        ({"content": "x"}, {}),
        ({"content": "x", "role": 7}, {"imported_role": 7}),
        ({"content": "x", "role": ["user"]}, {"imported_role": ["user"]}),
    ],
)
def test_a_message_without_a_role_becomes_a_remark(
    message: dict[str, Any], metadata: object
) -> None:
    _, (entry,) = read({"messages": [message]})
    assert isinstance(entry, DebugEntry)
    assert (entry.category, entry.content, entry.metadata) == ("imported message", "x", metadata)


@pytest.mark.parametrize("timestamp", ["yesterday", 1735639200, "0001-01-01T00:00:00"])
def test_a_time_that_can_not_be_read_is_kept(timestamp: object) -> None:
    assert asked(content="x", timestamp=timestamp).metadata == {"imported_timestamp": timestamp}


def test_metadata_and_tool_calls_of_another_kind_are_kept() -> None:
    entry = asked(content="x", metadata="short", tool_calls={"name": "t"})
    assert entry.metadata == {
        "imported_metadata": "short",
        "imported_tool_calls": {"name": "t"},
    }


def test_a_number_of_thousands_of_digits_is_kept_as_text() -> None:
    digits = "-" + "7" * 10_000
    _, entries = read(b'{"messages":[{"role":"user","content":"x","n":%b}]}' % digits.encode())
    assert entries[0].metadata == {"n": digits}


@pytest.mark.parametrize(
    ("named", "session_id", "extra"),
    [
        (42, "42", {}),
        (None, "s1", {}),
        (["s1"], "s1", {"imported_session_id": ["s1"]}),
        ("../../etc", "../../etc", {"imported_session_id": "../../etc"}),
    ],
)
def test_an_id_that_is_none_is_kept_in_the_header(
    named: object, session_id: str, extra: dict[str, object]
) -> None:
    header, _ = read({"session_id": named, "messages": []}, session_id)
    assert header.extra == extra


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ('{"messages":[]}'.encode("utf-16"), "it is UTF-16: save it as UTF-8"),
        ('{"messages":["é"]}'.encode("latin-1"), "it is not UTF-8 (byte 14)"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"messages":[{"role":"user"},"x"]}', "message 2 of 2 is no JSON object"),
        (b'{"messages":[{}]}', "message 1 of 1 has neither a role nor a content"),
    ],
)
def test_an_unusable_message_is_reported_with_its_reason(data: bytes, sentence: str) -> None:
    with pytest.raises(NotForeign) as refusal:
        read(data)
    assert str(refusal.value) == sentence
