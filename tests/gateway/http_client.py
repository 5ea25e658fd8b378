"""A client of HTTP that shares no code with the server: requests and responses as bytes."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

ECHO = "offline/echo"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


def request(
    url: str,
    method: str = "GET",
    *,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=30)
    target = f"{place.path}?{place.query}" if place.query else place.path
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    usual = {"content-type": "application/json"} if data is not None else {}
    try:
        connection.request(method, target, data, {**usual, **(headers or {})})
        return answer_of(connection.getresponse())
    finally:
        connection.close()


def answer_of(response: HTTPResponse) -> Answer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


def connect(url: str) -> socket.socket:
    place = urlsplit(url)
    return socket.create_connection((place.hostname, place.port), timeout=30)


def exchange(url: str, data: bytes) -> bytes:
    """Sends the bytes and returns all that comes until the server closes the connection."""
    with connect(url) as sock:
        sock.sendall(data)
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    received = b""
    while piece := sock.recv(65_536):
        received += piece
    return received


def complete(url: str, text: str, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    body = {"model": ECHO, "messages": [{"role": "user", "content": text}], **fields}
    return request(f"{url}v1/chat/completions", "POST", body=body, headers=headers)


def begin_and_leave(url: str, session_id: str, text: str, headers: dict[str, str]) -> None:
    body = json.dumps({"stream": True, "messages": [{"role": "user", "content": text}]})
    lines = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Content-Length": len(body),
        "X-Nplt-Conversation": session_id,
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with connect(url) as sock:
        sock.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n{body}".encode())
        received = b""
        while b"assistant" not in received:
            received += sock.recv(65_536)
