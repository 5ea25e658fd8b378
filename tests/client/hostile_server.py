"""A server that puts what terminals obey into every string of every reply and event."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import inspect
from tests.client.scripted_peer import SECONDS_MAX, PeerGone, Talk

from nplt_protocol import messages
from nplt_protocol.codec import encode_event
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import REPLY_TYPES, REQUEST_TYPES, Event, Reply, Request

ATTACK = (
    "\x1b[7771m\x1b]0;7771\x07\x1bP7771\x1b\\\x1b_7771\x1b\\\x9b31m\x9d0;x\x9c\x90q\x9c"
    "\u202e\u2066\u2069\x00\x01\x07\x08\x0e\x18\x7f\r\nFORGED\u2028FORGED\x85FORGED"
)
_OBEYED = re.compile(
    "\x1b[^\x1b]?7771"  # a sequence of ours that was passed on
    "|[\x80-\x9f\u202a-\u202e\u2066-\u2069]"
    "|[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)
_MEANT = re.compile("\x1b](?:52;c;[A-Za-z0-9+/=]*|22;[a-z]+)\x07")
"""The clipboard, and the shape of the mouse pointer."""
_CODES = {shape: code for code, shape in REQUEST_TYPES.items()}
_LEFT_OUT = {"next_cursor", "resync", "active_turn", "replay_from", "size", "truncated"}
"""Fields that must not be there, or there would be no end."""
TURN = f"turn{ATTACK}"
SESSION = f"session{ATTACK}"


def foreign_bytes(shown: str) -> list[str]:
    """What a terminal would obey, and nplt did not mean."""
    return _OBEYED.findall(_MEANT.sub("", shown))


def example(name: str) -> str:
    """Each field is hostile in the same way every time: ids stay the same."""
    return f"{name.removesuffix('_id').removeprefix('current_')}{ATTACK}"


def anything(role: str = "assistant") -> JsonObject:
    """An object with every field that clients look at, whatever it describes."""
    words: tuple[str, ...] = (
        *("timestamp", "model", "name", "kind", "detail", "reason", "filename", "tool_name"),
        *("file_id", "content_type", "tool_call_id", "approval_id", "decision", "decided_by"),
        *("code", "message", "user", "client", "class", "policy", "description", "currency"),
        *("source", "counter", "expires_at", "status", "result", "reasoning", "arguments"),
    )
    one: JsonObject = {word: example(word) for word in words}
    numbers: JsonObject = dict.fromkeys(("input_tokens", "output_tokens", "tokens", "calls"), 1)
    call: JsonObject = {**one, "arguments": {example("key"): example("value")}}
    return {
        **one,
        **numbers,
        "seq": 1,
        "role": role,
        "turn_id": TURN,
        "message_id": example("message_id"),
        "content": example("content"),
        "state": "completed",
        "amount": example("amount"),
        "percent": 1.0,
        example("key"): example("value"),
        "tool_calls": [call],
        "attachments": [one],
        "results": [one],
        "clients": [one],
        "models": [one],
    }


def made(kind: inspect.Type, name: str = "") -> Any:
    match kind:
        case inspect.StructType():
            fields = {
                field.name: made(field.type, field.name)
                for field in kind.fields
                if field.name not in _LEFT_OUT or field.required
            }
            return kind.cls(**fields)
        case inspect.StrType():
            return "idle" if name == "state" else example(name)
        case inspect.VarTupleType():
            if isinstance(kind.item_type, inspect.DictType):
                return tuple(anything(role) for role in ("user", "assistant", example("role")))
            return tuple(made(kind.item_type, name) for _ in range(2))
        case inspect.TupleType():
            return tuple(made(one, name) for one in kind.item_types)
        case inspect.DictType():
            return {"message_bytes_max": 1_000_000} if name == "limits" else anything()
        case inspect.UnionType():
            return made(kind.types[0], name)
        case inspect.BoolType():
            return name in ("damaged", "pinned", "cancelled")
        case inspect.BytesType():
            return b""
        case _:
            return 3 if name == "version" else 1


def hostile(shape: type[Reply] | type[Event]) -> Any:
    return made(inspect.type_info(shape))


def hostile_turn() -> Sequence[Event]:
    """One of every kind of event, and of every session event that is shown."""
    reasoning = messages.AgentThought(
        session_id=SESSION,
        turn_id=TURN,
        type="reasoning",
        call=0,
        offset=0,
        text=example("reasoning"),
    )
    prompt = messages.EntryAdded(session_id=SESSION, turn_id=TURN, entry=anything("user"))
    answer = {**anything(), "tool_calls": []}
    known = ("renamed", "model", "presence", "approval", "deleted", "quarantined", example("event"))
    notices = (
        messages.SessionEvent(session_id=SESSION, event=event, details=anything())
        for event in known
    )
    started = hostile(messages.TurnStarted)
    text = messages.TextDelta(
        session_id=SESSION, turn_id=TURN, call=0, offset=0, text=example("content")
    )
    whole = messages.EntryAdded(session_id=SESSION, turn_id=TURN, call=0, entry=answer)
    failed = messages.TurnFinished(
        session_id=SESSION, turn_id=TURN, state="failed", seq=1, error=anything(), usage=anything()
    )
    others = (messages.AgentThought, messages.ToolStarted, messages.ToolFinished)
    return (
        *(started, prompt, reasoning, text),
        *(hostile(kind) for kind in others),
        hostile(messages.ApprovalRequest),
        *notices,
        hostile(messages.ErrorReport),
        whole,
        failed,
    )


class HostileServer:
    def __init__(self, url: str) -> None:
        self.url = url
        self.failures: list[BaseException] = []

    def serve(self, wire: socket.socket) -> None:
        wire.settimeout(SECONDS_MAX)
        try:
            with wire, contextlib.suppress(PeerGone, OSError):
                self._talk(Talk(wire, piece_bytes=None))
        except BaseException as failure:
            self.failures.append(failure)

    def _talk(self, talk: Talk) -> None:
        talk.greet(example("greeting"))
        seq, _ = talk.expect(messages.Hello)
        talk.send(talk.connection.send_welcome(seq, hostile(messages.Welcome)))
        while True:
            received = talk.next_request()
            request = received.request
            if isinstance(request, messages.FileData):
                continue
            events = b""
            if isinstance(request, messages.Prompt):
                events = b"".join(map(encode_event, hostile_turn()))
            code = _CODES[type(request)]
            reply = talk.connection.send_reply(code, received.seq, _reply_to(request))
            talk.send(reply + events)


def _reply_to(request: Request) -> Reply:
    if isinstance(request, messages.HistoryRequest) and request.seq is not None:
        return messages.MessageRange(
            session_id=SESSION, seq=request.seq, offset=0, content=example("content"), size=1
        )
    if isinstance(request, messages.Ping):
        return messages.Pong(data=request.data)
    reply: Reply = hostile(REPLY_TYPES[_CODES[type(request)]])
    return reply


@contextmanager
def hostile_server() -> Iterator[HostileServer]:
    """For as many connections as there are."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = HostileServer(f"nplt://127.0.0.1:{listening.getsockname()[1]}")

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    wire, _ = listening.accept()
                    threading.Thread(target=server.serve, args=(wire,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server
        listening.shutdown(socket.SHUT_RDWR)
    if server.failures:
        raise server.failures[0]
