"""A client names conversations by ids of its own choice, and they are made when they are new."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt
from tests.conftest import Connect
from tests.support.raw_client import (
    ATTACH,
    CHAT_TEXT,
    CONTEXT_REQUEST,
    DETACH,
    ERROR,
    HISTORY_REQUEST,
    IMPORT,
    PROMPT,
    SESSION_DELETE,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_SWITCH,
    SESSION_UPDATE,
    TOOLS,
    TURN_FINISHED,
    USAGE,
    RawClient,
)
from tests.support.redis_server import RedisServer
from tests.support.server_process import ServerProcess, run_nplt_server

import nplt_client

Start = Callable[..., ServerProcess]


def listed(client: RawClient) -> list[str]:
    return [row["session_id"] for row in client.request(SESSION_LIST).json["sessions"]]


def contents_of(client: RawClient, session_id: str) -> list[str]:
    page = client.request(HISTORY_REQUEST, {"session_id": session_id, "roles": ["user"]}).json
    return [message["content"] for message in page["messages"]]


def prompt(client: RawClient, text: str, **fields: object) -> dict[str, str]:
    """Its receipt, or why it was refused."""
    return dict(client.request(PROMPT, {"text": text, **fields}).json)


# Making them


def test_a_prompt_with_create_creates_the_conversation_and_finds_it_again(
    client: RawClient,
) -> None:
    for text in ("one", "two"):
        receipt = prompt(client, text, session_id="user_123", create=True)
        assert receipt["session_id"] == "user_123"
    assert contents_of(client, "user_123") == ["one", "two"]
    assert listed(client) == ["user_123"]


def test_without_create_an_unknown_conversation_is_not_created(client: RawClient) -> None:
    assert prompt(client, "hello", session_id="user_123")["code"] == "not_found"
    assert prompt(client, "hello", session_id="user_123", create=False)["code"] == "not_found"
    assert client.request(ATTACH, {"session_id": "user_123"}).json["code"] == "not_found"
    assert listed(client) == []


@pytest.mark.parametrize("request_type", [ATTACH, SESSION_SWITCH])
def test_attach_with_create_lists_the_conversation_with_its_first_message(
    client: RawClient, request_type: int
) -> None:
    entered = client.request(request_type, {"session_id": "user_123", "create": True}).json
    assert (entered["session_id"], entered["head_seq"]) == ("user_123", 0)
    assert listed(client) == []
    client.ask("hello")
    assert listed(client) == ["user_123"]


def test_hello_attaches_to_the_conversation_it_names(connect: Connect) -> None:
    first = connect()
    assert first.hello({"session_id": "user_123"})["code"] == "not_found"
    assert first.hello({"session_id": "user_123", "create": True})["session_id"] == "user_123"
    first.ask("hello")
    second = connect()
    assert second.hello({"session_id": "user_123"})["session_id"] == "user_123"
    second.ask("again")
    assert contents_of(first, "user_123") == ["hello", "again"]


def test_a_client_that_names_no_session_id_gets_the_default_one(connect: Connect) -> None:
    client = connect()
    assert client.hello({"create": True})["session_id"] == "default"
    client.request(DETACH)
    assert prompt(client, "to nobody")["code"] == "not_found"
    assert prompt(client, "hello", create=True)["session_id"] == "default"


def test_a_text_that_is_no_valid_id_becomes_the_name_of_a_new_conversation(
    client: RawClient,
) -> None:
    made = prompt(client, "hello", session_id="my notes", create=True)["session_id"]
    assert prompt(client, "again", session_id="my notes", create=True)["session_id"] == made
    (row,) = client.request(SESSION_LIST).json["sessions"]
    assert (row["session_id"], row["name"]) == (made, "my notes")


@pytest.mark.parametrize("request_type", [ATTACH, SESSION_SWITCH])
def test_an_id_prefix_is_not_resolved_when_create_is_set(
    client: RawClient, request_type: int
) -> None:
    prompt(client, "hello", session_id="user_12", create=True)
    wanted = {"session_id": "user_1", "create": True}
    assert client.request(request_type, wanted).json["session_id"] == "user_1"


def test_create_does_not_take_the_id_of_a_conversation_in_the_trash(client: RawClient) -> None:
    kept = prompt(client, "why is the sky blue")["session_id"]
    client.request(SESSION_DELETE, {"session_id": kept})
    refused = prompt(client, "and why is the sunset red", session_id=kept, create=True)
    assert refused["code"] == "not_found"
    assert "in the trash" in refused["message"]
    client.request(SESSION_UPDATE, {"session_id": kept, "deleted": False})
    assert contents_of(client, kept) == ["why is the sky blue"]
    assert listed(client) == [kept]


def test_create_after_a_deletion_creates_an_empty_conversation(client: RawClient) -> None:
    prompt(client, "old", session_id="user_123", create=True)
    client.request(SESSION_DELETE, {"session_id": "user_123"})
    prompt(client, "new", session_id="user_123", create=True)
    assert contents_of(client, "user_123") == ["new"]
    client.request(SESSION_DELETE, {"session_id": "user_123"})
    client.request(SESSION_UPDATE, {"session_id": "user_123", "deleted": False})
    assert contents_of(client, "user_123") == ["new"]


@pytest.mark.parametrize("wanted", ["user_123", "my notes"])
def test_concurrent_clients_that_create_an_id_share_one_conversation(
    connect: Connect, client: RawClient, wanted: str
) -> None:
    makers = [connect() for _ in range(8)]
    for maker in makers:
        maker.hello()
    for place, maker in enumerate(makers):
        maker.send(PROMPT, 9, {"text": f"from {place}", "session_id": wanted, "create": True})
    receipts = [maker.reply_to(9).json for maker in makers]
    assert len({receipt["session_id"] for receipt in receipts}) == 1
    assert len(listed(client)) == 1
    assert sorted(contents_of(client, wanted)) == sorted(f"from {n}" for n in range(8))


# Names where ids are


def test_a_name_is_accepted_wherever_an_id_is(client: RawClient, connect: Connect) -> None:
    client.ask("hello")
    row = client.request(SESSION_UPDATE, {"name": "my notes"}).json
    other = connect()
    other.hello()
    named = {"session_id": "my notes"}
    for request in (HISTORY_REQUEST, CONTEXT_REQUEST, TOOLS, USAGE, ATTACH, SESSION_SWITCH):
        assert other.request(request, named).json["session_id"] == row["session_id"]
    assert prompt(other, "again", **named)["session_id"] == row["session_id"]
    other.event(TURN_FINISHED)
    assert other.request(SESSION_UPDATE, {**named, "pinned": True}).json["pinned"] is True
    assert other.request(SESSION_FORK, named).json["name"] == "my notes (fork)"
    deleted = other.request(SESSION_DELETE, named).json
    assert deleted["session_id"] == row["session_id"]


def test_an_ambiguous_name_is_refused_and_both_ids_are_listed(client: RawClient) -> None:
    made = [prompt(client, "x", session_id=name, create=True)["session_id"] for name in ("a", "b")]
    for session_id in made:
        client.request(SESSION_UPDATE, {"session_id": session_id, "name": "notes"})
    refused = client.request(SESSION_DELETE, {"session_id": "notes"}).json
    assert refused["code"] == "ambiguous"
    assert {each["session_id"] for each in refused["candidates"]} == {"a", "b"}


@pytest.mark.parametrize("wanted", ["../x", "-a", "a" * 65, "a\u0000b"])
def test_a_session_id_that_is_neither_an_id_nor_a_name_is_malformed(
    client: RawClient, wanted: str
) -> None:
    refusal = client.request(HISTORY_REQUEST, {"session_id": wanted})
    assert (refusal.type, refusal.json["code"]) == (ERROR, "malformed")


@pytest.mark.parametrize("wanted", ["../x", "my notes", "a/../b"])
def test_undelete_refuses_a_malformed_id(client: RawClient, wanted: str) -> None:
    refusal = client.request(SESSION_UPDATE, {"session_id": wanted, "deleted": False})
    assert (refusal.type, refusal.json["code"]) == (ERROR, "not_found")


# Plain clients and the settings


def test_plain_clients_begin_in_the_default_conversation_where_it_is_set(
    start_server: Start, connect: Connect
) -> None:
    server = start_server(sessions={"create": True, "default": "lobby"})
    for text in ("one", "two"):
        plain = connect(server)
        plain.greeting()
        plain.chat(text)
    plain.send(SESSION_SWITCH, 0, {"session_id": "user_123"})
    assert "user_123" in plain.receive().text
    plain.chat("three")
    plain.send(SESSION_SWITCH, 0, {"session_id": "user_12"})
    assert "(user_12)" in plain.receive().text
    client = connect(server)
    assert client.hello()["session_id"] != "lobby", "who says HELLO says where it begins"
    assert contents_of(client, "lobby") == ["one", "two"]
    assert contents_of(client, "user_123") == ["three"]
    assert prompt(client, "four", session_id="user_124")["session_id"] == "user_124"
    refused = prompt(client, "five", session_id="user_125", create=False)
    assert refused["code"] == "not_found"


def test_plain_clients_begin_in_a_fresh_conversation_without_the_create_setting(
    connect: Connect,
) -> None:
    plain = connect()
    plain.greeting()
    plain.send(SESSION_SWITCH, 0, {"session_id": "user_123"})
    assert plain.receive().text.startswith("Error: there is no conversation")
    assert plain.chat("hello")[-1].type == CHAT_TEXT


# Users

TOKENS = {"ada": "ada's token", "bob": "bob's token"}


USERS = [
    {"name": name, "token_sha256": hashlib.sha256(token.encode()).hexdigest()}
    for name, token in TOKENS.items()
]


@pytest.fixture
def shared(start_server: Start) -> ServerProcess:
    return start_server(users=USERS)


def test_each_user_has_a_namespace_of_ids_and_learns_nothing_of_others(
    shared: ServerProcess, connect: Connect
) -> None:
    ada, bob = connect(shared), connect(shared)
    for name, client in (("ada", ada), ("bob", bob)):
        client.hello({"token": TOKENS[name]})
    adas = prompt(ada, "a secret", session_id="user_123", create=True)["session_id"]
    unknown = client_refusal(bob, "user_999")
    assert client_refusal(bob, "user_123") == unknown.replace("user_999", "user_123")
    assert client_refusal(bob, adas) == unknown.replace("user_999", adas)
    bobs = [
        prompt(bob, "mine", session_id=name, create=True)["session_id"]
        for name in ("user_123", "user_999", adas)
    ]
    assert adas not in bobs
    assert len({len(bobs[0]), len(bobs[1])}) == 1, "a taken id looks like a free one"
    assert contents_of(bob, "user_123") == ["mine"]
    assert contents_of(ada, "user_123") == ["a secret"] == contents_of(ada, adas)


def client_refusal(client: RawClient, session_id: str) -> str:
    return json.dumps(client.request(HISTORY_REQUEST, {"session_id": session_id}).json)


def logged_in(server: ServerProcess, connect: Connect, name: str) -> RawClient:
    client = connect(server)
    client.hello({"token": TOKENS[name]})
    return client


def document_named(session_id: str) -> dict[str, object]:
    return {"session_id": session_id, "messages": [{"role": "user", "content": "squatted"}]}


def digest_without_key(wanted: str, user: str) -> str:
    """The stored id of earlier versions, which anybody could compute."""
    digest = hashlib.sha256(f"{user}\n{wanted}".encode()).hexdigest()
    return f"{wanted[:51]}-{digest[:12]}"


def test_the_stored_id_of_a_chosen_one_can_not_be_computed_by_others(
    shared: ServerProcess, connect: Connect
) -> None:
    ada = logged_in(shared, connect, "ada")
    made = prompt(ada, "dear diary", session_id="diary", create=True)["session_id"]
    stem, _, digest = made.rpartition("-")
    assert (stem, len(digest)) == ("diary", 16)
    assert not hashlib.sha256(b"ada\ndiary").hexdigest().startswith(digest)


def test_the_stored_id_of_a_chosen_one_differs_from_server_to_server(
    start_server: Start, connect: Connect
) -> None:
    made = [
        prompt(
            logged_in(start_server(users=USERS), connect, "ada"), "x", session_id="d", create=True
        )
        for _ in range(2)
    ]
    assert made[0]["session_id"] != made[1]["session_id"]


def test_a_fork_is_never_stored_under_the_name_it_is_given(
    shared: ServerProcess, connect: Connect
) -> None:
    ada, bob = (logged_in(shared, connect, name) for name in TOKENS)
    adas = prompt(ada, "dear diary", session_id="diary", create=True)["session_id"]
    prompt(bob, "mine", session_id="notes", create=True)
    for name in (adas, "letters"):
        fork = bob.request(SESSION_FORK, {"session_id": "notes", "name": name}).json
        assert (fork["name"], len(fork["session_id"])) == (name, 32)
        assert contents_of(bob, name) == ["mine"]
    assert contents_of(ada, "diary") == ["dear diary"]


def test_an_import_never_takes_the_id_another_user_is_going_to_choose(
    shared: ServerProcess, connect: Connect
) -> None:
    ada, bob = (logged_in(shared, connect, name) for name in TOKENS)
    for named in ("diary", digest_without_key("diary", "ada")):
        done = bob.request(IMPORT, {"document": document_named(named)}).json
        assert done["session_id"] != named
        assert contents_of(bob, named) == ["squatted"], "who brought it finds it by the id it had"
    begun = connect(shared)
    assert begun.hello({"token": TOKENS["ada"], "session_id": "diary", "create": True})["user"]
    begun.ask("dear diary")
    assert contents_of(ada, "diary") == ["dear diary"]


def test_an_import_does_not_reveal_whether_another_user_has_that_id(
    shared: ServerProcess, connect: Connect
) -> None:
    ada, bob = (logged_in(shared, connect, name) for name in TOKENS)
    adas = prompt(ada, "a secret", session_id="diary", create=True)["session_id"]
    free = adas[:-1] + ("0" if adas[-1] != "0" else "1")
    replies = [
        bob.request(IMPORT, {"document": document_named(each)}).json for each in (adas, free)
    ]
    for named, done in zip((adas, free), replies, strict=True):
        assert done["messages"] == 1
        assert done["session_id"].rpartition("-")[0] == named
    assert contents_of(ada, "diary") == ["a secret"]


def test_a_document_that_is_imported_twice_by_one_of_several_users_is_there_once(
    shared: ServerProcess, connect: Connect
) -> None:
    bob = logged_in(shared, connect, "bob")
    first, second = (
        bob.request(IMPORT, {"document": document_named("notes")}).json for _ in range(2)
    )
    assert first["session_id"] == second["session_id"]
    assert listed(bob) == [first["session_id"]]


def test_a_chosen_id_is_found_after_a_restart_and_brought_back_only_while_it_is_free(
    shared: ServerProcess, connect: Connect
) -> None:
    long_id = "a" * 63
    ada = logged_in(shared, connect, "ada")
    made = [
        prompt(ada, "before", session_id=wanted, create=True)["session_id"]
        for wanted in ("diary", long_id, long_id + "b")
    ]
    shared.terminate()
    shared.start()
    ada = logged_in(shared, connect, "ada")
    again = [
        prompt(ada, "after", session_id=wanted, create=True)["session_id"]
        for wanted in ("diary", long_id, long_id + "b")
    ]
    assert again == made
    ada.request(SESSION_DELETE, {"session_id": "diary"})
    assert prompt(ada, "new", session_id="diary", create=True)["session_id"]
    back = {"session_id": made[0], "deleted": False}
    ada.request(SESSION_UPDATE, back)
    assert contents_of(ada, "diary") == ["new"]
    ada.request(SESSION_DELETE, {"session_id": "diary"})
    assert client_refusal(ada, "diary").count("not_found") == 1


def test_a_conversation_under_the_digest_of_earlier_versions_is_found_by_its_owner(
    start_server: Start, connect: Connect, tmp_path: Path
) -> None:
    older = {wanted: digest_without_key(wanted, "ada") for wanted in ("diary", "d" * 64)}
    server = start_server(users=USERS)
    server.terminate()
    for session_id in older.values():
        document = tmp_path / f"{session_id}.json"
        document.write_text(json.dumps(document_named(session_id)))
        imports = ["import", str(document), "--user", "ada", "--data-dir", str(server.data_dir)]
        assert run_nplt_server(*imports).returncode == 0
    server.start()
    ada, bob = (logged_in(server, connect, name) for name in TOKENS)
    for wanted, session_id in older.items():
        assert prompt(ada, "more", session_id=wanted, create=True)["session_id"] == session_id
        assert "not_found" in client_refusal(bob, wanted)
        assert prompt(bob, "mine", session_id=wanted, create=True)["session_id"] != session_id


def test_the_longest_id_is_still_an_id_on_a_server_of_several_users(
    shared: ServerProcess, connect: Connect
) -> None:
    ada = connect(shared)
    ada.hello({"token": TOKENS["ada"]})
    made = [
        prompt(ada, "x", session_id="a" * 63 + last, create=True)["session_id"] for last in "bc"
    ]
    assert len(set(made)) == 2
    assert {len(each) for each in made} == {64}


# Every backend


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


@pytest.mark.slow
def test_create_uses_the_named_history_and_finds_it_after_a_restart(
    start_server: Start, redis: RedisServer, connect: Connect
) -> None:
    histories = [
        {"id": "main"},
        {"id": "short", "backend": {"type": "memory"}, "system_message": "Be brief."},
        {"id": "team", "backend": {"type": "redis", "url": redis.url}},
    ]
    server = start_server(histories=histories)
    client = connect(server)
    client.hello()
    for history in ("main", "short", "team"):
        receipt = prompt(client, "hello", session_id=f"in_{history}", create=True, history=history)
        assert receipt["session_id"] == f"in_{history}"
        again = prompt(client, "again", session_id=f"in_{history}", create=True)
        assert again["session_id"] == f"in_{history}"
        assert contents_of(client, f"in_{history}") == ["hello", "again"]
    refused = prompt(client, "x", session_id="elsewhere", create=True, history="nowhere")
    assert (refused["code"], refused["field"]) == ("not_found", "history")
    server.terminate()
    server.start()
    later = connect(server)
    later.hello()
    assert contents_of(later, "in_main") == contents_of(later, "in_team") == ["hello", "again"]
    assert client_refusal(later, "in_short") != ""
    assert "not_found" in client_refusal(later, "in_short")


# The library and the command


async def test_the_library_creates_the_session_it_is_given(server: ServerProcess) -> None:
    url = f"nplt://127.0.0.1:{server.port}"
    with pytest.raises(nplt_client.RequestRefused):
        async with nplt_client.connect(url, session="user_123"):
            pass
    async with nplt_client.connect(url, session="user_123", create=True) as client:
        assert client.session_id == "user_123"
        assert await client.ask_text("one") == "one"
        assert await client.ask_text("two", session_id="my notes", create=True) == "two"
        assert await client.ask_text("three", session_id="my notes") == "three"
        assert await client.ask_text("four", session_id="user_123") == "four"
        notes = await client.history(session_id="my notes", roles=("user",))
    assert [message["content"] for message in notes.messages] == ["two", "three"]


@pytest.mark.slow
async def test_a_created_conversation_without_messages_survives_a_restart(
    server: ServerProcess, tmp_path: Path
) -> None:
    """The server forgets ids under which nothing is stored; the client does not."""
    server.terminate()
    fixed = ServerProcess(tmp_path / "fixed").start()
    async with nplt_client.connect(
        f"nplt://127.0.0.1:{fixed.port}",
        session="user_123",
        create=True,
        reconnect=nplt_client.Patience(first_seconds=0.05),
    ) as client:
        port = fixed.port
        fixed.terminate()
        again = ServerProcess(tmp_path / "fixed", "--port", str(port)).start()
        try:
            assert await client.ask_text("hello") == "hello"
            assert client.session_id == "user_123"
        finally:
            again.kill()


def test_ask_with_create_creates_the_conversation(server: ServerProcess, tmp_path: Path) -> None:
    url = f"nplt://127.0.0.1:{server.port}"

    def ask(*arguments: str) -> tuple[int, str]:
        done = run_nplt("ask", "hello", "--json", *arguments, home=tmp_path, server=url)
        return done.returncode, str(json.loads(done.stdout)["session_id"])

    assert ask("-s", "user_123") == (2, "None")
    for _ in range(2):
        assert ask("-s", "user_123", "--create") == (0, "user_123")
    assert ask("-s", "user_123") == (0, "user_123")


@pytest.mark.slow
def test_commands_without_create_do_not_create_a_mistyped_conversation(
    start_server: Start, tmp_path: Path
) -> None:
    """Also where the settings make what is named: the commands say whether they mean it."""
    url = f"nplt://127.0.0.1:{start_server(sessions={'create': True}).port}"
    for command in (("history", "typo"), ("ask", "hello", "-s", "typo"), ("export", "typo")):
        assert run_nplt(*command, home=tmp_path, server=url).returncode == 2
    chat = run_nplt("chat", "--resume", "typo", home=tmp_path, server=url, stdin="hello\n")
    assert chat.returncode == 2
    assert json.loads(run_nplt("sessions", "--json", home=tmp_path, server=url).stdout) == []
