"""Tokens, users who don't see each other, and TLS on the whole port."""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt
from tests.conftest import Connect
from tests.support.certificates import make_certificate
from tests.support.raw_client import (
    ATTACH,
    ERROR,
    HELLO,
    HISTORY_REQUEST,
    PING,
    PROMPT,
    SESSION_DELETE,
    SESSION_FORK,
    SESSION_LIST,
    SESSION_SWITCH,
    SESSION_UPDATE,
    STATUS,
    Closed,
    RawClient,
)
from tests.support.server_process import ServerProcess, run_nplt_server

Start = Callable[..., ServerProcess]

TOKENS = {"ada": "ada's token", "bob": "bob's token"}
USERS = [
    {"name": name, "token_sha256": hashlib.sha256(token.encode()).hexdigest()}
    for name, token in TOKENS.items()
]


def test_a_token_authenticates_its_user(start_server: Start, connect: Connect) -> None:
    server = start_server(users=USERS)
    client = connect(server)
    assert client.hello({"token": TOKENS["ada"]})["user"] == "ada"
    assert client.ask("hello") == "hello"


def test_a_wrong_token_is_refused_three_times_and_then_closed(
    start_server: Start, connect: Connect
) -> None:
    client = connect(start_server(users=USERS))
    assert client.hello()["code"] == "unauthorized"
    refusal = client.request(PROMPT, {"text": "let me in"})
    assert (refusal.type, refusal.json["code"]) == (ERROR, "unauthorized")
    assert client.hello({"token": "guess"})["code"] == "unauthorized"
    assert client.hello({"token": "another guess"})["code"] == "unauthorized"
    assert client.until_closed() == []


def test_the_client_explains_a_missing_token_and_a_wrong_token_differently(
    start_server: Start, tmp_path: Path
) -> None:
    server = f"nplt://127.0.0.1:{start_server(users=USERS).port}"
    without = run_nplt("models", home=tmp_path, server=server)
    assert without.returncode == 4
    assert without.stderr == (
        "nplt: this server needs a token: set NPLT_TOKEN or NPLT_TOKEN_FILE\n"
    )
    wrong = run_nplt("models", home=tmp_path, server=server, environ={"NPLT_TOKEN": "guess"})
    assert wrong.returncode == 4
    assert "does not know the token it was given" in wrong.stderr


def test_a_right_token_after_a_wrong_one_is_accepted(start_server: Start, connect: Connect) -> None:
    client = connect(start_server(users=USERS))
    assert client.hello({"token": "wrong"})["code"] == "unauthorized"
    assert client.hello({"token": TOKENS["bob"]})["user"] == "bob"


def test_a_client_that_sends_no_hello_in_time_is_disconnected(
    start_server: Start, connect: Connect
) -> None:
    client = connect(start_server(users=USERS, limits={"hello_seconds_max": 0.2}))
    client.greeting()
    assert "HELLO" in client.until_closed()[0].text


def test_large_frames_are_refused_before_the_token(start_server: Start, connect: Connect) -> None:
    client = connect(start_server(users=USERS))
    client.greeting()
    client.send(HELLO, 1, b" " * 5_000)
    assert client.until_closed()
    allowed = connect(start_server(users=USERS))
    allowed.hello({"token": TOKENS["ada"]})
    assert allowed.ask("x" * 60_000) == "x" * 60_000


def test_another_users_conversation_gets_the_same_error_as_an_unknown_one(
    start_server: Start, connect: Connect
) -> None:
    server = start_server(users=USERS)
    ada, bob = connect(server), connect(server)
    ada.hello({"token": TOKENS["ada"]})
    bob.hello({"token": TOKENS["bob"]})
    ada.ask("my diary")
    session_id = ada.request(SESSION_LIST).json["sessions"][0]["session_id"]
    assert bob.request(SESSION_LIST).json["sessions"] == []
    for code in (ATTACH, SESSION_SWITCH, SESSION_FORK, SESSION_DELETE, HISTORY_REQUEST):
        theirs = bob.request(code, {"session_id": session_id}).json
        missing = bob.request(code, {"session_id": "f" * 32}).json
        assert theirs["code"] == missing["code"] == "not_found"
        assert theirs["message"].replace(session_id, "f" * 32) == missing["message"]
    refusal = bob.request(PROMPT, {"text": "x", "session_id": session_id}).json
    assert refusal["code"] == "not_found"
    assert ada.ask("still mine") == "still mine"


def test_the_trash_of_another_user_is_neither_listed_nor_undeleted(
    start_server: Start, connect: Connect
) -> None:
    server = start_server(users=USERS)
    ada, bob = connect(server), connect(server)
    session_id = ada.hello({"token": TOKENS["ada"]})["session_id"]
    ada.ask("words of mine")
    ada.request(SESSION_DELETE, {"session_id": session_id})
    bob.hello({"token": TOKENS["bob"]})
    assert bob.request(SESSION_LIST, {"trash": True}).json["sessions"] == []
    for wanted in ("words of mine", session_id, session_id[:8]):
        refused = bob.request(SESSION_UPDATE, {"session_id": wanted, "deleted": False})
        assert refused.json["code"] == "not_found"
    (row,) = ada.request(SESSION_LIST, {"trash": True}).json["sessions"]
    assert row["name"] == "words of mine"


