"""A pasted secret is erased for good: from every answer, and from every byte on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from uuid import uuid4

import pytest
from tests.conftest import Connect
from tests.support.raw_client import (
    ATTACH,
    CANCEL,
    COMPACT,
    CONTEXT_REQUEST,
    ENTRY,
    FILE_DATA,
    FILE_GET,
    FILE_METADATA,
    HISTORY_REQUEST,
    IMPORT,
    PROMPT,
    REDACT,
    ROLLBACK,
    SEARCH,
    SESSION_DELETE,
    SESSION_EVENT,
    SESSION_LIST,
    SESSION_SWITCH,
    SESSION_UPDATE,
    TURN_FINISHED,
    RawClient,
)
from tests.support.server_process import ServerProcess


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


def secret() -> str:
    return f"sk-{uuid4().hex}"


def places_on_disk(server: ServerProcess, text: str) -> list[str]:
    return [
        str(path.relative_to(server.data_dir))
        for path in server.data_dir.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


def everything_sent(client: RawClient, session_id: str) -> str:
    """All that can be asked about a conversation, as one text, by one who comes anew."""
    client.hello()
    asked = {"session_id": session_id}
    replies = [
        client.request(HISTORY_REQUEST, {**asked, "roles": ["user", "assistant", "system"]}),
        client.request(HISTORY_REQUEST, {**asked, "view": "entries"}),
        client.request(HISTORY_REQUEST, {**asked, "detail": "summary"}),
        client.request(HISTORY_REQUEST, {**asked, "detail": "gist"}),
        client.request(CONTEXT_REQUEST, asked),
        client.request(SESSION_LIST),
    ]
    attached = client.request(ATTACH, {**asked, "after_seq": 0}).json
    texts = [reply.text for reply in replies]
    due = 0 if attached.get("resync") else attached["head_seq"]
    while due:
        entry = client.event(ENTRY).json["entry"]
        texts.append(str(entry))
        due = 0 if entry["seq"] == due else due
    return "\n".join(texts)


def test_a_redacted_secret_is_in_no_file_index_or_reply(
    connect: Connect, server: ServerProcess
) -> None:
    client, key = connect(), secret()
    here = client.hello()["session_id"]
    client.ask(f"my key is {key}\n" + "a long prompt with a gist of its own. " * 200)
    client.ask("go on")
    client.request(ROLLBACK, {"to_seq": 2})  # it quotes the last words that stand
    client.ask("and on")
    assert places_on_disk(server, key)
    for seq in (1, 2):  # the prompt, and the echo of it
        assert client.request(REDACT, {"seq": seq}).json["seq"] == seq
    assert key not in everything_sent(connect(), here)
    assert client.request(SEARCH, {"query": key}).json["hits"] == []
    assert places_on_disk(server, key) == []
    assert client.ask("still here?") == "still here?"
    account = client.request(CONTEXT_REQUEST).json
    assert "[redacted]" in str(account["entries"])
    assert account["epoch"] > 0, "what was sent before can't be sent again"


def test_a_secret_in_a_name_or_an_attachment_is_redacted(
    connect: Connect, server: ServerProcess
) -> None:
    client, key = connect(), secret()
    here = client.hello()["session_id"]
    client.ask("hello")
    client.request(SESSION_UPDATE, {"name": f"key {key}"})
    data = f"password: {key}".encode()
    client.send(FILE_METADATA, 99, {"filename": f"{key}.txt", "size": len(data)})
    client.send(FILE_DATA, 99, data)
    file_id = client.reply_to(99).json["file_id"]
    for seq in (3, 4):
        assert client.request(REDACT, {"seq": seq}).json["seq"] == seq
    assert places_on_disk(server, key) == []
    assert client.request(FILE_GET, {"file_id": file_id}).json["code"] == "not_found"
    assert key not in everything_sent(connect(), here)


def test_a_secret_in_the_other_fields_of_an_imported_document_is_redacted_with_its_entry(
    connect: Connect, server: ServerProcess
) -> None:
    client, key = connect(), secret()
    client.hello()
    message = {"role": "user", "content": f"my key is {key}"}
    document = {"messages": [message], "name": f"talk of {key}", "topic": {"about": key}}
    imported = client.request(IMPORT, {"document": document}).json["session_id"]
    client.request(SESSION_SWITCH, {"session_id": imported})
    redacted = client.request(REDACT, {"seq": 1}).json
    assert [copy["kind"] for copy in redacted["copies"]] == ["renamed"]
    client.request(REDACT, {"seq": redacted["copies"][0]["seq"]})
    assert places_on_disk(server, key) == []
    assert key not in everything_sent(connect(), imported)


def test_a_secret_in_the_notebook_is_redacted_from_every_live_screen(
    connect: Connect, server: ServerProcess
) -> None:
    client, key = connect(), secret()
    here = client.hello()["session_id"]
    note = json.dumps({"action": "write", "text": f"the key is {key}"})
    client.ask(f"!tool notebook {note}")
    client.request(COMPACT)  # an epoch, which begins with a screen
    client.ask("go on")
    for seq in (1, 2, 3):  # the prompt, the call, the notebook; each begins another epoch
        assert client.request(REDACT, {"seq": seq}).json["seq"] == seq
    assert places_on_disk(server, key) == []
    assert key not in everything_sent(connect(), here)
    assert client.ask("still here?") == "still here?"


def test_a_redaction_is_an_event_for_every_attached_client(connect: Connect) -> None:
    client, other = connect(), connect()
    here = client.hello()["session_id"]
    other.hello()
    client.ask("oops")
    other.request(SESSION_SWITCH, {"session_id": here})
    asked = {"seq": 1, "session_id": here}
    stranger = connect()
    stranger.hello()
    assert stranger.request(REDACT, asked).json["seqs"] == [1]
    while (event := other.event(SESSION_EVENT).json)["event"] != "redacted":
        pass
    assert (event["seq"], event["seqs"]) == (1, [1])


def test_a_redaction_is_refused_as_busy_while_the_turn_runs(connect: Connect) -> None:
    client = connect()
    client.hello()
    running = client.request(PROMPT, {"text": "!slow 30 wait for me"}).json
    refusal = client.request(REDACT, {"seq": running["seq"]}).json
    assert (refusal["code"], refusal["retryable"]) == ("busy", True)
    client.request(CANCEL, {"turn_id": running["turn_id"]})
    client.answer_of(running["turn_id"])
    assert client.request(REDACT, {"seq": running["seq"]}).json["seq"] == running["seq"]


@pytest.mark.parametrize(
    ("asked", "code"), [({"seq": 99}, "not_found"), ({"seq": 3}, "malformed"), ({}, "malformed")]
)
def test_a_redaction_of_an_entry_without_content_is_refused(
    connect: Connect, asked: dict[str, int], code: str
) -> None:
    client = connect()
    client.hello()
    client.ask("hello")
    client.request(SESSION_UPDATE, {"pinned": True})
    refusal = client.request(REDACT, asked).json
    assert (refusal["code"], refusal["field"]) == (code, "seq")
    assert client.ask("goes on") == "goes on"


def test_the_ids_of_redacted_prompts_outlive_their_conversation_and_a_restart(
    connect: Connect, start_server: Callable[..., ServerProcess]
) -> None:
    server, key = start_server(), secret()
    client = connect(server)
    here = client.hello()["session_id"]
    for message_id in ("m-1", "m-2"):
        client.request(PROMPT, {"text": f"it is {key}", "message_id": message_id})
        client.event(TURN_FINISHED)
    reply = client.request(REDACT, {"seq": 1}).json
    assert reply["message_ids"] == ["m-1"]
    assert [(one["seq"], one["kind"]) for one in reply["copies"]] == [
        (2, "model_output"),
        (3, "model_input"),
        (4, "model_output"),
    ]
    assert "searched_all" not in reply, "only a search that stopped early is worth a word"
    assert [one["what"] for one in reply["remains"]] == ["backups", "exports"]
    client.request(SESSION_DELETE, {"session_id": here})
    server.kill()
    server.start()
    assert connect(server).hello({"features": ["redacted"]})["redacted"] == ["m-1"]
    assert "redacted" not in connect(server).hello()
    assert key not in (server.data_dir / "redacted.json").read_text()


def test_a_short_text_is_no_copy_of_a_longer_one_that_holds_it(connect: Connect) -> None:
    client = connect()
    client.hello()
    client.ask("yes")
    client.ask("yes and no")
    reply = client.request(REDACT, {"seq": 1}).json
    assert [one["seq"] for one in reply["copies"]] == [2]
