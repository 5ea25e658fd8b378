"""Other users of this machine: who may connect, and what the others are told.

Needs root, to be somebody else for a moment.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.client.nplt_process import run_nplt
from tests.conftest import Connect
from tests.support.raw_client import CHAT_TEXT, HELLO, SESSION_LIST
from tests.support.server_process import ServerProcess, run_nplt_server

Start = Callable[..., ServerProcess]

NOBODY = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")

# Modules are loaded before the user changes, who may not be able to read them.
CONNECT_AND_SEND = """
import json, os, socket, struct, sys, encodings.idna
user, place, kind, payload = json.loads(sys.argv[1])
os.setgroups([]), os.setgid(user), os.setuid(user)
family = socket.AF_INET
if isinstance(place, str):
    family = socket.AF_UNIX
elif ":" in place[0]:
    family = socket.AF_INET6
sock = socket.socket(family)
sock.settimeout(30)
try:
    sock.connect(place if isinstance(place, str) else tuple(place))
    body = payload.encode()
    sock.sendall(struct.pack(">BHH", kind, 0, len(body)) + body)
    sock.shutdown(socket.SHUT_WR)
except OSError as error:
    print(error.strerror)
try:
    while piece := sock.recv(65536):
        sys.stdout.buffer.write(piece)
except OSError:
    pass
"""


def shown_to(
    user: int, place: str | Sequence[object], *, kind: int = CHAT_TEXT, payload: str = "hello"
) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CONNECT_AND_SEND, json.dumps([user, place, kind, payload])],
        capture_output=True,
        timeout=60,
        check=True,
    )
    return done.stdout.decode(errors="replace")


@needs_root
def test_another_local_user_is_refused_with_the_owners_name_in_both_dialects(
    server: ServerProcess,
) -> None:
    place = ("127.0.0.1", server.port)
    for kind, payload in ((CHAT_TEXT, "hello"), (HELLO, '{"versions": [3]}')):
        shown = shown_to(NOBODY, place, kind=kind, payload=payload)
        assert "belongs to root, and you are nobody" in shown
        assert "listen.local_users" in shown
        assert shown.count("\n") <= 1
        assert "session_id" not in shown


@needs_root
def test_frames_of_a_refused_local_user_reach_no_conversation(
    server: ServerProcess, connect: Connect
) -> None:
    shown_to(NOBODY, ("127.0.0.1", server.port), payload="a foreign word")
    client = connect(server)
    client.hello()
    assert client.request(SESSION_LIST, {}).json["sessions"] == []
    assert client.ask("mine") == "mine"


@needs_root
def test_a_connection_closed_before_its_user_is_looked_up_is_refused(
    server: ServerProcess, connect: Connect
) -> None:
    """The kernel would say root of it."""
    program = CONNECT_AND_SEND.replace("sock.shutdown(socket.SHUT_WR)", "os._exit(0)")
    server.signal(signal.SIGSTOP)
    try:
        wanted = [NOBODY, ("127.0.0.1", server.port), CHAT_TEXT, "a foreign word"]
        subprocess.run([sys.executable, "-c", program, json.dumps(wanted)], timeout=60, check=True)
    finally:
        server.signal(signal.SIGCONT)
    client = connect(server)
    client.hello()
    assert client.ask("mine") == "mine"
    rows = client.request(SESSION_LIST, {}).json["sessions"]
    assert [row["preview"] for row in rows] == ["mine"]


@needs_root
def test_users_named_in_local_users_may_connect(start_server: Start) -> None:
    server = start_server(listen={"local_users": ["nobody"]})
    assert "hello" in shown_to(NOBODY, ("127.0.0.1", server.port))
    assert "you are daemon" in shown_to(1, ("127.0.0.1", server.port))


@needs_root
def test_local_users_any_admits_every_local_user(start_server: Start) -> None:
    server = start_server(listen={"local_users": "any"})
    assert "hello" in shown_to(NOBODY, ("127.0.0.1", server.port))


@needs_root
def test_with_tokens_the_token_decides_and_not_the_local_user(start_server: Start) -> None:
    users = [{"name": "ada", "token_sha256": hashlib.sha256(b"ada's token").hexdigest()}]
    server = start_server(users=users)
    hello = json.dumps({"versions": [3], "token": "ada's token"})
    assert '"user":"ada"' in shown_to(NOBODY, ("127.0.0.1", server.port), kind=HELLO, payload=hello)


@needs_root
def test_local_users_are_checked_over_ipv6_and_for_names_of_this_machine(
    start_server: Start,
) -> None:
    server = start_server("--host", "::1")
    assert "you are nobody" in shown_to(NOBODY, ("::1", server.port))
    assert "hello" in shown_to(0, ("::1", server.port))


@needs_root
def test_a_unix_socket_is_served_as_well_as_the_port(start_server: Start) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "nplt.sock"
        server = start_server(listen={"unix": str(path)})
        assert "hello" in shown_to(0, str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "Permission denied" in shown_to(NOBODY, str(path))
        path.chmod(0o666)
        assert "you are nobody" in shown_to(NOBODY, str(path))
        server.kill()
        server.start()
        assert "hello" in shown_to(0, str(path)), "what a killed server left is no hindrance"
        server.terminate()
        assert not path.exists(), "one that stops leaves nothing"


@pytest.mark.parametrize(
    ("value", "hello"),
    [
        ("[nobdy]", "listen.local_users: there is no user 'nobdy'"),
        ("nobdy", "listen.local_users: owner, any, or a list of names: [nobdy]\n"),
    ],
)
def test_an_unknown_name_in_local_users_is_a_mistake_in_the_settings(
    tmp_path: Path, value: str, hello: str
) -> None:
    (tmp_path / "server.yaml").write_text(f"listen: {{local_users: {value}}}")
    done = run_nplt_server("--config", tmp_path / "server.yaml", "--check")
    assert done.returncode == 78
    assert hello in done.stderr
    assert done.stderr.count("\n") == 1


@needs_root
def test_nplt_does_not_connect_to_a_server_that_another_user_runs(tmp_path: Path) -> None:
    """Not even if it greets as ours does."""
    greeting = b"\x01\0\0\0\x15nplt 9: echo answers."
    program = f"""
import os, socket, encodings.idna
os.setgid({NOBODY}), os.setuid({NOBODY})
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        connection.sendall({greeting!r})
        while data := connection.recv(1000):
            print(data, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as stranger:
        try:
            assert stranger.stdout is not None
            port = stranger.stdout.readline().strip()
            environ = {"NPLT_LISTEN__PORT": port, "NPLT_DATA_DIR": str(tmp_path / "data")}
            asked = run_nplt("ask", "hello", home=tmp_path, environ=environ)
            run_nplt("server", "stop", home=tmp_path)
        finally:
            stranger.kill()
        assert (asked.stdout, asked.returncode) == ("hello\n", 0)
        assert f"port {port} is taken" in asked.stderr
        assert stranger.stdout.read() == "", "not a byte was sent to it"