def test_prompts_above_the_rate_limit_are_refused_with_retry_after(
    start_server: Start, connect: Connect
) -> None:
    client = connect(start_server(users=USERS, limits={"prompts_per_minute_max": 2}))
    client.hello({"token": TOKENS["ada"]})
    client.ask("one")
    client.ask("two")
    refusal = client.request(PROMPT, {"text": "three"}).json
    assert refusal["code"] == "rate_limited"
    assert 0 < refusal["retry_after"] <= 30
    assert client.request(PING, b"x").payload == b"x"


def test_the_token_command_prints_a_token_once_with_its_settings_line() -> None:
    made = run_nplt_server("token", "ada")
    assert made.returncode == 0
    token = made.stdout.strip()
    assert hashlib.sha256(token.encode()).hexdigest() in made.stderr
    assert "name: ada" in made.stderr


def test_the_token_command_refuses_a_name_that_settings_would_refuse() -> None:
    refused = run_nplt_server("token", "a b")
    assert (refused.returncode, refused.stdout) == (2, "")


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, str]:
    return make_certificate(tmp_path)


def tls_client(server: ServerProcess, certificate: dict[str, str]) -> RawClient:
    context = ssl.create_default_context(cafile=certificate["cert"])
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    client = RawClient.__new__(RawClient)
    client.__dict__.update(buffer=b"", parts=b"", pushed=[], next_seq=0, port=server.port)
    client.sock = context.wrap_socket(raw, server_hostname="localhost")
    return client


def test_silent_connections_to_a_tls_port_do_not_exhaust_the_connection_limit(
    start_server: Start, certificate: dict[str, str]
) -> None:
    limits = {"connections_max": 20, "hello_seconds_max": 60}
    server = start_server(users=USERS, listen={"tls": certificate}, limits=limits)
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    for _ in range(5):
        with tls_client(server, certificate) as client:
            assert client.hello({"token": TOKENS["ada"]})["user"] == "ada"
            assert client.ask("let in") == "let in"
        silent += [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for sock in silent:
        sock.close()


@pytest.mark.slow
def test_connections_with_a_wrong_token_do_not_exhaust_the_connection_limit(
    start_server: Start, connect: Connect
) -> None:
    server = start_server(users=USERS, limits={"connections_max": 4, "hello_seconds_max": 60})
    strangers = [connect(server) for _ in range(4)]
    for stranger in strangers:
        assert stranger.hello({"token": "guess"})["code"] == "unauthorized"
    for _ in range(3):
        client = connect(server)
        assert client.hello({"token": TOKENS["ada"]})["user"] == "ada"
        assert client.ask("let in") == "let in"
    refusals = [line for line in server.log.splitlines() if "refused 127.0.0.1" in line]
    assert len(refusals) == 1, "one line per address and minute"
    assert "its token is not known" in refusals[0]


def test_authenticated_connections_stay_when_the_server_is_full(
    start_server: Start, connect: Connect
) -> None:
    server = start_server(users=USERS, limits={"connections_max": 3})
    admitted = [connect(server) for _ in range(3)]
    for client in admitted:
        client.hello({"token": TOKENS["ada"]})
    assert "The server is full" in connect(server).receive().payload.decode()
    for client in admitted:
        assert client.ask("still here") == "still here"


def test_with_tls_the_whole_port_is_tls(
    start_server: Start, connect: Connect, certificate: dict[str, str]
) -> None:
    server = start_server(listen={"tls": certificate})
    context = ssl.create_default_context(cafile=certificate["cert"])
    with tls_client(server, certificate) as client:
        client.hello()
        assert client.ask("in private") == "in private"
    plain = connect(server)
    plain.send(HELLO, 1)
    with pytest.raises(Closed):
        plain.receive()
    # The one who spoke plainly disturbed nobody.
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    with context.wrap_socket(raw, server_hostname="localhost") as again:
        assert again.recv(1)


def test_an_insecure_listener_is_logged_as_a_warning(start_server: Start) -> None:
    server = start_server("--host", "0.0.0.0", "--insecure")
    assert "whoever reaches the port can read and write every conversation" in server.log


def test_status_shows_an_operator_all_users_and_others_only_themselves(
    start_server: Start, connect: Connect
) -> None:
    operator = {**USERS[0], "operator": True}
    server = start_server(users=[operator, USERS[1]])
    ada, bob, bob_again = connect(server), connect(server), connect(server)
    ada.hello({"token": TOKENS["ada"]})
    for client in (bob, bob_again):
        client.hello({"token": TOKENS["bob"]})
    ada.ask("hello")
    ada.ask("hello again")
    bob.ask("hello")
    of_all, of_bob = ada.request(STATUS).json, bob.request(STATUS).json
    assert of_all["connections"] == 3
    assert of_all["turns"]["finished"] == {"completed": 3}
    assert of_all["providers"]["offline"]["models"]
    assert of_bob["connections"] == 2
    assert (of_bob["turns"]["started"], of_bob["turns"]["finished"]) == (1, {"completed": 1})
    assert of_bob["providers"]["offline"] == {"breaker": "closed", "models": {}}


def test_a_token_file_that_others_can_read_is_refused(start_server: Start, tmp_path: Path) -> None:
    server = f"nplt://127.0.0.1:{start_server(users=USERS).port}"
    token = tmp_path / "token"
    token.write_text(TOKENS["ada"])
    token.chmod(0o640)
    environ = {"NPLT_TOKEN_FILE": str(token)}
    refused = run_nplt("models", home=tmp_path, server=server, environ=environ)
    assert refused.returncode == 3
    assert "can be read by others (mode 0640): chmod 600 it" in refused.stderr
    token.chmod(0o600)
    assert run_nplt("models", home=tmp_path, server=server, environ=environ).returncode == 0
