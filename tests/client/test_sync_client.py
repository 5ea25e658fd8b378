"""The client for code without async, against a scripted server."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
from tests.client.scripted_peer import Talk, delta, finished, scripted_peer, started, whole_turn

import nplt_client
from nplt_client import sync
from nplt_client.errors import CannotConnect, ConnectionLost
from nplt_protocol.codes import MessageType
from nplt_protocol.messages import Cancel, Cancelled, TextDelta


def test_the_package_exports_the_blocking_client() -> None:
    assert nplt_client.sync is sync


def test_a_blocking_client_asks_and_iterates() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.answer("good ", "morning")
        talk.answer("and ", "goodbye", turn_id="turn-2", seq=4)
        talk.wait_until_gone()

    with scripted_peer(script) as peer, sync.connect(peer.url) as client:
        assert client.ask_text("hello") == "good morning"
        turn = client.ask("more")
        assert list(turn) == list(whole_turn("and ", "goodbye", turn_id="turn-2", seq=4))
        assert turn.text == "and goodbye"


def test_a_blocking_turn_can_be_cancelled_from_inside_its_loop() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(), delta("par", 0)))
        seq, _ = talk.expect(Cancel)
        talk.reply(MessageType.CANCEL, seq, Cancelled(cancelled=True))
        talk.say(finished(state="interrupted"))
        talk.wait_until_gone()

    with scripted_peer(script) as peer, sync.connect(peer.url) as client, client.ask("go") as turn:
        for event in turn:
            if isinstance(event, TextDelta):
                assert turn.cancel()
        assert turn.finished is not None
        assert (turn.finished.state, turn.text) == ("interrupted", "par")


@pytest.fixture
def ctrl_c_raises_once() -> Iterator[None]:
    """Whatever the test runner does with the signal."""
    struck: list[int] = []

    def strike(number: int, frame: FrameType | None) -> None:
        if not struck:
            struck.append(number)
            raise KeyboardInterrupt

    former = signal.signal(signal.SIGINT, strike)
    yield
    signal.signal(signal.SIGINT, former)


def main_thread_waits() -> bool:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return frame.f_code.co_name == "wait" and frame.f_code.co_filename == threading.__file__


@pytest.mark.usefixtures("ctrl_c_raises_once")
def test_a_blocking_turn_can_be_iterated_after_keyboard_interrupt() -> None:
    expected, interrupted = threading.Event(), threading.Event()

    def script(talk: Talk) -> None:
        talk.welcome()
        talk.take_prompt(events=(started(),))
        expected.wait()
        while not interrupted.wait(0.01):
            if main_thread_waits():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        talk.say(delta("all of it", 0), finished())
        talk.wait_until_gone()

    with scripted_peer(script) as peer, sync.connect(peer.url) as client:
        turn = client.ask("go")
        assert next(turn) == started()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            expected.set()  # not before here: it could strike elsewhere
            next(turn)
        interrupted.set()
        assert list(turn) == [delta("all of it", 0), finished()]


def test_a_blocking_client_raises_connection_lost() -> None:
    def script(talk: Talk) -> None:
        talk.welcome()
        talk.next_request()

    with scripted_peer(script) as peer, sync.connect(peer.url, reconnect=False) as client:
        feed = client.events()
        with pytest.raises(ConnectionLost):
            client.status()
        with pytest.raises(ConnectionLost):
            next(feed)


def test_a_blocking_client_raises_cannot_connect() -> None:
    with pytest.raises(CannotConnect), sync.connect("nplt://127.0.0.1:1"):
        pass
