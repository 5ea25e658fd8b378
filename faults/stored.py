"""What is stored after a fault, according to the server and to the files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from faults.clients import NotGranted, Talker
from faults.comparison import Acked, Found, FoundEntry, verdict
from faults.promises import Promises
from faults.serving import PATIENCE_SECONDS

Records: TypeAlias = dict[str, list[dict[str, Any]]]
"""Every entry of every conversation, as it is sent or written."""

_ANSWER_BYTES_MAX = 900_000


def judge(port: int, data_dir: Path, acked: Acked) -> list[str]:
    """All complaints about what the server sends and about the files."""
    on_the_wire, complaints = through_the_wire(port)
    in_the_files, unreadable = from_the_files(data_dir)
    return [
        *complaints,
        *unreadable,
        *(f"on the wire: {complaint}" for complaint in verdict(acked, on_the_wire)),
        *(f"in the files: {complaint}" for complaint in verdict(acked, in_the_files)),
    ]


def wait_for_lists(port: int, acked: Acked) -> None:
    """Waits until lists are complete: while a catalogue is rebuilt, lists show what is known so
    far."""
    given_up = time.monotonic() + PATIENCE_SECONDS
    with Talker(port, Promises()) as talker:
        while time.monotonic() < given_up:
            if acked.conversations <= {row["session_id"] for row in talker.rows()}:
                return
            time.sleep(0.1)


def through_the_wire(port: int) -> tuple[Found, list[str]]:
    records, complaints = records_on_the_wire(port)
    return _all_found(records), complaints


def records_on_the_wire(port: int) -> tuple[Records, list[str]]:
    records: Records = {}
    complaints: list[str] = []
    with Talker(port, Promises()) as talker:
        for row in talker.rows():
            session_id = row["session_id"]
            if row["damaged"]:
                complaints.append(f"unreadable: {session_id} is listed as damaged")
            try:
                records[session_id] = _entries(talker, session_id)
            except NotGranted as refusal:
                complaints.append(f"unreadable: {session_id}: {refusal}")
    return records, complaints


def _entries(talker: Talker, session_id: str) -> list[dict[str, Any]]:
    pages: list[list[dict[str, Any]]] = []
    query: dict[str, object] = {"view": "entries", "limit": 200, "max_bytes": _ANSWER_BYTES_MAX}
    while True:
        page = talker.page(session_id, **query)
        pages.append(page["messages"])
        if not page["page"]["has_more_before"]:
            break
        query["before"] = page["page"]["before"]
    return [entry for page in reversed(pages) for entry in page]


def from_the_files(data_dir: Path) -> tuple[Found, list[str]]:
    records, complaints = records_in_the_files(data_dir)
    return _all_found(records), complaints


def records_in_the_files(data_dir: Path) -> tuple[Records, list[str]]:
    records: Records = {}
    complaints: list[str] = []
    for path in conversation_files(data_dir):
        try:
            document = json.loads(settled_bytes(path))
        except ValueError as error:
            complaints.append(f"unreadable: {path.name} is not JSON: {error}")
            continue
        records[document["session_id"]] = document["messages"]
    return records, complaints


def conversation_files(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "history").glob("session_*.json"))


def settled_bytes(path: Path) -> bytes:
    """Reads until the file stays the same: a reader may see half an append, and only between two
    appends is the file promised to be a whole document."""
    data = path.read_bytes()
    while (again := path.read_bytes()) != data:
        data = again
    return data


def _all_found(records: Records) -> Found:
    return {session_id: as_found(entries) for session_id, entries in records.items()}


def as_found(entries: Iterable[dict[str, Any]]) -> list[FoundEntry]:
    return [
        FoundEntry(
            seq=entry["seq"],
            kind=entry["kind"],
            turn_id=entry.get("turn_id"),
            text=entry["content"],
            ends_turn=ends_turn(entry),
        )
        for entry in entries
    ]


def ends_turn(entry: dict[str, Any]) -> bool:
    if entry["kind"] == "fault":
        return entry.get("turn_id") is not None
    is_last_word = not entry["tool_calls"] or entry.get("state") != "completed"
    return entry["kind"] == "model_output" and is_last_word
