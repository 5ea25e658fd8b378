"""Files come in byte for byte, in both dialects, and stay inside the data directory."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from tests.conftest import Connect
from tests.support.raw_client import (
    CHAT_TEXT,
    ENTRY,
    ERROR,
    FILE_DATA,
    FILE_METADATA,
    HISTORY_REQUEST,
    PING,
    RawClient,
)
from tests.support.server_process import ServerProcess

BYTES = random.Random(7).randbytes(200_000)


def stored_files(server: ServerProcess) -> list[Path]:
    return [path for path in (server.data_dir / "files").rglob("*") if path.is_file()]


def announce(client: RawClient, seq: int, data: bytes, name: str = "notes.bin") -> None:
    client.send(FILE_METADATA, seq, {"filename": name, "size": len(data)})


@pytest.mark.parametrize("data", [b"", b"x", BYTES], ids=["empty", "one byte", "200 kB"])
def test_a_structured_upload_is_stored_byte_for_byte(
    connect: Connect, server: ServerProcess, data: bytes
) -> None:
    client = connect()
    client.hello()
    announce(client, 9, data)
    for start in range(0, len(data), 30_000):
        client.send(FILE_DATA, 9, data[start : start + 30_000])
    reply = client.reply_to(9)
    assert reply.type == FILE_METADATA
    assert reply.json["size"] == len(data)
    assert reply.json["sha256"] == hashlib.sha256(data).hexdigest()
    assert [path.read_bytes() for path in stored_files(server)] == [data]
    entry = client.event(ENTRY).json["entry"]
    assert (entry["kind"], entry["filename"]) == ("attachment", "notes.bin")


def test_other_requests_get_replies_during_an_upload(connect: Connect) -> None:
    client = connect()
    client.hello()
    announce(client, 9, b"abcdef")
    client.send(FILE_DATA, 9, b"abc")
    assert client.request(PING, b"x").payload == b"x"
    client.send(FILE_DATA, 9, b"def")
    assert client.reply_to(9).json["size"] == 6


@pytest.mark.parametrize("data", [b"", b"x", BYTES[:20_000]], ids=["empty", "one byte", "20 kB"])
def test_a_plain_upload_in_small_frames_is_acknowledged_with_one_text(
    connect: Connect, server: ServerProcess, data: bytes
) -> None:
    client = connect()
    client.greeting()
    announce(client, 0, data)
    for start in range(0, len(data), 200):
        client.send(FILE_DATA, start % 65_536, data[start : start + 200])
    reply = client.receive()
    assert reply.type == CHAT_TEXT
    assert str(len(data)) in reply.text
    assert [path.read_bytes() for path in stored_files(server)] == [data]
    assert client.chat("next")[-1].payload == b""


def test_an_upload_longer_than_announced_is_refused(
    connect: Connect, server: ServerProcess
) -> None:
    client = connect()
    client.hello()
    announce(client, 9, b"abc")
    client.send(FILE_DATA, 9, b"abcdef")
    refusal = client.reply_to(9)
    assert (refusal.type, refusal.json["field"]) == (ERROR, "size")
    assert stored_files(server) == []


@pytest.mark.parametrize("name", ["", "..", "/", "a\nb", "n" * 300])
def test_a_bad_filename_is_refused_once_and_its_bytes_are_discarded(
    connect: Connect, server: ServerProcess, name: str
) -> None:
    client = connect()
    client.greeting()
    announce(client, 0, b"abcdef", name)
    for piece in (b"ab", b"cd", b"ef"):
        client.send(FILE_DATA, 0, piece)
    assert "filename" in client.receive().text
    assert client.chat("next")[-1].payload == b""
    assert stored_files(server) == []


def test_a_path_as_a_filename_is_reduced_to_its_last_part(
    connect: Connect, server: ServerProcess
) -> None:
    client = connect()
    client.hello()
    announce(client, 9, b"abc", "../../../etc/passwd")
    client.send(FILE_DATA, 9, b"abc")
    client.reply_to(9)
    entries = client.request(HISTORY_REQUEST, {"view": "entries", "roles": ["system"]}).json
    assert [entry["filename"] for entry in entries["messages"]] == ["passwd"]
    assert len(stored_files(server)) == 1


def test_an_upload_that_is_too_large_is_refused_before_its_bytes_are_received(
    connect: Connect,
) -> None:
    client = connect()
    client.hello()
    client.send(FILE_METADATA, 9, {"filename": "huge", "size": 1 << 40})
    assert client.reply_to(9).json["code"] == "too_large"


def test_an_upload_cut_off_leaves_nothing_behind(connect: Connect, server: ServerProcess) -> None:
    client = connect()
    client.hello()
    announce(client, 9, b"abcdef")
    client.send(FILE_DATA, 9, b"abc")
    client.request(HISTORY_REQUEST)  # answered when the bytes are taken, unlike a PING
    client.sock.close()
    server.terminate()
    assert stored_files(server) == []
