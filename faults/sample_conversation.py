"""A real conversation of 1,000 messages, and damaged copies of it.

The checks know of the file what FORMAT.md says: a header line with a checksum, a line for each
entry, a closing line. A copy gets an id of the same length, so that every byte keeps its place.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from tests.support.fork_server import ForkServer

from faults.clients import Talker
from faults.promises import Promises
from faults.serving import ForkedServer
from faults.stored import conversation_files

_TURNS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    session_id: str
    data: bytes
    ends: tuple[int, ...]
    """The offsets at which the header and each line end, without the closing line."""

    @property
    def last_line(self) -> int:
        return self.ends[-2]

    def whole_lines(self, size: int) -> int:
        """The number of lines that are whole in this many bytes; -1 if not even the header is."""
        return bisect_right(self.ends, size) - 1

    def copy(self, number: int) -> tuple[str, bytes]:
        session_id = f"{number:032x}"
        header, body = self.data.split(b"\n", 1)
        before, after = header.replace(self.session_id.encode(), session_id.encode()).split(
            b',"crc":"', 1
        )
        crc = f"{zlib.crc32(before):08x}".encode()
        return session_id, b'%b,"crc":"%b%b\n%b' % (before, crc, after[8:], body)


def make_sample(fork_server: ForkServer, directory: Path) -> Sample:
    data_dir = directory / "sample"
    with ForkedServer(fork_server, data_dir) as server:
        server.start()
        with Talker(server.port, Promises()) as talker:
            session_id = talker.create()
            for _ in range(_TURNS):
                talker.ask()
    (path,) = conversation_files(data_dir)
    data = path.read_bytes()
    assert len(json.loads(data)["messages"]) == 2 * _TURNS
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")][:-1]
    return Sample(session_id=session_id, data=data, ends=tuple(ends))


def place(data_dir: Path, session_id: str, data: bytes) -> Path:
    path = data_dir / "history" / f"session_20260101_{session_id}.json"
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def empty_data_dir(path: Path) -> Path:
    for directory in (path, path / "history"):
        directory.mkdir(mode=0o700, parents=True)
    return path
