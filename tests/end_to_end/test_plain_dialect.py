"""The plain dialect, point by point, as a program written for version 2 meets it."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from signal import Signals

import pytest
from rich.text import Text
from tests.conftest import Connect
from tests.support.raw_client import (
    AGENT_THOUGHT,
    CANCEL,
    CHAT_TEXT,
    CLEAR_REQUEST,
    CLIENT_NOTE,
    HELLO,
    HISTORY_REQUEST,
    MODEL_SWITCH,
    PROMPT,
    SESSION_DELETE,
    SESSION_LIST,
    SESSION_NEW,
    SESSION_SWITCH,
    TEXT_DELTA,
    Closed,
    Frame,
    RawClient,
)
from tests.support.server_process import ServerProcess


def spoken(frames: list[Frame]) -> str:
    """What a chat's frames say, after checking that they are a chat."""
    thoughts = [frame for frame in frames if frame.type == AGENT_THOUGHT]
    pieces = [frame for frame in frames if frame.type == CHAT_TEXT]
    assert len(thoughts) + len(pieces) == len(frames)
    kinds = [thought.json["type"] for thought in thoughts]
    assert kinds[-1] == "stream_start"
    assert kinds.count("stream_start") == 1
    assert all(kind in ("thinking", "tool_call", "generating") for kind in kinds[:-1])
    start = frames.index(thoughts[-1])
    assert frames[start + 1 :] == pieces
    *plain_text, end = pieces
    assert plain_text, "a chat has at least one piece"
    assert end.payload == b""
    assert all(piece.text.strip() for piece in plain_text)
    assert all(piece.text != "HEARTBEAT" for piece in plain_text)
    return "".join(piece.text for piece in plain_text)


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


@pytest.fixture
def client(connect: Connect) -> RawClient:
    raw = connect()
    assert raw.greeting().strip()
    return raw


def one_text(client: RawClient, type_: int, payload: bytes | str | dict[str, object] = b"") -> str:
    client.send(type_, 7, payload)
    frame = client.receive()
    assert frame.type == CHAT_TEXT
    assert frame.text.strip()
    return frame.text


def test_a_chat_is_thoughts_then_pieces_then_an_empty_frame(client: RawClient) -> None:
    assert spoken(client.chat("hello there, how are you")) == "hello there, how are you"


def test_server_frames_have_seqs_from_zero(client: RawClient) -> None:
    frames = client.chat("one two three") + client.chat("four")
    assert [frame.seq for frame in frames] == list(range(1, len(frames) + 1))


def test_seqs_of_a_plain_client_are_ignored(client: RawClient) -> None:
    for _ in range(3):
        client.send(CHAT_TEXT, 65_535, "same number")
        assert spoken(client.chat_frames()) == "same number"


def test_a_failing_provider_is_reported_as_text_and_the_chat_ends(client: RawClient) -> None:
    assert "offline/echo fails" in spoken(client.chat("!fail"))
    assert spoken(client.chat("still here")) == "still here"


def test_a_blank_prompt_gets_the_frames_of_a_chat(client: RawClient) -> None:
    assert spoken(client.chat("   "))


def test_the_word_heartbeat_in_an_answer_is_not_sent_as_a_heartbeat(client: RawClient) -> None:
    # `HEARTBEAT` as a prompt is a heartbeat, so the answer is made another way.
    assert spoken(client.chat("!slow 0 HEARTBEAT")) == "HEARTBEAT"


def test_white_space_in_an_answer_is_never_a_piece_of_its_own(client: RawClient) -> None:
    assert spoken(client.chat("a   \n\n   b\t\tc")) == "a   \n\n   b\t\tc"


def test_a_heartbeat_gets_no_reply(client: RawClient) -> None:
    client.send(CHAT_TEXT, 0, "HEARTBEAT")
    assert spoken(client.chat("next")) == "next"


def test_a_tool_call_is_shown_as_an_agent_thought(client: RawClient) -> None:
    frames = client.chat('!tool now {"timezone": "UTC"}')
    kinds = [frame.json["type"] for frame in frames if frame.type == AGENT_THOUGHT]
    assert "tool_call" in kinds
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", spoken(frames))


def test_a_prompt_in_chinese_is_echoed_as_valid_utf8(client: RawClient) -> None:
    text = "帮我查看 CPU 使用率 🙂 " * 500
    assert spoken(client.chat(text)) == text


def test_a_long_word_is_cut_between_characters(client: RawClient) -> None:
    text = "é" * 30_000
    assert spoken(client.chat(text)) == text


