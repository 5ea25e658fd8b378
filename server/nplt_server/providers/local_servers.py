"""Servers with models on this machine: Ollama, LM Studio, llama.cpp and the like.

They are looked for by their ports, on loopback only: one GET of the list of models, without a
key, and what the server says of them besides (`server_details`). A port where nobody listens is
refused at once; a server that is silent is given up soon. Their models are listed, and answer
when they are named; none is ever chosen for anybody.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from contextlib import closing
from typing import Final

import anyio
import orjson

from nplt_protocol import JsonObject, JsonValue
from nplt_server.providers.build import ProviderBuilder
from nplt_server.providers.model_lists import ModelLister, ModelLists
from nplt_server.providers.models import ListedModel
from nplt_server.providers.server_details import read_with_details
from nplt_server.settings import AnthropicSettings, OpenAISettings, Settings

log = logging.getLogger(__name__)

_PROBE_SECONDS: Final = 1.0
_PROBE_AGAIN_SECONDS: Final = 5.0
_PROBE_BYTES_MAX: Final = 1024 * 1024


class LocalServers:
    def __init__(self, settings: Settings, builder: ProviderBuilder, lists: ModelLists) -> None:
        self._ports = {
            name: port
            for name, port in (settings.local_servers or {}).items()
            if name not in {each.id for each in settings.providers}
        }
        self._builder = builder
        self._lists = lists
        self._addresses = {
            each.base_url
            for each in settings.providers
            if isinstance(each, OpenAISettings | AnthropicSettings)
        }
        self._providers: dict[str, ModelLister] = {}

    @property
    def providers(self) -> tuple[ModelLister, ...]:
        """The servers that were found or named so far."""
        return tuple(self._providers.values())

    def has_found(self, name: str) -> bool:
        """Whether the provider of that name is one of these, and not of the settings."""
        return name in self._providers

    def begin(self) -> dict[str, int]:
        """The ports to look at; from now on the lists say that they are asked."""
        due = self._lists.begin_to_ask(self._ports.keys(), again_seconds=_PROBE_AGAIN_SECONDS)
        return {name: self._ports[name] for name in due}

    def provider(self, name: str) -> ModelLister | None:
        """The provider of a server, found or not: a conversation that has chosen one of its
        models is never answered by another one because the server is down."""
        if name not in self._ports:
            return None
        if name not in self._providers:
            base_url = f"http://127.0.0.1:{self._ports[name]}/v1"
            settings = OpenAISettings(
                id=name, base_url=base_url, api="chat", tokens_field="max_tokens"
            )
            self._providers[name] = self._builder.build_vendor(settings)
        return self._providers[name]

    async def find(self, ports: Mapping[str, int]) -> None:
        async with anyio.create_task_group() as looking:
            for name, port in ports.items():
                looking.start_soon(self._look, name, port)

    async def _look(self, name: str, port: int) -> None:
        own_names = (f"http://127.0.0.1:{port}/v1", f"http://localhost:{port}/v1")
        is_configured = not self._addresses.isdisjoint(own_names)
        try:
            models = None if is_configured else await probe(port)
        finally:
            self._lists.asked(name)
        if models is None:
            self._lists.forget(name)
            return
        provider = self.provider(name)
        assert provider is not None
        log.debug("%s is on this machine at port %d: %d models", name, port, len(models))
        self._lists.add(provider)
        self._lists.take(provider, models)


async def probe(port: int) -> tuple[ListedModel, ...] | None:
    """The models of the server at that port of this machine; `None` if there is none."""

    async def fetch(path: str, body: JsonObject | None) -> JsonValue:
        return await _fetch(port, path, body)

    try:
        return await read_with_details(await fetch("/v1/models", None), fetch) or None
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
        return None


async def _fetch(port: int, path: str, body: JsonObject | None) -> JsonValue:
    """Raises `OSError`, `EOFError`, `ValueError` or `LimitOverrunError`."""
    sent = b"" if body is None else orjson.dumps(body)
    line = f"{'GET' if body is None else 'POST'} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n"
    if body is not None:
        line += f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n"
    async with asyncio.timeout(_PROBE_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(f"{line}\r\n".encode() + sent)
            head = await reader.readuntil(b"\r\n\r\n")
            if not re.match(rb"HTTP/1\.\d 200\b", head):
                raise ValueError("the server refuses")
            answer: JsonValue = orjson.loads(await _body(reader, head))
            return answer


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """Reads the body without waiting for the end of the connection, which some servers keep
    open. A body that is too long is cut, and so is no JSON, or refused."""
    if not re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        length_header = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        length = int(length_header[1]) if length_header else _PROBE_BYTES_MAX
        try:
            return await reader.readexactly(min(length, _PROBE_BYTES_MAX))
        except asyncio.IncompleteReadError as end:
            return end.partial
    whole, room = bytearray(), _PROBE_BYTES_MAX
    while (line := await reader.readline()) and (size := int(line.partition(b";")[0], 16)):
        room -= len(line) + size
        if room < 0:
            raise ValueError("the list is too long")
        whole += await reader.readexactly(size)
        await reader.readline()
    return bytes(whole)
