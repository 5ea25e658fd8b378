"""Client and server joined by a fake link: everything that can be said is pushed
through both, whole, in pieces and byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol import samples
from tests.protocol.fake_link import WELCOME, FakeLink, plain, welcomed

from nplt_protocol import (
    PLAIN_REQUESTS,
    Dialect,
    ErrorCode,
    ErrorReceived,
    EventReceived,
    MessageType,
    ReplyReceived,
    RequestError,
    RequestReceived,
    State,
    TextReceived,
    ThoughtReceived,
    encode_event,
    messages,
)

pieces = st.sampled_from([1, 2, 3, 7, 1 << 30])


@pytest.mark.parametrize("piece_bytes", [1, 1 << 30])
def test_a_connection_is_opened_greeted_and_welcomed(piece_bytes: int) -> None:
    link = FakeLink(piece_bytes=piece_bytes)
    assert link.to_client(link.server.send_text("good morning")) == [
        TextReceived(text="good morning")
    ]
    (hello,) = link.to_server(
        link.client.send_hello(messages.Hello(client="test/1", token="secret"))
    )
    assert isinstance(hello, RequestReceived)
    assert hello.request == messages.Hello(client="test/1", token="secret")
    (reply,) = link.to_client(link.server.send_welcome(hello.seq, WELCOME))
    assert isinstance(reply, ReplyReceived)
    assert reply.reply == WELCOME
    assert link.client.state is link.server.state is State.STRUCTURED


@given(
    samples.requests.filter(lambda request: type(request) is not messages.Hello), pieces, st.data()
)
def test_every_request_reaches_the_server_and_its_reply_the_client(
    request: messages.Request, piece_bytes: int, data: st.DataObject
) -> None:
    link = welcomed(piece_bytes)
    seq, sent = link.client.send(request)
    received = link.to_server(sent)
    if isinstance(request, messages.Ping):
        assert received == []
        (pong,) = link.to_client(link.server.data_to_send())
        assert isinstance(pong, ReplyReceived)
        assert pong.seq == seq
        return
    (item,) = received
    assert isinstance(item, RequestReceived)
    assert (item.seq, item.request) == (seq, request)
    reply = data.draw(samples.replies_to(request))
    (arrived,) = link.to_client(link.server.send_reply(item.type, item.seq, reply))
    assert arrived == ReplyReceived(seq=seq, request_type=item.type, reply=reply)
    assert link.client.open_requests == link.server.open_requests == 0


@given(st.lists(samples.requests, min_size=1, max_size=5), pieces)
def test_pipelined_requests_arrive_in_order_and_may_get_replies_in_any(
    requests: list[messages.Request], piece_bytes: int
) -> None:
    link = welcomed(piece_bytes)
    asked = [
        request for request in requests if not isinstance(request, messages.Hello | messages.Ping)
    ]
    sent = [link.client.send(request) for request in asked]
    received = link.to_server(b"".join(data for _, data in sent))
    assert [item.request for item in received if isinstance(item, RequestReceived)] == asked
    no = RequestError(ErrorCode.BUSY, "Not now.", retry_after=1.5)
    replies = b"".join(link.server.send_error(seq, no) for seq, _ in reversed(sent))
    arrived = link.to_client(replies)
    assert [item.seq for item in arrived if isinstance(item, ErrorReceived)] == [
        seq for seq, _ in reversed(sent)
    ]


@given(st.lists(samples.events, max_size=5), pieces)
def test_every_event_reaches_the_client_in_order(
    events: list[messages.Event], piece_bytes: int
) -> None:
    link = welcomed(piece_bytes)
    arrived = link.to_client(b"".join(encode_event(event) for event in events))
    assert arrived == [EventReceived(event=event) for event in events]


@given(st.sampled_from(sorted(PLAIN_REQUESTS)), pieces, st.data())
def test_every_plain_request_reaches_the_server(
    code: MessageType, piece_bytes: int, data: st.DataObject
) -> None:
    shape = messages.REQUEST_TYPES.get(code, messages.Prompt)
    strategy: st.SearchStrategy[messages.Request] = samples.REQUESTS.get(
        shape,
        st.builds(messages.FileData, data=st.binary(max_size=9))
        if shape is messages.FileData
        else st.builds(messages.ClientNote, udp_port=st.integers(0, 9)),
    )
    request = data.draw(strategy)
    if isinstance(request, messages.Prompt):
        request = messages.Prompt(text=request.text)
    link = plain(piece_bytes)
    (item,) = link.to_server(link.client.send(request)[1])
    assert isinstance(item, RequestReceived)
    assert item.request == request
    assert link.server.dialect is Dialect.PLAIN


@given(st.lists(samples.text.filter(lambda text: text != "HEARTBEAT"), max_size=4), pieces)
def test_a_plain_chat_reaches_the_client(texts: list[str], piece_bytes: int) -> None:
    link = plain(piece_bytes)
    link.to_client(link.server.send_text("greeting"))
    link.to_server(link.client.send(messages.Prompt(text="hi"))[1])
    arrived = link.to_client(
        link.server.send_thought({"type": "stream_start"})
        + b"".join(link.server.send_text(text) for text in texts)
        + link.server.send_text("")
    )
    assert arrived == [
        ThoughtReceived(payload={"type": "stream_start"}),
        *[TextReceived(text=text) for text in texts],
        TextReceived(text=""),
    ]


@pytest.mark.parametrize("piece_bytes", [1 << 10, 1 << 30])
def test_a_long_prompt_and_a_long_reply_cross_in_fragments(piece_bytes: int) -> None:
    link = welcomed(piece_bytes)
    text = "wörter " * 60_000
    seq, data = link.client.send(messages.Prompt(text=text))
    (item,) = link.to_server(data)
    assert isinstance(item, RequestReceived)
    assert item.request == messages.Prompt(text=text)
    (arrived,) = link.to_client(
        link.server.send_reply(item.type, seq, {**_receipt(), "more": text})
    )
    assert isinstance(arrived, ReplyReceived)


def test_an_upload_crosses_under_one_seq() -> None:
    link = welcomed(piece_bytes=1_000)
    seq, data = link.client.send(messages.FileMetadata(filename="a.bin", size=150_000))
    content = bytes(range(250)) * 600
    received = link.to_server(data + link.client.send_file_data(seq, content))
    requests = [item.request for item in received if isinstance(item, RequestReceived)]
    assert requests[0] == messages.FileMetadata(filename="a.bin", size=150_000)
    assert (
        b"".join(item.data for item in requests[1:] if isinstance(item, messages.FileData))
        == content
    )
    assert {item.seq for item in received if isinstance(item, RequestReceived)} == {seq}


def _receipt() -> dict[str, str | int]:
    return {"turn_id": "t", "session_id": "s", "seq": 1, "position": 0, "state": "running"}
