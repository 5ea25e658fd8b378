"""What users may keep on the disk, and what of it counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import Connect
from tests.end_to_end.test_users_and_tls import TOKENS, USERS
from tests.support.raw_client import (
    ERROR,
    FILE_DATA,
    FILE_METADATA,
    HISTORY_REQUEST,
    IMPORT,
    PROMPT,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_SWITCH,
    Frame,
    RawClient,
)
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow

Start = Callable[..., ServerProcess]


def upload(client: RawClient, size: int, *, send: int | None = None, seq: int = 9) -> None:
    client.send(FILE_METADATA, seq, {"filename": "f", "size": size})
    client.send(FILE_DATA, seq, b"x" * (size if send is None else send))


def stored(client: RawClient, size: int) -> Frame:
    upload(client, size)
    return client.reply_to(9)


def as_user(connect: Connect, server: ServerProcess, user: str = "ada") -> RawClient:
    client = connect(server)
    client.hello({"token": TOKENS[user]})
    return client


def test_an_upload_into_the_disk_reserve_is_refused(start_server: Start, connect: Connect) -> None:
    reserve = {"type": "json", "free_bytes_min": 10**18}
    client = connect(start_server(histories=[{"id": "main", "backend": reserve}]))
    client.hello()
    refusal = stored(client, 1_000)
    assert (refusal.type, refusal.json["code"]) == (ERROR, "read_only")
    assert "disk" in refusal.json["message"]


def test_the_file_quota_counts_only_the_users_own_files(
    start_server: Start, connect: Connect
) -> None:
    server = start_server(users=USERS, limits={"file_bytes_per_user_max": 50_000})
    ada, bob = as_user(connect, server), as_user(connect, server, "bob")
    assert stored(ada, 30_000).type == FILE_METADATA
    refusal = stored(ada, 30_000)
    assert (refusal.type, refusal.json["code"]) == (ERROR, "too_large")
    assert "30,000 of 50,000 bytes" in refusal.json["message"]
    assert stored(bob, 30_000).type == FILE_METADATA
    server.restart()
    assert stored(as_user(connect, server), 30_000).json["code"] == "too_large"


def test_the_quota_of_uploads_in_progress_spans_all_connections(
    start_server: Start, connect: Connect
) -> None:
    server = start_server(limits={"upload_bytes_per_user_max": 50_000})
    first, second = connect(server), connect(server)
    first.hello()
    second.hello()
    upload(first, 30_000, send=10)
    assert first.request(HISTORY_REQUEST).type == HISTORY_REQUEST  # the upload has begun
    assert stored(second, 30_000).json["code"] == "busy"
    assert stored(second, 60_000).json["code"] == "too_large"
    first.send(FILE_DATA, 9, b"x" * 29_990)
    assert first.reply_to(9).type == FILE_METADATA
    assert stored(second, 30_000).type == FILE_METADATA


def test_an_upload_that_times_out_is_dropped(start_server: Start, connect: Connect) -> None:
    server = start_server(limits={"upload_seconds_max": 0.1})
    client = connect(server)
    client.hello()
    upload(client, 30_000, send=10)
    late = client.reply_to(9)
    assert (late.type, late.json["code"]) == (ERROR, "unavailable")
    assert not [path for path in (server.data_dir / "files").rglob("*") if path.is_file()]


def test_the_conversation_quota_counts_forks_imports_and_prompts_and_allows_reading(
    start_server: Start, connect: Connect
) -> None:
    server = start_server(users=USERS, limits={"conversation_bytes_per_user_max": 20_000})
    ada = as_user(connect, server)
    ada.ask("x" * 100)
    assert ada.request(SESSION_FORK).type == SESSION_FORK
    ada.ask("x" * 5_000)  # a prompt and an answer
    server.restart()  # what was added up meanwhile is forgotten
    ada = as_user(connect, server)
    here = ada.request(SESSION_LIST, {"limit": 1}).json["sessions"][0]["session_id"]
    refusal = ada.request(SESSION_FORK, {"session_id": here})
    assert (refusal.type, refusal.json["code"]) == (ERROR, "too_large")
    document = {"messages": [{"role": "user", "content": "y" * 15_000}]}
    assert ada.request(IMPORT, {"document": document}).json["code"] == "too_large"
    ada.request(SESSION_SWITCH, {"session_id": here})
    ada.ask("z" * 5_000)
    server.restart()
    ada = as_user(connect, server)
    assert ada.request(PROMPT, {"text": "more"}).json["code"] == "too_large"
    bob = as_user(connect, server, "bob")
    assert bob.ask("hello") == "hello"
    page = ada.request(HISTORY_REQUEST, {"session_id": here})
    assert len(page.json["messages"]) == 6
