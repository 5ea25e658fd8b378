"""storage/FORMAT.md tells the truth: its examples are executed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.storage.conversations import counting_ids
from tests.storage.file_fakes import MemoryFiles
from tests.storage.json_stores import loaded

from nplt_storage import decode_line, encode_line
from nplt_storage.codec import KNOWN_KINDS
from nplt_storage.entries import UnknownEntry
from nplt_storage.files.conversation_file import JsonFile

TEXT = (Path(__file__).parents[2] / "storage" / "FORMAT.md").read_text()
LINES = re.findall(r"```json\n(.*?)\n```", TEXT)
FILES = re.findall(r"```json-file\n(.*?)```", TEXT, re.DOTALL)
PATH = Path("session_20260314_3f2b8c0e9d4a4f7fb1c6a5d2e8907b41.json")


@pytest.mark.parametrize("line", LINES, ids=lambda line: json.loads(line)["kind"])
def test_an_example_line_decodes_and_encodes_to_the_same_bytes(line: str) -> None:
    entry = decode_line(line.encode())
    assert encode_line(entry) == line.encode()
    assert isinstance(entry, UnknownEntry) == (entry.kind not in KNOWN_KINDS)


def test_every_kind_has_its_example_under_its_name() -> None:
    kinds = [json.loads(line)["kind"] for line in LINES]
    assert set(kinds) == KNOWN_KINDS | {"a_later_kind"}
    headings = re.findall(r"^### ([a-z_]+) \((user|assistant|system)\)$", TEXT, re.MULTILINE)
    assert {kind for kind, _ in headings} == KNOWN_KINDS
    for kind, role in headings:
        section = TEXT.split(f"### {kind} (")[1].split("\n### ")[0]
        (example,) = re.findall(r"```json\n(.*?)\n```", section)
        assert (json.loads(example)["kind"], json.loads(example)["role"]) == (kind, role)


@pytest.mark.parametrize("document", FILES, ids=["two entries", "none"])
def test_an_example_file_opens_as_it_is(document: str) -> None:
    data = document.encode()
    files = MemoryFiles()
    files.put(PATH, data)
    session_id = json.loads(document)["session_id"]
    _, entries = loaded(JsonFile(PATH, session_id, files=files, new_id=counting_ids()))
    assert files.contents == {PATH: data}, "a sound file is opened without a change"
    assert len(entries) == json.loads(document)["head_seq"]