def test_a_session_list_shows_ids_that_session_switch_accepts(
    client: RawClient, connect: Connect
) -> None:
    client.chat("remember the milk")
    other = connect()
    other.greeting()
    listed = one_text(other, SESSION_LIST)
    (line,) = [line for line in listed.splitlines() if "remember the milk" in line]
    (session_id,) = re.findall(r"\b[0-9a-f]{32}\b", line)
    assert "remember the milk" in one_text(other, SESSION_SWITCH, {"session_id": session_id})
    assert one_text(other, SESSION_SWITCH, {"session_id": session_id[:8]})
    page = json.loads(one_text(other, HISTORY_REQUEST))
    assert [message["content"] for message in page["messages"]] == ["remember the milk"] * 2


def test_the_current_conversation_is_marked_in_the_list(client: RawClient) -> None:
    client.chat("here")
    assert any(line.startswith("*") for line in one_text(client, SESSION_LIST).splitlines())


def test_history_is_json_in_one_text(client: RawClient) -> None:
    client.chat("one")
    client.chat("two")
    page = json.loads(one_text(client, HISTORY_REQUEST))
    assert page["message_count"] == 4
    assert [m["content"] for m in page["messages"]] == ["one", "one", "two", "two"]
    assert [m["role"] for m in page["messages"]] == ["user", "assistant"] * 2
    older = json.loads(one_text(client, HISTORY_REQUEST, {"limit": 1, "before": 2}))
    assert [m["content"] for m in older["messages"]] == ["one"]


def test_history_begins_after_a_clear(client: RawClient) -> None:
    client.chat("before")
    one_text(client, CLEAR_REQUEST)
    assert json.loads(one_text(client, HISTORY_REQUEST))["messages"] == []
    client.chat("after")
    page = json.loads(one_text(client, HISTORY_REQUEST))
    assert [message["content"] for message in page["messages"]] == ["after", "after"]
    assert page["page"]["has_more_before"] is False


def test_history_of_a_fresh_conversation_is_an_empty_page(client: RawClient) -> None:
    page = json.loads(one_text(client, HISTORY_REQUEST))
    assert page["messages"] == []
    assert page["message_count"] == 0


@pytest.mark.parametrize("text", ["[/etc/hosts]", "[bold]x", "[#abc]", "[@click=f]", "a[b]c \\[d]"])
def test_brackets_in_one_frame_replies_survive_a_markup_renderer(
    client: RawClient, text: str
) -> None:
    client.chat(text)
    for reply in (one_text(client, HISTORY_REQUEST), one_text(client, SESSION_LIST)):
        assert not re.search(r"\[[^\W\d_]|\[[#/@]", reply)
        # As the clients in the field show it: this raises on an unmatched tag.
        # (A backslash before a bracket is an escape to it, and vanishes.)
        assert Text.from_markup(reply).plain == reply.replace("\\[", "[")
    page = json.loads(one_text(client, HISTORY_REQUEST))
    assert page["messages"][0]["content"] == text


def test_a_history_page_fits_one_frame_in_a_long_conversation(client: RawClient) -> None:
    for _ in range(6):
        client.chat("[x] " * 5_000)
    reply = one_text(client, HISTORY_REQUEST, {"limit": 200})
    assert len(reply.encode()) <= 65_535
    assert json.loads(reply)["messages"]


def test_new_switch_and_delete_get_one_text_each(client: RawClient) -> None:
    created = one_text(client, SESSION_NEW, {"name": "plans"})
    session_id = re.findall(r"\b[0-9a-f]{32}\b", created)[0]
    assert created == f"Began plans ({session_id})."
    assert "plans" in one_text(client, SESSION_SWITCH, {"session_id": "plans"})
    assert session_id in one_text(client, SESSION_DELETE, {"session_id": session_id})
    assert "no conversation" in one_text(client, SESSION_SWITCH, {"session_id": session_id})
    assert spoken(client.chat("in a fresh one now")) == "in a fresh one now"


def test_clear_gets_one_text(client: RawClient) -> None:
    client.chat("before")
    assert "leared" in one_text(client, CLEAR_REQUEST)


def test_a_model_switch_by_text_is_one_text_without_an_end(client: RawClient) -> None:
    assert "offline/echo" in one_text(client, CHAT_TEXT, "/model offline/echo")
    assert "no model" in one_text(client, CHAT_TEXT, "/model nobody/nothing")
    assert spoken(client.chat("next")) == "next"


@pytest.mark.parametrize("code", [CLIENT_NOTE, MODEL_SWITCH])
def test_a_model_switch_by_frame_is_one_text(client: RawClient, code: int) -> None:
    assert "offline/echo" in one_text(client, code, {"model": "offline/echo"})


def test_a_udp_port_frame_is_accepted_and_gets_no_reply(client: RawClient) -> None:
    client.send(CLIENT_NOTE, 0, {"udp_port": 9998})
    assert spoken(client.chat("next")) == "next"


