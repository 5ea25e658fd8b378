"""The blocking door of the short commands, against a scripted server."""

from __future__ import annotations

import pytest
from tests.client.scripted_peer import Peer, Talk, delta, scripted_peer, whole_turn

from nplt_client.errors import ConnectionLost, NpltError, ProtocolViolation, TimedOut
from nplt_client.link import Deadline, Link, open_link
from nplt_client.settings import parse_url
from nplt_protocol.codes import MessageType
from nplt_protocol.frames import encode_frame
from nplt_protocol.replies import Cancelled, Receipt
from nplt_protocol.requests import Cancel, Hello, Prompt


def link_to(peer: Peer, *, seconds: float | None = None) -> Link:
    return open_link(parse_url(peer.url), Hello(client="test/1"), Deadline(seconds))


@pytest.mark.parametrize("piece_bytes", [None, 1])
def test_events_that_come_before_a_reply_are_kept_for_later(piece_bytes: int | None) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        seq, _ = talk.expect(Cancel)
        talk.say(delta("early", 0))
        talk.reply(MessageType.CANCEL, seq, Cancelled(cancelled=False))
        talk.say(delta("late", 5))
        talk.wait_until_gone()

    with scripted_peer(script, piece_bytes=piece_bytes) as peer, link_to(peer) as link:
        assert link.request(Cancel(), Cancelled) == Cancelled(cancelled=False)
        assert [link.next_event(), link.next_event()] == [delta("early", 0), delta("late", 5)]


def test_a_long_prompt_goes_out_in_fragments_and_arrives_whole() -> None:
    text = "long " * 100_000

    def script(talk: Talk) -> None:
        talk.welcome()
        assert talk.answer("got it").text == text
        talk.wait_until_gone()

    with scripted_peer(script) as peer, link_to(peer) as link:
        assert link.request(Prompt(text=text), Receipt).turn_id == "turn-1"
        assert link.next_event() == whole_turn("got it")[0]


def test_a_deadline_ends_the_wait_for_events() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.wait_until_gone()

    with (
        scripted_peer(script) as peer,
        link_to(peer, seconds=0.3) as link,
        pytest.raises(TimedOut, match=r"within 0\.3 s"),
    ):
        link.next_event()


def test_a_dead_server_is_not_waited_for() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        while talk.wire.recv(1024):  # reads, and answers nothing
            pass

    with scripted_peer(script) as peer, link_to(peer) as link:
        link.silence_seconds = 0.05
        with pytest.raises(ConnectionLost, match="silent"):
            link.next_event()


def test_a_servers_ping_is_answered_while_waiting() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.send(encode_frame(MessageType.PING, 0, b"?"))
        assert talk.wire.recv(1024) == encode_frame(MessageType.PONG, 0, b"?")

    with scripted_peer(script) as peer, link_to(peer) as link, pytest.raises(ConnectionLost):
        link.next_event()


def test_a_reply_of_the_wrong_kind_is_a_protocol_violation() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        received = talk.next_request()
        talk.send(encode_frame(MessageType.STATUS, received.seq, b"{}"))
        talk.wait_until_gone()

    with scripted_peer(script) as peer, link_to(peer) as link, pytest.raises(ProtocolViolation):
        link.request(Cancel(), Cancelled)


@pytest.mark.parametrize("kept_bytes", [0, 1, 4, 5, 20])
def test_a_reply_cut_anywhere_is_a_lost_connection(kept_bytes: int) -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        seq, _ = talk.expect(Cancel)
        reply = talk.connection.send_reply(MessageType.CANCEL, seq, Cancelled(cancelled=True))
        talk.send(reply[:kept_bytes])

    with scripted_peer(script) as peer, link_to(peer) as link, pytest.raises(ConnectionLost):
        link.request(Cancel(), Cancelled)


def test_a_reset_is_a_lost_connection() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.next_request()
        talk.reset()

    with scripted_peer(script) as peer, link_to(peer) as link, pytest.raises(ConnectionLost):
        link.request(Cancel(), Cancelled)


def test_a_server_of_another_kind_is_refused() -> None:
    def script(talk: Talk) -> None:
        talk.send(b"220 mail.example.org ESMTP\r\n" * 5_000)

    with scripted_peer(script) as peer, pytest.raises(NpltError) as caught:
        link_to(peer, seconds=5)
    assert caught.value.exit_code in (5, 8)
