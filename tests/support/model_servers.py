"""HTTP servers that reply with the shapes of Ollama, vLLM, LiteLLM, OpenRouter and LM Studio.

The shapes are those of their documents (`nplt_server.providers.server_details` names them), and
LiteLLM's is cut from the replies of its proxy. They answer chat completions too: whatever is
asked, the answer is "ok".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

Body: TypeAlias = dict[str, Any]
Route: TypeAlias = "Body | Callable[[Body], Body | tuple[int, Body]]"


class ModelServer:
    def __init__(self, routes: dict[str, Route]) -> None:
        """`routes`: what is replied, by path; a function is given the body of the request."""
        self.asked: list[tuple[str, Body]] = []
        self.headers: list[dict[str, str]] = []
        self._routes = routes
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.reply(self, {})

            def do_POST(self) -> None:
                size = int(self.headers.get("content-length") or 0)
                server.reply(self, json.loads(self.rfile.read(size) or b"{}"))

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._http.server_port
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def paths(self, path: str) -> list[Body]:
        """The bodies of the requests to that path."""
        return [body for asked, body in self.asked if asked == path]

    def reply(self, request: BaseHTTPRequestHandler, body: Body) -> None:
        self.asked.append((request.path, body))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        route = self._routes.get(request.path)
        if route is None and request.path == "/v1/chat/completions":
            self._stream(request)
            return
        answer = route(body) if callable(route) else route
        status, said = answer if isinstance(answer, tuple) else (200, answer)
        if said is None:
            status, said = 404, {"error": {"message": "not found"}}
        data = json.dumps(said).encode()
        self._send(request, status, "application/json", data)

    def _stream(self, request: BaseHTTPRequestHandler) -> None:
        chunks: list[Body] = [
            {"choices": [{"index": 0, "delta": {"content": "ok"}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        ]
        data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self._send(request, 200, "text/event-stream", data.encode())

    def _send(self, request: BaseHTTPRequestHandler, status: int, kind: str, data: bytes) -> None:
        with suppress(ConnectionError):  # whoever asked has gone
            request.send_response(status)
            request.send_header("content-type", kind)
            request.send_header("content-length", str(len(data)))
            request.end_headers()
            request.wfile.write(data)

    def run(self) -> None:
        self._http.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def model_server(routes: dict[str, Route]) -> Iterator[ModelServer]:
    server = ModelServer(routes)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def listed(*entries: Body) -> Body:
    return {"object": "list", "data": list(entries)}


VLLM: dict[str, Route] = {
    "/v1/models": listed(
        {"id": "qwen", "object": "model", "owned_by": "vllm", "root": "qwen", "max_model_len": 8192}
    )
}
OPENROUTER: dict[str, Route] = {
    "/v1/models": listed(
        {
            "id": "maker/talker",
            "context_length": 200_000,
            "architecture": {"input_modalities": ["text", "image"], "tokenizer": "Other"},
            "pricing": {"prompt": "0.00000125", "completion": "0.00001", "request": "0"},
            "top_provider": {"context_length": 64_000, "max_completion_tokens": 16_000},
            "supported_parameters": ["max_tokens", "temperature"],
        },
        {
            "id": "openrouter/auto",
            "context_length": 2_000_000,
            "architecture": {"input_modalities": ["text"]},
            "pricing": {"prompt": "-1", "completion": "-1"},
            "supported_parameters": ["max_tokens", "tools"],
        },
    )
}
LITELLM: dict[str, Route] = {
    "/v1/models": listed(
        {"id": "mine", "object": "model", "created": 1_677_610_602, "owned_by": "openai"},
        {"id": "unknown", "object": "model", "created": 1_677_610_602, "owned_by": "openai"},
    ),
    "/model/info": {
        "data": [
            {
                "model_name": "mine",
                "litellm_params": {"model": "openai/gpt-4o-mini"},
                "model_info": {
                    "max_tokens": 16_384,
                    "max_input_tokens": 100_000,
                    "max_output_tokens": 16_384,
                    "input_cost_per_token": 1.5e-7,
                    "output_cost_per_token": 6e-7,
                    "cache_read_input_token_cost": 7.5e-8,
                    "supports_vision": True,
                    "supports_function_calling": True,
                },
            },
            {
                "model_name": "unknown",
                "litellm_params": {"model": "openai/made-up"},
                "model_info": {"max_input_tokens": None, "supports_vision": None},
            },
        ]
    },
}
LM_STUDIO: dict[str, Route] = {
    "/v1/models": listed({"id": "qwen/q", "object": "model", "owned_by": "organization_owner"}),
    "/api/v0/models": listed(
        {
            "id": "qwen/q",
            "type": "vlm",
            "state": "loaded",
            "max_context_length": 131_072,
            "loaded_context_length": 12_000,
        }
    ),
}


def ollama(
    *, window: int, parameters: str = "", capabilities: tuple[str, ...] = ()
) -> dict[str, Route]:
    """Its one model is loaded by a request without a prompt, with that window."""
    loaded: list[Body] = []

    def generate(body: Body) -> Body:
        loaded.append({"name": body["model"], "model": body["model"], "context_length": window})
        return {"model": body["model"], "response": "", "done": True, "done_reason": "load"}

    def show(body: Body) -> Body:
        return {
            "parameters": parameters,
            "capabilities": ["completion", *capabilities],
            "model_info": {"general.architecture": "gemma3", "gemma3.context_length": 131_072},
        }

    def running(body: Body) -> Body:
        return {"models": loaded}

    return {
        "/v1/models": listed({"id": "gemma3:4b", "object": "model", "owned_by": "library"}),
        "/api/ps": running,
        "/api/show": show,
        "/api/generate": generate,
    }