def test_replies_keep_the_order_of_the_requests(client: RawClient) -> None:
    client.send(CHAT_TEXT, 0, "!slow 0.3 first answer")
    client.send(HISTORY_REQUEST, 1)
    client.send(CHAT_TEXT, 2, "second")
    assert spoken(client.chat_frames()) == "first answer"
    page = json.loads(client.receive().text)
    assert [m["content"] for m in page["messages"]] == ["!slow 0.3 first answer", "first answer"]
    assert spoken(client.chat_frames()) == "second"


@pytest.mark.parametrize(
    ("code", "payload"),
    [
        (0x7F, b"?"),
        (0x07, b"{}"),
        (HELLO, b""),
        (SESSION_SWITCH, b""),
        (SESSION_SWITCH, b"not json"),
        (SESSION_SWITCH, b'{"session_id": 5}'),
        (SESSION_SWITCH, b'{"session_id": "../../etc/passwd"}'),
        (SESSION_DELETE, b'{"session_id": "../../etc/passwd"}'),
        (HISTORY_REQUEST, b'{"limit": "many"}'),
        (HISTORY_REQUEST, b"[1]"),
        (MODEL_SWITCH, b"\xff\xfe"),
    ],
)
def test_malformed_requests_get_one_text_and_the_connection_lives(
    client: RawClient, code: int, payload: bytes
) -> None:
    client.chat("hello")
    one_text(client, code, payload)
    assert spoken(client.chat("still here")) == "still here"


def test_invalid_utf8_in_a_chat_ends_with_an_empty_frame(client: RawClient) -> None:
    client.send(CHAT_TEXT, 0, b"\xff\xfe\xfd")
    assert "UTF-8" in spoken(client.chat_frames())


def test_a_half_closed_client_still_gets_its_answer(client: RawClient) -> None:
    client.send(CHAT_TEXT, 0, "!slow 0.2 the answer")
    client.sock.shutdown(socket.SHUT_WR)
    assert spoken(client.chat_frames()) == "the answer"
    with pytest.raises(Closed):
        client.receive()


def test_a_full_server_sends_the_reason_before_it_closes(
    start_server: Callable[..., ServerProcess],
    connect: Connect,
) -> None:
    server = start_server(limits={"connections_max": 2})
    clients = [connect(server) for _ in range(2)]
    for client in clients:
        client.greeting()
        client.chat("hello")
    refused = connect(server)
    assert "full" in refused.receive().text
    with pytest.raises(Closed):
        refused.receive()
    clients[0].sock.close()
    clients[1].chat("the others live on")


def test_a_drain_ends_the_stream_before_it_closes(
    start_server: Callable[..., ServerProcess],
    connect: Connect,
) -> None:
    server = start_server(limits={"drain_seconds_max": 0.2})
    client = connect(server)
    client.greeting()
    client.send(CHAT_TEXT, 0, "!slow 60 " + "word " * 600)
    first = client.receive()
    while first.type != CHAT_TEXT:
        first = client.receive()
    server.signal(Signals.SIGTERM)
    rest = client.chat_frames()
    assert "shutting down" in "".join(frame.text for frame in rest if frame.type == CHAT_TEXT)
    client.until_closed()
    client.sock.close()  # the server waits for that, for some seconds
    assert server.terminate() == 0


def test_plain_is_refused_where_tokens_are_set(
    start_server: Callable[..., ServerProcess],
    connect: Connect,
) -> None:
    server = start_server(users=[{"name": "ada", "token_sha256": "0" * 64}])
    client = connect(server)
    client.greeting()
    client.send(CHAT_TEXT, 0, "let me in")
    assert "token" in client.receive().text
    with pytest.raises(Closed):
        client.receive()


def test_switching_into_a_running_conversation_delivers_no_foreign_events(
    client: RawClient, connect: Connect
) -> None:
    other = connect()
    session_id = other.hello()["session_id"]
    other.request(PROMPT, {"text": "!slow 30 a story for somebody else"})
    other.event(TEXT_DELTA)
    assert one_text(client, SESSION_SWITCH, {"session_id": session_id})
    assert "running" in one_text(client, SESSION_LIST)
    other.request(CANCEL)
    assert spoken(client.chat("my turn")) == "my turn"


def test_history_is_valid_json_for_any_page_request(client: RawClient) -> None:
    client.chat("[" * 12_000)
    client.chat("x" * 60_000)
    wishes: list[dict[str, object]] = [{"max_bytes": 1_000_000}, {"seq": 1, "length": 1_000_000}]
    for wish in wishes:
        assert json.loads(one_text(client, HISTORY_REQUEST, wish))
