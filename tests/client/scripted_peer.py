"""A server that says what a test tells it to, on a real loopback socket.

The script runs in a thread of its own with blocking calls, so that it can face
the asynchronous client, the blocking link and whole `nplt` processes alike. A
script that fails fails the test, when the `with` is left.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from msgspec.structs import replace

from nplt_protocol.codec import encode_event
from nplt_protocol.codes import ErrorCode, MessageType
from nplt_protocol.connection import RequestReceived
from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    ActiveTurn,
    ApprovalRequest,
    Attach,
    Attached,
    EntryAdded,
    Event,
    Hello,
    Prompt,
    Receipt,
    Reply,
    Request,
    TextDelta,
    TurnFinished,
    TurnStarted,
    Welcome,
)
from nplt_protocol.server_connection import ServerConnection

SESSION = "a" * 32
MODEL = "offline/echo"
SECONDS_MAX = 40.0

R = TypeVar("R", bound=Request)


class PeerGone(Exception):
    """The client has left."""


class Talk:
    """One connection, as its script sees it."""

    def __init__(self, wire: socket.socket, *, piece_bytes: int | None) -> None:
        self.wire = wire
        self.connection = ServerConnection()
        self._piece_bytes = piece_bytes
        self._requests: deque[RequestReceived] = deque()

    def send(self, data: bytes) -> None:
        step = self._piece_bytes or max(1, len(data))
        for start in range(0, len(data), step):
            self.wire.sendall(data[start : start + step])

    def greet(self, text: str = "hello from a scripted server") -> None:
        self.send(self.connection.send_text(text))

    def welcome(self, **changes: object) -> Hello:
        self.greet()
        seq, hello = self.expect(Hello)
        welcome_json: dict[str, object] = {
            "version": 3,
            "server": "nplt/0.1.0",
            "user": "local",
            "session_id": SESSION,
            "model": MODEL,
            "models": (MODEL,),
            "limits": {"message_bytes_max": 1024 * 1024},
            **changes,
        }
        self.send(self.connection.send_welcome(seq, Welcome(**welcome_json)))  # type: ignore[arg-type]
        return hello

    def next_request(self) -> RequestReceived:
        while not self._requests:
            data = self.wire.recv(65536)
            if not data:
                raise PeerGone
            for item in self.connection.receive_data(data):
                assert isinstance(item, RequestReceived), item
                self._requests.append(item)
            self.send(self.connection.data_to_send())
        return self._requests.popleft()

    def expect(self, kind: type[R]) -> tuple[int, R]:
        received = self.next_request()
        assert isinstance(received.request, kind), received
        return received.seq, received.request

    def reply(self, to: MessageType, seq: int, reply: Reply | JsonObject) -> None:
        self.send(self.connection.send_reply(to, seq, reply))

    def refuse(self, seq: int, code: ErrorCode, message: str, *, field: str | None = None) -> None:
        self.send(self.connection.send_error(seq, RequestError(code, message, field=field)))

    def say(self, *events: Event) -> None:
        self.send(b"".join(map(encode_event, events)))

    def take_prompt(self, turn_id: str = "turn-1", *, events: tuple[Event, ...] = ()) -> Prompt:
        """The receipt, and whatever is to arrive in the very same bytes."""
        seq, prompt = self.expect(Prompt)
        reply = self.connection.send_reply(MessageType.PROMPT, seq, receipt(prompt, turn_id))
        here = [replace(event, session_id=prompt.session_id or SESSION) for event in events]
        self.send(reply + b"".join(map(encode_event, here)))
        return prompt

    def answer(self, *pieces: str, turn_id: str = "turn-1", seq: int = 2) -> Prompt:
        return self.take_prompt(turn_id, events=whole_turn(*pieces, turn_id=turn_id, seq=seq))

    def wait_until_gone(self) -> None:
        with contextlib.suppress(PeerGone, OSError):
            while True:
                self.next_request()

    def reset(self) -> None:
        """Closes without a goodbye: the client sees a reset, not an end."""
        self.wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.wire.close()


def receipt(prompt: Prompt, turn_id: str = "turn-1", **changes: object) -> Receipt:
    welcome_json: dict[str, object] = {
        "turn_id": turn_id,
        "session_id": prompt.session_id or SESSION,
        "seq": 1,
        "message_id": prompt.message_id,
        "position": 0,
        "state": "running",
        **changes,
    }
    return Receipt(**welcome_json)  # type: ignore[arg-type]


def started(turn_id: str = "turn-1") -> TurnStarted:
    return TurnStarted(session_id=SESSION, turn_id=turn_id, seq=1, model=MODEL)


def delta(
    text: str,
    offset: int,
    *,
    turn_id: str = "turn-1",
    call: int = 0,
    replay_from: int | None = None,
) -> TextDelta:
    return TextDelta(
        session_id=SESSION,
        turn_id=turn_id,
        call=call,
        offset=offset,
        text=text,
        replay_from=replay_from,
    )


def entry(
    text: str,
    *,
    turn_id: str = "turn-1",
    call: int = 0,
    role: str = "assistant",
    seq: int = 2,
) -> Event:
    content: JsonObject = {"seq": seq, "role": role, "content": text, "model": MODEL}
    return EntryAdded(session_id=SESSION, turn_id=turn_id, call=call, entry=content)


def finished(turn_id: str = "turn-1", state: str = "completed", **changes: object) -> TurnFinished:
    welcome_json: dict[str, object] = {
        "session_id": SESSION,
        "turn_id": turn_id,
        "state": state,
        "seq": 2,
        "usage": {"input_tokens": 1, "output_tokens": 2},
        **changes,
    }
    return TurnFinished(**welcome_json)  # type: ignore[arg-type]


def whole_turn(*pieces: str, turn_id: str = "turn-1", seq: int = 2) -> tuple[Event, ...]:
    deltas: list[Event] = []
    offset = 0
    for piece in pieces:
        deltas.append(delta(piece, offset, turn_id=turn_id))
        offset += len(piece)
    return (
        started(turn_id),
        *deltas,
        entry("".join(pieces), turn_id=turn_id, seq=seq),
        finished(turn_id),
    )


def approval_request() -> ApprovalRequest:
    return ApprovalRequest(
        session_id=SESSION,
        turn_id="turn-1",
        approval_id="one",
        tool_name="write_file",
        arguments={"path": "/etc/passwd"},
        expires_at="",
    )


def attaches(
    talk: Talk,
    *,
    running: ActiveTurn | None = None,
    head_seq: int = 0,
    resync: bool | None = None,
    replay: tuple[Event, ...] = (),
) -> Attach:
    """Answers ATTACH as a server does: the replay comes in the same bytes as the reply."""
    seq, place = talk.expect(Attach)
    here = Attached(
        session_id=place.session_id,
        name="n",
        model=MODEL,
        head_seq=head_seq,
        active_turn=running,
        queue=(),
        resync=resync,
    )
    reply = talk.connection.send_reply(MessageType.ATTACH, seq, here)
    talk.send(reply + b"".join(map(encode_event, replay)))
    return place


Script = Callable[[Talk], None]


class Peer:
    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"nplt://127.0.0.1:{port}"


@contextmanager
def scripted_peer(*scripts: Script, piece_bytes: int | None = None) -> Iterator[Peer]:
    """One script per connection, in order of arrival."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(SECONDS_MAX)
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            for script in scripts:
                wire, _ = listening.accept()
                wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wire.settimeout(SECONDS_MAX)
                with wire, contextlib.suppress(PeerGone, ConnectionResetError, BrokenPipeError):
                    script(Talk(wire, piece_bytes=piece_bytes))
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=serve, name="scripted-peer", daemon=True)
    thread.start()
    try:
        yield Peer(listening.getsockname()[1])
    finally:
        thread.join(timeout=SECONDS_MAX + 5)
        listening.close()
    if failures:
        raise failures[0]
    assert not thread.is_alive()
