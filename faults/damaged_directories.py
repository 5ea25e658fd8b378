"""A corpus of damaged data directories: every kind of damage, at every place, in every part.

`python -m faults.damaged_directories DIR` makes all of them below DIR, to be looked at. Each
has three conversations: one that is harmed, with a blob, an attachment and the text of a running
answer; one beside it that nobody touches; and a deleted one. What is known of the files is what
FORMAT.md says. Gigabytes of zeros are holes: they take no room.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import anyio
from tests.storage.care_samples import (
    LONG_RESULT,
    attachment,
    put,
    put_attachment,
    with_long_result,
)
from tests.storage.conversations import answer, chat, prompt

from nplt_storage import JsonFileStore
from nplt_storage.entries import Entry

HARMED, UNHARMED, DELETED = "a" * 32, "b" * 32, "c" * 32
_GIB = 1024**3
_STRANGER = 65534
_SECTOR = 512
_BYTE_KINDS = ("bom", "bits", "zeroed", "junk", "gone", "zeros", "unfinished")
_THINGS = ("link", "linked folder", "dangling link", "pipe", "directory", "device", "stranger")
_PLACES = ("first", "middle", "last", "closing")
_PARTS = ("history", "blob", "live", "index", "trash")
_NEEDS_ROOT = ("device", "stranger")

Piece = bytes | int
"""Bytes, or so many zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    part: str
    kind: str
    place: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.part, self.kind, self.place)))

    @property
    def is_thing(self) -> bool:
        """Whether something else stands in the place of a file."""
        return self.kind in _THINGS

    @property
    def session_id(self) -> str:
        """The conversation that is harmed."""
        return DELETED if self.part == "trash" else HARMED


