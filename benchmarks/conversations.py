"""Conversations to measure with, written quickly: the lines are the storage's own.

The files hold, byte for byte, what the server would have written in as many
commits; only nobody waits for the disk after each of them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from nplt_storage.entries import Entry, ModelInputEntry, ModelOutputEntry
from nplt_storage.file_system import Disk
from nplt_storage.files.format import (
    Header,
    empty_tail,
    encode_header,
    file_name,
)
from nplt_storage.ids import new_entry_id

CONTENT_BYTES = 510
FIRST_DAY = datetime(2025, 1, 1, tzinfo=UTC)
_WORDS = "The quick brown fox jumps over the lazy dog, and the dog takes no notice. "


class CountingDisk(Disk):
    """Real files, and how many bytes were written to them."""

    def __init__(self) -> None:
        self.written_bytes = 0

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        written = super().write(descriptor, data, offset)
        self.written_bytes += written
        return written


def text_of(size: int) -> str:
    return (_WORDS * (size // len(_WORDS) + 1))[:size]


def message(seq: int, *, at: datetime = FIRST_DAY, content: str) -> Entry:
    """Prompts and answers by turns, beginning with a prompt."""
    turn_id = f"turn{(seq + 1) // 2:028x}"
    when = at + timedelta(seconds=seq)
    if seq % 2:
        return ModelInputEntry(
            seq=seq, id=new_entry_id(), timestamp=when, turn_id=turn_id, content=content
        )
    return ModelOutputEntry(
        seq=seq, id=new_entry_id(), timestamp=when, turn_id=turn_id, content=content
    )


def write_conversation(
    data_dir: Path,
    session_id: str,
    messages: int,
    *,
    at: datetime = FIRST_DAY,
    content_bytes: int = CONTENT_BYTES,
) -> Path:
    history = data_dir / "history"
    history.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = history / file_name(session_id, at)
    header = Header(session_id=session_id, created_at=at)
    first = encode_header(header)
    tail = empty_tail(at, len(first))
    content = text_of(content_bytes)
    with path.open("wb") as file:
        file.write(first)
        for seq in range(1, messages + 1):
            entry = message(seq, at=at, content=content)
            record, tail = tail.extended(entry)
            file.write(record)
        file.write(tail.closing_line)
    return path
