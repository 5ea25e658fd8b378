"""A client that shares no line with the house: `struct`, sockets and json.

If our own packages misread the wire on both sides, this one would tell.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

HEADER = struct.Struct(">BHH")

CHAT_TEXT, HELLO, ERROR, PING, PONG, CANCEL, PROMPT, ATTACH, DETACH = range(0x01, 0x0A)
AGENT_THOUGHT, FILE_DATA, FILE_METADATA, MODEL_SWITCH = 0x0A, 0x0D, 0x0E, 0x0F
HISTORY_REQUEST, CLEAR_REQUEST = 0x10, 0x11
SESSION_LIST, SESSION_SWITCH, SESSION_NEW, SESSION_DELETE, CLIENT_NOTE = range(0x14, 0x19)
SESSION_UPDATE, STATUS = 0x19, 0x1E
TURN_STARTED, TEXT_DELTA, TOOL_STARTED, TOOL_FINISHED, TURN_FINISHED = 0x20, 0x21, 0x23, 0x24, 0x25
SESSION_EVENT, ENTRY, SESSION_CHANGED = 0x26, 0x28, 0x29
APPROVAL, APPROVAL_REQUEST = 0x1D, 0x27
CONTEXT_REQUEST, COMPACT, TOOLS, USAGE, ROLLBACK = 0x1C, 0x30, 0x31, 0x32, 0x35
SESSION_FORK, SEARCH, FILE_GET, IMPORT, REDACT, REPAIR = 0x1A, 0x1B, 0x33, 0x34, 0x36, 0x37
WATCH, SEEN = 0x38, 0x39


class Frame(NamedTuple):
    type: int
    seq: int
    payload: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.payload)

    @property
    def text(self) -> str:
        return self.payload.decode()


class Closed(Exception):
    """The server closed the connection."""


@dataclass
class RawClient:
    port: int
    host: str = "127.0.0.1"
    timeout: float = 60.0
    sock: socket.socket = field(init=False)
    buffer: bytes = b""
    parts: bytes = b""
    next_seq: int = 0
    pushed: list[Frame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sock = socket.create_connection((self.host, self.port), timeout=self.timeout)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.sock.close()

    def send(self, type_: int, seq: int, payload: bytes | str | dict[str, Any] = b"") -> None:
        self.sock.sendall(encode(type_, seq, payload))

    def receive(self) -> Frame:
        """The next whole message; fragments are joined."""
        while True:
            if len(self.buffer) >= HEADER.size:
                type_, seq, length = HEADER.unpack_from(self.buffer)
                end = HEADER.size + length
                if len(self.buffer) >= end:
                    payload, self.buffer = self.buffer[HEADER.size : end], self.buffer[end:]
                    if type_ & 0x80:
                        self.parts += payload
                        continue
                    whole, self.parts = self.parts + payload, b""
                    return Frame(type_, seq, whole)
            try:
                data = self.sock.recv(1 << 20)
            except ConnectionResetError:
                raise Closed from None
            if not data:
                raise Closed
            self.buffer += data

    def until_closed(self) -> list[Frame]:
        """What is still said before the server closes the connection."""
        frames = []
        while True:
            try:
                frames.append(self.receive())
            except Closed:
                return frames

    # structured

    def hello(self, payload: bytes | dict[str, Any] = b"") -> Any:
        """An empty HELLO is enough. Gives WELCOME."""
        self.send(HELLO, 1, payload)
        while (frame := self.receive()).type not in (HELLO, ERROR):
            pass
        self.next_seq = 1
        return frame.json

    def request(self, type_: int, payload: bytes | str | dict[str, Any] = b"") -> Frame:
        """The reply to it; what is pushed meanwhile is kept in `pushed`."""
        self.next_seq += 1
        self.send(type_, self.next_seq, payload)
        return self.reply_to(self.next_seq)

    def reply_to(self, seq: int) -> Frame:
        while (frame := self.receive()).seq != seq:
            self.pushed.append(frame)
        return frame

    def event(self, *types: int) -> Frame:
        """The next pushed frame of one of these types; others are dropped."""
        for frame in self.events():
            if frame.type in types:
                return frame
        raise AssertionError("unreachable")

    def events(self) -> Iterator[Frame]:
        while True:
            yield self.pushed.pop(0) if self.pushed else self.receive()

    def until_finished(self) -> list[Frame]:
        """The pushed frames until the end of a turn, which is the last of them."""
        frames: list[Frame] = []
        while not frames or frames[-1].type != TURN_FINISHED:
            frames.append(next(self.events()))
        return frames

    def ask(self, text: str) -> str:
        """Prompts, and gives the deltas of the answer, joined."""
        receipt = self.request(PROMPT, {"text": text}).json
        return self.answer_of(receipt["turn_id"])

    def answer_of(self, turn_id: str) -> str:
        text = ""
        for frame in self.events():
            if frame.type == TEXT_DELTA and frame.json["turn_id"] == turn_id:
                assert frame.json["offset"] == len(text)
                text += frame.json["text"]
            if frame.type == TURN_FINISHED and frame.json["turn_id"] == turn_id:
                return text
        raise AssertionError("unreachable")

    # plain

    def greeting(self) -> str:
        frame = self.receive()
        assert (frame.type, frame.seq) == (CHAT_TEXT, 0)
        return frame.text

    def chat(self, text: str) -> list[Frame]:
        """All frames from the prompt to the empty one that ends the answer."""
        self.send(CHAT_TEXT, 0, text)
        return self.chat_frames()

    def chat_frames(self) -> list[Frame]:
        frames = [self.receive()]
        while not (frames[-1].type == CHAT_TEXT and not frames[-1].text.strip()):
            frames.append(self.receive())
        return frames


def encode(type_: int, seq: int, payload: bytes | str | dict[str, Any] = b"") -> bytes:
    if isinstance(payload, dict):
        payload = json.dumps(payload).encode()
    elif isinstance(payload, str):
        payload = payload.encode()
    frames = []
    while len(payload) > 65_535:
        frames.append(HEADER.pack(type_ | 0x80, seq, 65_535) + payload[:65_535])
        payload = payload[65_535:]
    return b"".join([*frames, HEADER.pack(type_, seq, len(payload)) + payload])
