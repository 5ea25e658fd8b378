"""An HTTP server on loopback that answers each request with what a test says, for the words and
shapes of real servers that no emulator has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


def chat(text: str, finish_reason: str = "stop", *, tokens: int = 3) -> Reply:
    """A streamed answer of `POST /chat/completions`."""
    chunks: list[Json] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]},
        {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": tokens}},
    ]
    lines = [b"data: " + orjson.dumps({"object": "chat.completion.chunk", **c}) for c in chunks]
    return events(*lines, b"data: [DONE]")


def chat_calls(*calls: tuple[str, str, str], text: str = "") -> Reply:
    """A streamed answer of `POST /chat/completions` that calls tools: id, name and arguments of
    each call."""
    asked = [
        {
            "index": index,
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for index, (call_id, name, arguments) in enumerate(calls)
    ]
    chunks: list[Json] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text or None}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": asked}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 3}},
    ]
    lines = [b"data: " + orjson.dumps({"object": "chat.completion.chunk", **c}) for c in chunks]
    return events(*lines, b"data: [DONE]")


def message(text: str, stop_reason: str = "end_turn", *, tokens: int = 3) -> Reply:
    """A streamed answer of Anthropic's `POST /v1/messages`."""
    parts: list[Json] = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 20, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": text},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason},
            "usage": {"output_tokens": tokens},
        },
        {"type": "message_stop"},
    ]
    return events(*(b"event: " + p["type"].encode() + b"\ndata: " + orjson.dumps(p) for p in parts))


def events(*lines: bytes) -> Reply:
    body = b"".join(line + b"\n\n" for line in lines)
    return Reply(body=body, content_type="text/event-stream")


def refusal(status: int, message: str, *, headers: dict[str, str] | None = None) -> Reply:
    body = orjson.dumps({"error": {"message": message, "type": "invalid_request_error"}})
    return Reply(status=status, body=body, headers=headers or {})


MODELS = Reply(body=b'{"object":"list","data":[{"id":"m","object":"model"}]}')


class ScriptedVendor:
    """`requests`: the bodies of the POSTs so far. Each is answered by the next of `replies`, the
    last one again and again."""

    def __init__(self, *replies: Reply | Callable[[Json], Reply], port: int = 0) -> None:
        self.replies: list[Reply | Callable[[Json], Reply]] = [*replies]
        self.requests: list[Json] = []
        self.gets = 0
        vendor = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                vendor.gets += 1
                self._send(MODELS)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                vendor.requests.append(orjson.loads(body))
                replies = vendor.replies
                reply = replies.pop(0) if len(replies) > 1 else replies[0]
                self._send(reply if isinstance(reply, Reply) else reply(vendor.requests[-1]))

            def _send(self, reply: Reply) -> None:
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.content_type)
                self.send_header("Content-Length", str(len(reply.body)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def provider(self, name: str = "box", **more: object) -> Json:
        """Settings of a provider at this server."""
        base = {"id": name, "type": "openai", "api": "chat", "base_url": self.url}
        return {**base, "models": ["m"], **more}

    def claude(self, name: str = "claude", **more: object) -> Json:
        base = {"id": name, "type": "anthropic", "base_url": self.url.removesuffix("/v1")}
        return {**base, "models": ["m"], **more}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def vendor(*replies: Reply | Callable[[Json], Reply], port: int = 0) -> Iterator[ScriptedVendor]:
    scripted = ScriptedVendor(*replies, port=port)
    try:
        yield scripted
    finally:
        scripted.close()