def all_cases() -> list[Case]:
    """Those that can be made by this user."""
    cases = [
        Case(part=part, kind=kind, place=place)
        for part, kind, place in product(_PARTS, _BYTE_KINDS, _PLACES)
        if place != "closing" or part in ("history", "trash")
    ]
    cases += [
        Case(part=part, kind=kind)
        for part, kind in product(_PARTS, _THINGS)
        if kind != "linked folder" or part in ("blob", "trash")
    ]
    return [case for case in cases if case.kind not in _NEEDS_ROOT or os.geteuid() == 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    data_dir: Path
    entries: dict[str, dict[int, bytes]]
    """Of each conversation: every entry's object as it is written, by number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    data_dir: Path
    outside: Path
    """What links lead to."""
    path: Path
    """What was harmed."""
    sound: dict[str, frozenset[int]]
    """Of each conversation: the entries whose checksum holds, and whose file is one of ours."""


def make_original(directory: Path) -> Original:
    data_dir = directory / "original"
    anyio.run(_furnish, data_dir)
    put_attachment(data_dir, HARMED, b"bytes").chmod(0o600)
    path = _file_in(data_dir / "history", HARMED)
    path.with_name(f"{path.name}.live").write_bytes(_journal())
    entries = {
        session_id: dict(_objects(path.read_bytes()))
        for session_id, path in {
            HARMED: path,
            UNHARMED: _file_in(data_dir / "history", UNHARMED),
            DELETED: _file_in(next((data_dir / "trash").glob("2*")), DELETED),
        }.items()
    }
    return Original(data_dir=data_dir, entries=entries)


async def _furnish(data_dir: Path) -> None:
    store = await JsonFileStore.open_directory(data_dir, clock=lambda: datetime.now(UTC))
    more: list[Entry] = [attachment(b"bytes"), answer("t1", call=1)]
    for number in range(4):
        more += [prompt(f"q{number}"), answer(f"q{number}")]
    await put(store, with_long_result(*more), HARMED, blobs=[LONG_RESULT])
    await put(store, chat(5), UNHARMED)
    await put(store, chat(5), DELETED)
    await store.delete(DELETED)
    await store.close()


def _journal() -> bytes:
    """What an answer that still runs has said."""
    lines = b""
    for word in ("What ", "it ", "says"):
        body = b'{"turn_id":"q9","call":0,"kind":"text","text":"%b"' % word.encode()
        lines += body + b',"crc":"%08x"}\n' % zlib.crc32(body)
    return lines


def _file_in(folder: Path, session_id: str) -> Path:
    (path,) = folder.glob(f"session_*_{session_id}.json")
    return path


def _objects(data: bytes) -> Iterator[tuple[int, bytes]]:
    for line in data.splitlines()[1:-1]:
        found = line.removeprefix(b",")
        yield int(found[len(b'{"seq":') : found.index(b",")]), found


def make(case: Case, original: Original, directory: Path) -> Damaged:
    """Copies the original below `directory`, and harms the copy."""
    data_dir, outside = directory / "data", directory / "outside"
    shutil.copytree(original.data_dir, data_dir)
    outside.mkdir()
    (outside / "theirs").write_bytes(b"of somebody else")
    path = _path_of(case.part, data_dir)
    data = path.read_bytes()
    sound = {session_id: frozenset(entries) for session_id, entries in original.entries.items()}
    if case.is_thing:
        harmed = _replace(case, path, outside)
        if case.part in ("history", "trash"):
            sound[case.session_id] = frozenset()
        return Damaged(data_dir=data_dir, outside=outside, path=harmed, sound=sound)
    pieces = _harm(case, _lines_of(case.part, data))
    _write(path, pieces)
    if case.part in ("history", "trash"):
        whole = b"\n\n".join(piece for piece in pieces if isinstance(piece, bytes))
        entries = original.entries[case.session_id]
        sound[case.session_id] = frozenset(seq for seq, line in entries.items() if line in whole)
    return Damaged(data_dir=data_dir, outside=outside, path=path, sound=sound)


def _path_of(part: str, data_dir: Path) -> Path:
    file = _file_in(data_dir / "history", HARMED)
    match part:
        case "history":
            return file
        case "blob":
            (blob,) = file.with_suffix(".blobs").iterdir()
            return blob
        case "live":
            return file.with_name(f"{file.name}.live")
        case "index":
            return data_dir / "catalog.sqlite"
        case _:
            return _file_in(next((data_dir / "trash").glob("2*")), DELETED)


def _replace(case: Case, path: Path, outside: Path) -> Path:
    """Puts something else in its place; gives what is refused."""
    if case.kind == "stranger":
        os.chown(path, _STRANGER, -1)
        return path
    if case.kind == "linked folder":
        path = path.parent
    there = path.rename(outside / path.name)
    match case.kind:
        case "link" | "linked folder":
            path.symlink_to(there)
        case "dangling link":
            path.symlink_to(outside / "nowhere")
        case "pipe":
            os.mkfifo(path, 0o600)
        case "directory":
            path.mkdir(0o700)
        case _:
            os.mknod(path, 0o20600, os.makedev(1, 5))  # /dev/zero
    return path


def _lines_of(part: str, data: bytes) -> list[bytes]:
    if part in ("history", "trash", "live"):
        return data.splitlines(keepends=True)
    third = len(data) // 3
    return [data[:third], data[third : 2 * third], data[2 * third :]]


def _harm(case: Case, lines: Sequence[bytes]) -> list[Piece]:
    is_conversation = case.part in ("history", "trash")
    last = len(lines) - 1
    at = {"first": 0, "middle": last // 2, "last": last - is_conversation, "closing": last}
    place = at[case.place]
    before, line, after = b"".join(lines[:place]), lines[place], b"".join(lines[place + 1 :])
    return _KINDS[case.kind](before, line, after)


def _bits(before: bytes, line: bytes, after: bytes) -> list[Piece]:
    flipped = bytearray(line)
    for place in (len(line) // 3, 2 * len(line) // 3):
        flipped[place] ^= 0x11
    return [before + bytes(flipped) + after]


def _zeroed(before: bytes, line: bytes, after: bytes) -> list[Piece]:
    """The sector in which the line has its middle."""
    whole = before + line + after
    start = (len(before) + len(line) // 2) // _SECTOR * _SECTOR
    end = min(start + _SECTOR, len(whole))
    return [whole[:start] + bytes(end - start) + whole[end:]]


def _junk(before: bytes, line: bytes, after: bytes) -> list[Piece]:
    return [before + random.Random(len(line)).randbytes(300) + line + after]


_KINDS: dict[str, Callable[[bytes, bytes, bytes], list[Piece]]] = {
    "bom": lambda before, line, after: [before + b"\xef\xbb\xbf" + line + after],
    "bits": _bits,
    "zeroed": _zeroed,
    "junk": _junk,
    "gone": lambda before, line, after: [before + after],
    "zeros": lambda before, line, after: [before + line, _GIB, after],
    "unfinished": lambda before, line, after: [before + line + b',{"seq":', 2 * _GIB, after],
}


def _write(path: Path, pieces: Sequence[Piece]) -> None:
    with path.open("r+b") as file:
        file.truncate(0)
        for piece in pieces:
            if isinstance(piece, bytes):
                file.write(piece)
            else:
                file.seek(piece, os.SEEK_CUR)
        file.truncate(file.tell())


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True)
    original = make_original(directory)
    for case in all_cases():
        place = directory / str(case).replace(" ", "-")
        place.mkdir()
        made = make(case, original, place)
        print(made.path)


if __name__ == "__main__":
    main()
