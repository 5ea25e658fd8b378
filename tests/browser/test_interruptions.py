"""The page comes back by itself, and then shows what the record holds, nothing twice."""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.browser.conftest import NewWindow, Window
from tests.support.ports import free_port
from tests.support.raw_client import HISTORY_REQUEST, RawClient
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]


class Line:
    """Stands between the browser and the server, and cuts all connections when it is told to."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        for end in (end for pair in tuple(self._pairs) for end in pair):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                serving = threading.Thread(target=self._serve, args=(near,), daemon=True)
                self._threads.append(serving)
                serving.start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as far:
            pair = (near, far)
            self._pairs.add(pair)
            up = threading.Thread(target=self._carry, args=(near, far), daemon=True)
            up.start()
            self._carry(far, near)
            up.join()
            self._pairs.discard(pair)

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def line(start_server: Start) -> Iterator[tuple[ServerProcess, Line]]:
    server = start_server("--http-port", str(free_port()))
    line = Line(int(server.http_url.rstrip("/").rpartition(":")[2]))
    yield server, line
    line.close()


def record_of(server: ServerProcess, session_id: str) -> list[Any]:
    with RawClient(server.port) as client:
        client.hello()
        fields = {"session_id": session_id, "limit": 200}
        messages = client.request(HISTORY_REQUEST, fields).json["messages"]
        return [[each["seq"], each["role"], each["content"]] for each in messages]


def check(window: Window) -> None:
    """Compares the page's state, and what it shows of it, with the record."""
    window.until_idle()
    shown = window.run(
        "nplt.client.conversation.messages.filter((each) => each.role !== 'system')"
        ".map((each) => [each.seq, each.role, each.content])"
    )
    record = record_of(window.server, window.session_id)
    assert shown == record[-len(shown) :]
    assert len(shown) >= min(len(record), 20)
    prompts = [content for _, role, content in shown if role == "user"]
    answers = [content for _, role, content in shown if role == "assistant" and content]
    assert window.texts(".bubble") == prompts
    visible = [" ".join(each.split()) for each in window.answers if each]
    assert visible == [" ".join(each.split()) for each in answers]


def interrupt(window: Window, line: Line, kind: str) -> None:
    server, page = window.server, window.page
    devtools = page.context.new_cdp_session(page)
    match kind:
        case "killed":
            server.kill()
            server.start()
        case "stopped":
            server.signal(signal.SIGSTOP)
            window.run("nplt.client.wake()")  # as if the page were shown again
            page.wait_for_timeout(3_000)
            server.signal(signal.SIGCONT)
        case "cut":
            line.cut()
        case "offline":
            page.context.set_offline(True)
            line.cut()
            page.wait_for_timeout(300)
            page.context.set_offline(False)
        case "frozen":
            devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
            line.cut()
            time.sleep(0.7)
            devtools.send("Page.setWebLifecycleState", {"state": "active"})
        case "reloaded":
            page.reload()
    window.until_online()


KINDS = ["killed", "stopped", "cut", "offline", "frozen", "reloaded"]


def open_through(line: tuple[ServerProcess, Line], new_window: NewWindow) -> Window:
    server, _ = line
    window = new_window(server)
    direct = server.http_url
    server.http_url = f"http://127.0.0.1:{line[1].port}/"
    window.log_in()
    server.http_url = direct
    return window


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "cut" else pytest.mark.slow) for kind in KINDS]
)
def test_an_interrupted_answer_is_shown_as_it_was_stored(
    line: tuple[ServerProcess, Line], new_window: NewWindow, kind: str
) -> None:
    window = open_through(line, new_window)
    window.ask("before")
    window.send("!slow 1.5")
    window.wait("nplt.client.conversation.live && nplt.client.conversation.live.text")
    interrupt(window, line[1], kind)
    check(window)
    window.ask("after")
    check(window)


def test_an_answer_that_a_killed_server_left_is_kept_and_can_be_continued(
    line: tuple[ServerProcess, Line], new_window: NewWindow
) -> None:
    window = open_through(line, new_window)
    window.send("!slow 5 one two three four five six seven eight nine ten")
    window.wait("nplt.client.conversation.live?.text.includes('two')")
    interrupt(window, line[1], "killed")
    check(window)
    (left,) = window.answers
    assert left.startswith("one two")
    remarks = window.texts(".remark:not([hidden])")
    assert remarks == ["The server stopped before this answer was complete."]
    window.click("Go on")
    window.wait("nplt.client.conversation.messages.length === 4")
    window.until_idle()
    (whole,) = window.answers
    assert whole.startswith(left)
    assert len(whole) > len(left)
    assert window.texts(".remark:not([hidden])") == []


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_a_hundred_interruptions(line: tuple[ServerProcess, Line], new_window: NewWindow) -> None:
    window = open_through(line, new_window)
    chance = random.Random(100)
    for number in range(100):
        window.send(f"!slow {chance.uniform(0.2, 1.5):.2f}")
        if chance.random() < 0.7:
            window.wait(
                "(nplt.client.conversation.live && nplt.client.conversation.live.text)"
                " || !nplt.client.conversation.isRunning"
            )
        window.page.wait_for_timeout(chance.uniform(0, 500))
        interrupt(window, line[1], KINDS[number % len(KINDS)])
        check(window)


def test_a_prompt_that_is_sent_without_a_connection_runs_once(
    line: tuple[ServerProcess, Line], new_window: NewWindow
) -> None:
    window = open_through(line, new_window)
    server = window.server
    window.ask("before")
    server.kill()
    window.wait("nplt.client.phase === 'offline'")
    window.send("while the server is away")
    window.wait_for_text("Waits for the connection")
    words = "Waits for the connection; it will be sent once.Discard"
    assert window.run("document.querySelector('.unsent .state').textContent") == words
    window.wait_for_text("The server can't be reached")
    server.start()
    window.until_online()
    check(window)
    assert window.answers == ["before", "while the server is away"]


@pytest.mark.slow
def test_what_others_did_meanwhile_is_shown(
    line: tuple[ServerProcess, Line], new_window: NewWindow
) -> None:
    window = open_through(line, new_window)
    window.ask("before")
    window.page.context.set_offline(True)
    line[1].cut()
    with RawClient(window.server.port) as terminal:
        terminal.hello({"session_id": window.session_id})
        terminal.ask("meanwhile")
    window.page.context.set_offline(False)
    window.wait("nplt.client.conversation.messages.length === 4")
    check(window)
