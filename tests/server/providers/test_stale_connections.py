"""A kept connection that the provider has closed meanwhile does not fail a call.

The request and the end of the connection cross on the wire: the client sends before it can
know. llama.cpp's server closes after each streamed answer, though it announces to keep
the connection, so there every call that follows another at once may meet this.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

import pytest
from tests.server.providers.contract import Scene, accumulated, deltas_of
from tests.server.providers.contract_stages import Api, EmulatorStage
from tests.vendors import Emulator, HangUp, emulator

from nplt_server.errors import ProviderUnavailable

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: on, for no time."""


class OneRequestPerConnection:
    """Passes on the first request of each connection and its answer. The next one on the same
    connection goes to nobody: the connection is closed, or reset, when it comes."""

    def __init__(self, target: Emulator, *, resets: bool) -> None:
        self._target = target
        self._resets = resets
        self._serving: set[asyncio.Task[None]] = set()
        self.connections = self.requests_lost = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Until all clients are gone."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await asyncio.gather(*self._serving)

    def _accept(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._serving.add(asyncio.create_task(self._serve(near, to_near)))

    async def _serve(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        if self._resets:
            end: socket.socket = to_near.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        far, to_far = await asyncio.open_connection("127.0.0.1", self._target.port)
        has_answered = asyncio.Event()
        answering = asyncio.create_task(_pass_on(far, to_near, has_answered))
        with suppress(ConnectionError):
            while request := await near.read(1 << 16):
                if has_answered.is_set():
                    self.requests_lost += 1
                    break
                to_far.write(request)
        await _close(to_far)
        await answering


async def _pass_on(
    far: asyncio.StreamReader, to_near: asyncio.StreamWriter, has_answered: asyncio.Event
) -> None:
    with suppress(ConnectionError):
        while answer := await far.read(1 << 16):
            has_answered.set()
            to_near.write(answer)
    await _close(to_near)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def _stage(
    vendors: Emulator, api: Api, url: str
) -> AsyncIterator[tuple[EmulatorStage, Scene]]:
    stage = EmulatorStage(vendors, api, url=url)
    async with aclosing(stage.provider):
        yield stage, stage.set("text")


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_a_request_that_meets_a_closed_connection_goes_out_again(
    api: Api, resets: bool
) -> None:
    async with emulator() as vendors:
        server = OneRequestPerConnection(vendors, resets=resets)
        async with server.listening() as url, _stage(vendors, api, url) as (stage, scene):
            for _ in range(3):
                assert accumulated(await deltas_of(stage, scene)).text == scene.text
        assert server.requests_lost > 0
        assert len(vendors.received) == 3


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_it_goes_out_again_once(api: Api) -> None:
    async with emulator() as vendors:
        server = OneRequestPerConnection(vendors, resets=False)
        async with server.listening() as url, _stage(vendors, api, url) as (stage, scene):
            await asyncio.gather(deltas_of(stage, scene), deltas_of(stage, scene))
            vendors.fail_next(HangUp())
            with pytest.raises(ProviderUnavailable):
                await deltas_of(stage, scene)
        assert (server.requests_lost, server.connections) == (1, 3)


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_a_new_connection_that_is_closed_is_a_failure(api: Api) -> None:
    async with emulator() as vendors, _stage(vendors, api, vendors.url) as (stage, scene):
        vendors.fail_next(HangUp())
        with pytest.raises(ProviderUnavailable):
            await deltas_of(stage, scene)
        assert len(vendors.received) == 1
