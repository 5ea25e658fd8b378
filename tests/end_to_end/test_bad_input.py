"""No byte string stops the server, loses anything or disturbs anybody else."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
from faults.random_frames import send_random_frames
from tests.conftest import Connect
from tests.support.raw_client import (
    ATTACH,
    ERROR,
    FILE_DATA,
    HISTORY_REQUEST,
    PROMPT,
    SESSION_DELETE,
    SESSION_LIST,
    SESSION_NEW,
    SESSION_UPDATE,
    Closed,
    RawClient,
    encode,
)
from tests.support.server_process import ServerProcess

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(189) + b"\x00" * 5
HTTP_POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi"


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


@pytest.fixture
def bystander(connect: Connect) -> RawClient:
    """Someone else, in the middle of a conversation."""
    raw = connect()
    raw.hello()
    raw.ask("I was here before")
    return raw


@pytest.mark.parametrize(
    ("code", "payload", "error", "field"),
    [
        (0x7F, b"", "unsupported", None),
        (0x21, b"{}", "unsupported", None),
        (PROMPT, b"", "malformed", "text"),
        (PROMPT, b'{"text": ""}', "malformed", "text"),
        (PROMPT, b'{"text": " \\n"}', "malformed", "text"),
        (PROMPT, b'{"text": 5}', "malformed", "text"),
        (PROMPT, b'{"text": null}', "malformed", "text"),
        (PROMPT, b'{"text": "\\ud800"}', "malformed", None),
        (PROMPT, b'{"text": "x", "metadata": []}', "malformed", "metadata"),
        (PROMPT, b'{"text": "x", "metadata": {"n": 18446744073709551616}}', "malformed", None),
        (PROMPT, b'{"text": "x", "model": "no/such"}', "not_found", "model"),
        (PROMPT, b'{"text": "x", "session_id": "../../etc/passwd"}', "malformed", "session_id"),
        (PROMPT, b'{"text": "x", "session_id": "' + b"0" * 32 + b'"}', "not_found", "session_id"),
        (PROMPT, b'{"text": NaN}', "malformed", None),
        (PROMPT, b"{", "malformed", None),
        (PROMPT, b"[]", "malformed", None),
        (PROMPT, b"\xff\xfe", "malformed", None),
        (PROMPT, b'{"text":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "malformed", None),
        (PROMPT, b'{"a":' * 100 + b"1" + b"}" * 100, "malformed", None),
        (0x01, b"\xff\xfe", "malformed", "text"),
        (0x01, b"", "malformed", "text"),
        (ATTACH, b"{}", "malformed", "session_id"),
        (ATTACH, b'{"session_id": "../../etc/passwd"}', "malformed", "session_id"),
        (ATTACH, b'{"session_id": "/etc/passwd"}', "malformed", "session_id"),
        (ATTACH, b'{"session_id": "nobody"}', "not_found", "session_id"),
        (SESSION_DELETE, b'{"session_id": ".."}', "malformed", "session_id"),
        (SESSION_UPDATE, b'{"name": 7}', "malformed", "name"),
        (SESSION_NEW, b'{"name": "' + b"n" * 201 + b'"}', "malformed", "name"),
        (SESSION_LIST, b'{"cursor": "rubbish"}', "malformed", "cursor"),
        (SESSION_LIST, b'{"limit": 0}', "malformed", "limit"),
        (HISTORY_REQUEST, b'{"limit": true}', "malformed", "limit"),
        (HISTORY_REQUEST, b'{"before": 1, "after": 2}', "malformed", "after"),
        (HISTORY_REQUEST, b'{"before": -1}', "malformed", "before"),
        (HISTORY_REQUEST, b'{"view": "sideways"}', "malformed", "view"),
        (HISTORY_REQUEST, b'{"session_id": "nobody"}', "not_found", "session_id"),
        (HISTORY_REQUEST, b'{"seq": 99}', "not_found", "seq"),
    ],
)
def test_a_malformed_request_is_refused_with_its_field_and_the_connection_lives(
    client: RawClient, code: int, payload: bytes, error: str, field: str | None
) -> None:
    client.ask("before")
    refusal = client.request(code, payload)
    assert (refusal.type, refusal.json["code"]) == (ERROR, error)
    assert refusal.json["message"]
    assert refusal.json.get("field") == field
    assert client.ask("after") == "after"
    assert client.request(HISTORY_REQUEST).json["message_count"] == 4


def test_file_data_without_metadata_is_refused_once_and_is_the_reply_to_no_other_request(
    client: RawClient,
) -> None:
    client.sock.sendall(encode(FILE_DATA, 9, b"data of no file") * 3)
    # Handled after them; a PING that is read together with them would be answered before.
    assert client.request(SESSION_LIST).type == SESSION_LIST
    (complaint,) = client.pushed
    assert (complaint.type, complaint.seq, complaint.json["field"]) == (ERROR, 0, "seq")


def test_a_request_without_a_seq_is_refused(client: RawClient) -> None:
    client.send(PROMPT, 0, {"text": "hello"})
    frame = client.event(ERROR)
    assert (frame.seq, frame.json["code"], frame.json["field"]) == (0, "malformed", "seq")
    assert client.ask("after") == "after"


def test_a_seq_whose_request_has_no_reply_yet_is_refused(client: RawClient) -> None:
    client.request(PROMPT, {"text": "!slow 5 busy"})
    client.send(0x11, 77)
    client.send(0x11, 77)
    assert client.event(ERROR).json["field"] == "seq"


def test_another_frame_between_fragments_drops_the_partial_message(client: RawClient) -> None:
    client.sock.sendall(struct.pack(">BHH", PROMPT | 0x80, 30, 65_535) + b"x" * 65_535)
    client.send(SESSION_LIST, 31)
    replies = {frame.seq: frame for frame in (client.receive(), client.receive())}
    assert replies[30].json["code"] == "malformed"
    assert replies[31].type == SESSION_LIST
    assert client.ask("after") == "after"


@pytest.mark.parametrize(
    "stranger",
    [HTTP_POST, b"GET / HTTP/1.0\r\n\r\n", TLS_HELLO, bytes(65_535), b"\x82\x00\x01\x00\x00"],
    ids=["http-post", "http-get", "tls-hello", "zeros", "fragmented-hello"],
)
def test_a_foreign_protocol_gets_one_text_and_a_close(
    connect: Connect, bystander: RawClient, stranger: bytes
) -> None:
    client = connect()
    client.greeting()
    client.sock.sendall(stranger)
    assert client.receive().text.strip()
    with pytest.raises(Closed):
        client.receive()
    assert bystander.ask("undisturbed") == "undisturbed"


def test_an_incomplete_frame_times_out_with_a_reason_and_a_close(
    start_server: Callable[..., ServerProcess],
    connect: Connect,
) -> None:
    server = start_server(limits={"message_seconds_max": 0.3})
    client = connect(server)
    client.greeting()
    client.sock.sendall(encode(0x01, 0, "hello")[:7])
    assert "not finished" in client.receive().text
    with pytest.raises(Closed):
        client.receive()
    structured = connect(server)
    structured.hello()
    structured.sock.sendall(encode(PROMPT, 5, {"text": "hello"})[:9])
    assert structured.event(ERROR).json["code"] == "malformed"
    with pytest.raises(Closed):
        structured.receive()


def test_a_header_with_a_false_length_affects_only_its_own_connection(
    connect: Connect, bystander: RawClient
) -> None:
    client = connect()
    client.hello()
    client.sock.sendall(struct.pack(">BHH", PROMPT, 5, 65_535) + b'{"text": "short"}')
    assert bystander.ask("undisturbed") == "undisturbed"
    client.sock.close()
    assert bystander.ask("still undisturbed") == "still undisturbed"


def test_slow_senders_do_not_exhaust_the_connection_limit(
    start_server: Callable[..., ServerProcess], connect: Connect
) -> None:
    server = start_server(limits={"connections_max": 50})
    slow = [connect(server) for _ in range(60)]
    for client in slow:
        client.sock.sendall(b"\x01\x00")
    served = connect(server)
    served.hello()
    assert served.ask("served at once") == "served at once"
    for client in slow:
        client.sock.close()


def test_random_frames_leave_the_server_serving(
    connect: Connect, bystander: RawClient, server: ServerProcess
) -> None:
    """A few of those of `make faults`; deterministic, so that a failure can be run again."""
    send_random_frames(lambda: connect().sock, random.Random(2_026), count=10_000)
    assert bystander.ask("undisturbed") == "undisturbed"
    assert "Traceback" not in server.log
    newcomer = connect()
    newcomer.hello()
    assert newcomer.ask("welcome") == "welcome"
