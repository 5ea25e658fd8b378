"""Renaming, pinning, archiving, forking, finding, importing: asked over real sockets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import Connect
from tests.support.raw_client import (
    ENTRY,
    ERROR,
    FILE_DATA,
    FILE_GET,
    FILE_METADATA,
    HISTORY_REQUEST,
    IMPORT,
    PROMPT,
    ROLLBACK,
    SEARCH,
    SESSION_DELETE,
    SESSION_EVENT,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_SWITCH,
    SESSION_UPDATE,
    RawClient,
)
from tests.support.server_process import ServerProcess

USERS = [
    {"name": name, "token_sha256": hashlib.sha256(name.encode()).hexdigest()}
    for name in ("ada", "bob")
]


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


@pytest.fixture
def client(connect: Connect) -> RawClient:
    raw = connect()
    raw.here = raw.hello()["session_id"]  # type: ignore[attr-defined]
    return raw


def here(client: RawClient) -> str:
    return str(client.here)  # type: ignore[attr-defined]


def contents(client: RawClient, session_id: str | None = None) -> list[str]:
    asked = {"session_id": session_id} if session_id else {}
    page = client.request(HISTORY_REQUEST, {"limit": 100, **asked}).json
    return [message["content"] for message in page["messages"]]


def upload(client: RawClient, data: bytes, **more: str) -> Any:
    client.next_seq += 1
    seq = client.next_seq
    client.send(FILE_METADATA, seq, {"filename": "a.txt", "size": len(data), **more})
    for start in range(0, len(data), 60_000):
        client.send(FILE_DATA, seq, data[start : start + 60_000])
    return client.reply_to(seq).json


# SESSION_UPDATE


def test_every_session_update_is_in_the_row_and_an_event_for_all(
    client: RawClient, connect: Connect
) -> None:
    client.ask("hello")
    other = connect()
    other.hello()
    other.request(SESSION_SWITCH, {"session_id": here(client)})
    asked = {"name": "  Ants ", "system": "Be brief.", "pinned": True, "archived": True}
    row = client.request(SESSION_UPDATE, asked).json
    assert (row["name"], row["pinned"], row["archived"]) == ("Ants", True, True)
    events = [other.event(SESSION_EVENT).json for _ in range(4)]
    assert [(event["event"], event[field]) for event, field in zip(events, asked, strict=True)] == [
        ("renamed", "Ants"),
        ("system", "Be brief."),
        ("pinned", True),
        ("archived", True),
    ]


def test_an_empty_system_instruction_is_accepted_before_the_first_prompt(client: RawClient) -> None:
    row = client.request(SESSION_UPDATE, {"system": ""}).json
    assert (row["session_id"], row["message_count"]) == (here(client), 0)


def test_an_archived_conversation_is_listed_among_the_archived_only(client: RawClient) -> None:
    client.ask("hello")
    client.request(SESSION_UPDATE, {"archived": True})

    def listed(**asked: bool) -> bool:
        rows = client.request(SESSION_LIST, {"limit": 200, **asked}).json["sessions"]
        return here(client) in {row["session_id"] for row in rows}

    assert not listed()
    assert listed(archived=True)
    client.request(SESSION_UPDATE, {"archived": False})
    assert listed()


def test_undelete_restores_a_conversation_unchanged(client: RawClient) -> None:
    client.ask("precious")
    gone = here(client)
    client.request(SESSION_DELETE, {"session_id": gone})
    assert client.request(HISTORY_REQUEST, {"session_id": gone}).json["code"] == "not_found"
    row = client.request(SESSION_UPDATE, {"session_id": gone, "deleted": False}).json
    assert (row["session_id"], row["message_count"], row["is_current"]) == (gone, 2, False)
    assert contents(client, gone) == ["precious", "precious"]
    again = client.request(SESSION_UPDATE, {"session_id": gone, "deleted": False})
    assert again.type == SESSION_UPDATE, "what is there already stays there"


def test_undelete_refuses_the_conversation_of_another_user(
    start_server: Callable[..., ServerProcess], connect: Connect
) -> None:
    server = start_server(users=USERS)
    ada, bob = connect(server), connect(server)
    gone = ada.hello({"token": "ada"})["session_id"]
    bob.hello({"token": "bob"})
    ada.ask("mine")
    file_id = upload(ada, b"my file")["file_id"]
    for asked in ({"file_id": file_id}, {"file_id": file_id, "session_id": gone}):
        assert bob.request(FILE_GET, asked).json["code"] == "not_found"
    assert bob.request(SEARCH, {"query": "mine"}).json["hits"] == []
    assert bob.request(SESSION_FORK, {"session_id": gone}).json["code"] == "not_found"
    ada.request(SESSION_DELETE, {"session_id": gone})
    asked = {"session_id": gone, "deleted": False}
    assert bob.request(SESSION_UPDATE, asked).json["code"] == "not_found"
    assert ada.request(SESSION_UPDATE, asked).json["session_id"] == gone
    assert ada.request(FILE_GET, {"file_id": file_id}).payload == b"my file"


# SESSION_FORK


def test_a_fork_copies_the_entries_up_to_its_seq_and_is_independent(client: RawClient) -> None:
    client.ask("one")
    client.ask("two")
    forked = client.request(SESSION_FORK, {"at_seq": 2}).json
    assert forked["name"] == "one (fork)"
    client.ask("three")
    assert contents(client, forked["session_id"]) == ["one", "one"]
    client.request(SESSION_SWITCH, {"session_id": forked["session_id"]})
    client.ask("other")
    assert contents(client) == ["one", "one", "other", "other"]
    assert contents(client, here(client))[-1] == "three"


def test_a_fork_inside_a_tool_step_accepts_prompts(client: RawClient) -> None:
    client.ask("!tool now {}")
    forked = client.request(SESSION_FORK, {"at_seq": 2, "name": "cut"}).json
    client.request(SESSION_SWITCH, {"session_id": "cut"})
    assert client.ask("go on") == "go on"
    assert contents(client, forked["session_id"])[-2:] == ["go on", "go on"]


def test_a_fork_has_its_own_attachments(client: RawClient) -> None:
    file_id = upload(client, b"for both")["file_id"]
    client.ask("with a file")
    forked = client.request(SESSION_FORK).json
    client.request(SESSION_DELETE, {"session_id": here(client)})
    asked = {"file_id": file_id, "session_id": forked["session_id"]}
    assert client.request(FILE_GET, asked).payload == b"for both"


def test_a_fork_of_an_empty_conversation_or_beyond_its_head_is_refused(client: RawClient) -> None:
    assert client.request(SESSION_FORK).json["code"] == "not_found"
    client.ask("one")
    for at_seq in (0, 3):
        refusal = client.request(SESSION_FORK, {"at_seq": at_seq}).json
        assert (refusal["code"], refusal["field"]) == ("not_found", "at_seq")


# SEARCH


def test_search_lists_names_before_content_and_its_pages_do_not_overlap(client: RawClient) -> None:
    word = f"w{uuid4().hex}"
    for number in range(3):
        client.ask(f"say {word} number {number}")
    client.request(SESSION_UPDATE, {"name": f"about {word}"})
    hits, cursor = [], None
    while True:
        asked = {"query": word, "limit": 2, **({"cursor": cursor} if cursor else {})}
        page = client.request(SEARCH, asked).json
        hits += page["hits"]
        if (cursor := page["next_cursor"]) is None:
            break
    assert [(hit["role"], hit["seq"]) for hit in hits] == [
        ("name", 0),
        *(("assistant", 6), ("user", 5), ("assistant", 4)),
        *(("user", 3), ("assistant", 2), ("user", 1)),
    ]
    assert {hit["session_id"] for hit in hits} == {here(client)}
    assert word in hits[1]["snippet"]


def test_search_does_not_find_rolled_back_entries(client: RawClient) -> None:
    word = f"w{uuid4().hex}"
    client.ask("before")
    client.ask(word)
    client.request(ROLLBACK, {"to_seq": 2})
    assert client.request(SEARCH, {"query": word}).json["hits"] == []


@pytest.mark.parametrize("cursor", ["?", "n!", "s!", "x"])
def test_a_made_up_search_cursor_is_refused(client: RawClient, cursor: str) -> None:
    refusal = client.request(SEARCH, {"query": "a", "cursor": cursor})
    assert (refusal.type, refusal.json["field"]) == (ERROR, "cursor")


# ROLLBACK, PROMPT replace_from


def test_a_rollback_can_undo_the_first_turn(client: RawClient) -> None:
    client.ask("oops")
    assert client.request(ROLLBACK, {"to_seq": 0}).json["head_seq"] == 3
    assert contents(client) == []
    assert client.ask("right") == "right"
    assert contents(client) == ["right", "right"]


def test_an_edited_prompt_replaces_the_original_and_its_turn(
    client: RawClient, connect: Connect
) -> None:
    client.ask("one")
    client.ask("two")
    other = connect()
    other.hello()
    other.request(SESSION_SWITCH, {"session_id": here(client)})
    asked = {"text": "zwei", "replace_from": 3, "message_id": "edit"}
    receipt = client.request(PROMPT, asked).json
    client.answer_of(receipt["turn_id"])
    assert contents(client) == ["one", "one", "zwei", "zwei"]
    events = [
        frame.json.get("event") or frame.json["entry"]["kind"]
        for frame in (other.event(ENTRY, SESSION_EVENT) for _ in range(4))
        if frame.json.get("event") != "presence"
    ]
    assert events[:3] == ["rollback", "rolled_back", "model_input"]
    again = client.request(PROMPT, asked).json
    assert (again["duplicate"], again["seq"]) == (True, receipt["seq"])
    assert contents(client) == ["one", "one", "zwei", "zwei"], "what is sent twice runs once"


def test_the_first_prompt_can_be_edited_too(client: RawClient) -> None:
    client.ask("frist")
    receipt = client.request(PROMPT, {"text": "first", "replace_from": 1}).json
    client.answer_of(receipt["turn_id"])
    assert contents(client) == ["first", "first"]


def test_a_prompt_edit_is_refused_during_a_running_turn_and_for_a_seq_without_a_prompt(
    client: RawClient,
) -> None:
    client.ask("one")
    running = client.request(PROMPT, {"text": "!slow 30"}).json
    refusal = client.request(PROMPT, {"text": "uno", "replace_from": 1}).json
    assert (refusal["code"], refusal["retryable"]) == ("busy", True)
    client.request(0x06, {"turn_id": running["turn_id"]})
    client.answer_of(running["turn_id"])
    refusal = client.request(PROMPT, {"text": "uno", "replace_from": 99}).json
    assert (refusal["code"], refusal["field"]) == ("not_found", "replace_from")
    client.request(ROLLBACK, {"to_seq": 0})
    refusal = client.request(PROMPT, {"text": "uno", "replace_from": 3}).json
    assert (refusal["code"], refusal["field"]) == ("conflict", "replace_from")


# IMPORT, FILE_GET

SEEDS_SHAPE = {
    "created_at": "2024-05-06T07:08:09",
    "messages": [
        {"role": "user", "content": "Moin", "timestamp": "2024-05-06T07:08:10"},
        {"role": "assistant", "content": "Moin moin", "timestamp": "2024-05-06T07:08:11"},
    ],
}


def test_an_imported_document_belongs_to_the_user_who_imports_it(client: RawClient) -> None:
    own_id = uuid4().hex
    done = client.request(IMPORT, {"document": {"session_id": own_id, **SEEDS_SHAPE}}).json
    assert done == {"session_id": own_id, "messages": 2}
    assert contents(client, own_id) == ["Moin", "Moin moin"]
    client.request(SESSION_SWITCH, {"session_id": own_id})
    assert client.ask("and on") == "and on"


def test_an_upload_to_be_imported_belongs_to_no_conversation(
    client: RawClient, server: ServerProcess
) -> None:
    client.ask("x" * 1_000)
    (path,) = (server.data_dir / "history").glob(f"*{here(client)}.json")
    stored = upload(client, path.read_bytes(), purpose="import")
    client.request(SESSION_DELETE, {"session_id": here(client)})
    done = client.request(IMPORT, {"file_id": stored["file_id"]}).json
    assert (done["session_id"], done["messages"]) == (here(client), 2)
    assert client.request(IMPORT, {"file_id": stored["file_id"]}).json["code"] == "not_found"
    assert not list((server.data_dir / "files").rglob(f"{stored['file_id']}*"))


@pytest.mark.parametrize(
    "document", [b"", b"{", b"[]", b'{"messages": 3}', b"\x00\xff", b'{"format":9,"messages":[\n']
)
def test_import_stores_nothing_of_a_document_that_is_no_conversation(
    client: RawClient, document: bytes
) -> None:
    count = len(client.request(SESSION_LIST, {"limit": 200}).json["sessions"])
    stored = upload(client, document, purpose="import")
    refusal = client.request(IMPORT, {"file_id": stored["file_id"]}).json
    assert (refusal["code"], refusal["field"]) == ("malformed", "file_id")
    assert len(client.request(SESSION_LIST, {"limit": 200}).json["sessions"]) == count


def test_refused_imports_free_their_upload_slots(client: RawClient) -> None:
    for _ in range(9):
        stored = upload(client, b"{}", purpose="import")
        refusal = client.request(IMPORT, {"file_id": stored["file_id"]}).json
        assert refusal["code"] == "malformed"
    assert "file_id" in upload(client, b"an attachment")


def test_an_import_whose_id_is_taken_gets_another_id(client: RawClient) -> None:
    client.ask("mine")
    done = client.request(IMPORT, {"document": {"session_id": here(client), **SEEDS_SHAPE}}).json
    assert done["session_id"] != here(client)
    assert contents(client) == ["mine", "mine"]
    reserved = client.request(SESSION_SWITCH, {"session_id": done["session_id"]})
    assert json.loads(reserved.payload)["head_seq"] == 2


def test_file_get_reads_an_attachment_in_pieces(client: RawClient) -> None:
    data = bytes(range(256)) * 10
    file_id = upload(client, data)["file_id"]
    assert client.request(FILE_GET, {"file_id": file_id}).payload == data
    piece = client.request(FILE_GET, {"file_id": file_id, "offset": 250, "length": 10})
    assert (piece.type, piece.payload) == (FILE_GET, data[250:260])
    assert client.request(FILE_GET, {"file_id": file_id, "offset": 99_999}).payload == b""
    for wrong in ("0" * 32, "../../x", ""):
        refusal = client.request(FILE_GET, {"file_id": wrong}).json
        assert (refusal["code"], refusal["field"]) == ("not_found", "file_id")


def test_attachments_are_listed_with_their_message(client: RawClient) -> None:
    file_id = upload(client, b"hello")["file_id"]
    asked = {"text": "look", "attachments": [file_id]}
    client.answer_of(client.request(PROMPT, asked).json["turn_id"])
    (message, _) = client.request(HISTORY_REQUEST).json["messages"]
    assert message["attachments"] == [{"file_id": file_id, "filename": "a.txt", "size": 5}]
    edited = client.request(PROMPT, {**asked, "text": "again", "replace_from": message["seq"]}).json
    client.answer_of(edited["turn_id"])
    (message, _) = client.request(HISTORY_REQUEST).json["messages"]
    assert message["attachments"][0]["filename"] == "a.txt"
    refusal = client.request(PROMPT, {"text": "look", "attachments": ["0" * 32]}).json
    assert (refusal["code"], refusal["field"]) == ("not_found", "attachments")
