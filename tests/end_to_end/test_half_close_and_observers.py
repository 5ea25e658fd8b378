"""Clients that have said all they want, that only look on, and that come too late."""

from __future__ import annotations

import hashlib
import socket
from typing import Any

import pytest
from tests.conftest import Connect
from tests.support.raw_client import (
    ATTACH,
    CANCEL,
    ERROR,
    FILE_DATA,
    FILE_GET,
    FILE_METADATA,
    PROMPT,
    REDACT,
    SESSION_DELETE,
    SESSION_LIST,
    SESSION_UPDATE,
    RawClient,
)
from tests.support.server_process import ServerProcess


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


def upload(client: RawClient, data: bytes) -> Any:
    client.send(FILE_METADATA, 900, {"filename": "notes.txt", "size": len(data)})
    client.send(FILE_DATA, 900, data)
    return client.reply_to(900).json


def test_a_half_close_in_the_middle_of_an_upload_is_an_error_and_a_clean_close(
    connect: Connect,
) -> None:
    client = connect()
    client.hello()
    client.send(FILE_METADATA, 9, {"filename": "notes.txt", "size": 6})
    client.send(FILE_DATA, 9, b"abc")
    client.sock.shutdown(socket.SHUT_WR)
    (refusal,) = [frame for frame in client.until_closed() if frame.seq == 9]
    assert (refusal.type, refusal.json["field"]) == (ERROR, "size")


def test_the_bytes_of_an_upload_with_malformed_metadata_are_discarded(connect: Connect) -> None:
    client = connect()
    client.hello()
    client.send(FILE_METADATA, 9, {"filename": 5, "size": 3})
    client.send(FILE_DATA, 9, b"abc")
    client.request(SESSION_LIST)
    assert [(frame.type, frame.seq) for frame in client.pushed] == [(ERROR, 9)]


def test_an_observer_may_not_upload_cancel_or_delete(connect: Connect) -> None:
    here, observer = connect(), connect()
    session_id = here.hello()["session_id"]
    observer.hello()
    turn_id = here.request(PROMPT, {"text": "!slow 9"}).json["turn_id"]
    observer.request(ATTACH, {"session_id": session_id, "observer": True})
    assert upload(observer, b"abc")["code"] == "forbidden"
    assert observer.request(CANCEL, {"turn_id": turn_id}).json["code"] == "forbidden"
    assert observer.request(SESSION_DELETE, {"session_id": session_id}).json["code"] == "forbidden"
    assert here.request(CANCEL, {"turn_id": turn_id}).json == {"cancelled": True}


def test_an_upload_to_a_deleted_conversation_leaves_no_file(
    connect: Connect, server: ServerProcess
) -> None:
    client = connect()
    session_id = client.hello()["session_id"]
    client.ask("hello")
    upload(client, b"kept")
    client.send(FILE_METADATA, 9, {"filename": "late.txt", "size": 4})
    client.request(SESSION_DELETE, {"session_id": session_id})
    client.send(FILE_DATA, 9, b"late")
    assert client.reply_to(9).json["code"] == "not_found"
    client.request(SESSION_UPDATE, {"session_id": session_id, "deleted": False})
    files = (server.data_dir / "files" / session_id).iterdir()
    assert [path.read_bytes() for path in files] == [b"kept"]


def test_control_characters_in_a_conversation_name_become_spaces(connect: Connect) -> None:
    client, plain = connect(), connect()
    client.hello()
    client.ask("hello")
    row = client.request(SESSION_UPDATE, {"name": "a\x1b]0;pwn\x07\nb\x9b"}).json
    assert row["name"] == "a ]0;pwn  b"
    assert client.request(SESSION_UPDATE, {"name": "\x1b\x07"}).json["field"] == "name"
    plain.greeting()
    plain.send(SESSION_LIST, 0)
    assert "a ]0;pwn  b" in plain.receive().text


def test_file_get_beyond_the_end_of_a_file_is_empty(connect: Connect) -> None:
    client = connect()
    client.hello()
    stored = upload(client, b"abc")
    assert stored["sha256"] == hashlib.sha256(b"abc").hexdigest()
    far = client.request(FILE_GET, {"file_id": stored["file_id"], "offset": 1 << 62})
    assert (far.type, far.payload) == (FILE_GET, b"")


def test_a_prompt_can_not_attach_a_redacted_file(connect: Connect) -> None:
    client = connect()
    client.hello()
    file_id = upload(client, b"secret")["file_id"]
    client.request(REDACT, {"seq": 1})
    refused = client.request(PROMPT, {"text": "look", "attachments": [file_id]}).json
    assert (refused["code"], refused["field"]) == ("not_found", "attachments")
