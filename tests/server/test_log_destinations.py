"""Where log lines go: stderr, a file that is rotated, or systemd's journal."""

from __future__ import annotations

import io
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.logging_state import restored_logging

from nplt_server.logs import JournalHandler, configure_logging, is_journal

log = logging.getLogger("nplt_server.some_room")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    with restored_logging():
        yield


def test_a_log_file_is_rotated_by_size_and_the_oldest_file_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    configure_logging("info", file=file, file_bytes_max=1_000, files_kept=2)

    for number in range(100):
        log.info("line %d", number)

    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["server.log", "server.log.1", "server.log.2"]
    assert all(path.stat().st_size <= 1_000 for path in tmp_path.iterdir())
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())
    newest = (tmp_path / "server.log.1").read_text() + file.read_text()
    assert newest.count("line 99") == 1


def test_output_of_the_process_follows_the_log_file_when_it_is_rotated(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    program = (
        "import logging, os, pathlib\n"
        "from nplt_server.logs import configure_logging\n"
        f"configure_logging('info', file=pathlib.Path({str(file)!r}), file_bytes_max=500,"
        " files_kept=1)\n"
        "for number in range(20): logging.getLogger('x').info('line %d', number)\n"
        "os.write(2, b'printed by a library\\n')\n"
    )
    with file.open("ab") as output:
        subprocess.run([sys.executable, "-c", program], check=True, stdout=output, stderr=output)

    assert file.read_text().endswith("printed by a library\n")


def test_a_log_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "server.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        configure_logging("info", file=tmp_path / "server.log", file_bytes_max=500, files_kept=1)


def test_the_journal_gets_message_priority_and_fields_of_a_line(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(path)
        handler = JournalHandler(path)
        record = logging.LogRecord("nplt.x", logging.WARNING, __file__, 1, "a\nb", (), None)
        record.fields = {"seq": 3, "why": "x=y"}
        handler.emit(record)
        handler.close()
        received = journal.recv(65_536)

    fields = dict(_fields_in(received))
    assert fields == {
        "MESSAGE": "a\nb",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "nplt-server",
        "NPLT_LOGGER": "nplt.x",
        "NPLT_SEQ": "3",
        "NPLT_WHY": "x=y",
    }


def _fields_in(datagram: bytes) -> Iterator[tuple[str, str]]:
    """Reads the binary form of each field: NAME, newline, 64 bits of length, value, newline."""
    reader = io.BytesIO(datagram)
    while name := reader.readline():
        size = int.from_bytes(reader.read(8), "little")
        yield name.decode().strip(), reader.read(size).decode()
        assert reader.read(1) == b"\n"


def test_stderr_is_the_journal_only_if_systemd_names_its_inode(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as stream:
        status = os.fstat(stream.fileno())
        ours = f"{status.st_dev}:{status.st_ino}"
        assert is_journal(stream, {"JOURNAL_STREAM": ours})
        assert not is_journal(stream, {"JOURNAL_STREAM": "1:2"})
        assert not is_journal(stream, {})
    assert not is_journal(io.StringIO(), {"JOURNAL_STREAM": ours})
