"""A server of chat completions with one rule of its own, which it enforces as it likes.

A real HTTP server in a thread. `rule` is given the body of each request and returns the status and
the JSON with which it is refused, or nothing. It speaks like servers that people run themselves:
their sentences are given by the tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

import orjson

Body: TypeAlias = dict[str, Any]
Refusal: TypeAlias = tuple[int, object]
Rule: TypeAlias = Callable[[Body], Refusal | None]


def refused(message: str, status: int = 400, **fields: object) -> Refusal:
    return status, {"error": {"message": message, "type": "invalid_request_error", **fields}}


class StrictServer:
    def __init__(self, rule: Rule | None = None) -> None:
        self.rule: Rule = rule or (lambda body: None)
        self.received: list[Body] = []
        self.calls_tool: str | None = None
        """The id of the call that it makes when it is offered tools after a prompt."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def answer(self, body: Body) -> list[Body]:
        last = body["messages"][-1]
        if self.calls_tool and body.get("tools") and last["role"] == "user":
            function = {"name": body["tools"][0]["function"]["name"], "arguments": "{}"}
            call = {"index": 0, "id": self.calls_tool, "type": "function", "function": function}
            return [_chunk({"tool_calls": [call]}), _chunk({}, "tool_calls")]
        return [_chunk({"content": "fine"}), _chunk({}, "stop")]


def _chunk(delta: Body, reason: str | None = None) -> Body:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


@contextmanager
def strict_server(rule: Rule | None = None) -> Iterator[StrictServer]:
    server = StrictServer(rule)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
            server.received.append(body)
            refusal = server.rule(body)
            if refusal is not None:
                self._send(refusal[0], "application/json", orjson.dumps(refusal[1]))
                return
            events = [b"data: " + orjson.dumps(each) for each in server.answer(body)]
            self._send(200, "text/event-stream", b"\n\n".join((*events, b"data: [DONE]")) + b"\n\n")

        def do_GET(self) -> None:
            self._send(200, "application/json", b'{"data": [{"id": "model"}]}')

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.port = http.server_address[1]
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
