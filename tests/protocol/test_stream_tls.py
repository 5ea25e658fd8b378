"""The stream over TLS: the same words, and no half-closed connections."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from tests.protocol.loopback import greet, listening

from nplt_protocol import (
    ClientConnection,
    ConnectionRefused,
    ReceivedByClient,
    ReplyReceived,
    RequestReceived,
    ServerConnection,
    TextReceived,
    WireLimits,
    messages,
)
from nplt_protocol.messages import MessageRange
from nplt_protocol.stream import FrameStream, open_stream

LIMITS = WireLimits()
OPENSSL = shutil.which("openssl")
ASK_FOR_A_CERTIFICATE = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
)
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="needs openssl to make a certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [OPENSSL or "openssl", *ASK_FOR_A_CERTIFICATE.split()],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


def client_side(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate / "cert.pem"))


async def test_all_messages_cross_over_tls_as_without(certificate: Path) -> None:
    async with listening(LIMITS, tls=server_side(certificate)) as (port, streams):
        connection = ClientConnection()
        client: FrameStream[ReceivedByClient] = await open_stream(
            "127.0.0.1", port, connection, limits=LIMITS, ssl=client_side(certificate)
        )
        server = await streams.get()
        assert isinstance(server.connection, ServerConnection)
        await greet(client, connection, server)
        long_text = "x" * 900_000
        client.send(connection.send(messages.HistoryRequest(seq=1))[1])
        (asked,) = await server.receive()
        assert isinstance(asked, RequestReceived)
        sent = MessageRange(session_id="s", seq=1, offset=0, content=long_text, size=900_000)
        server.send(server.connection.send_reply(asked.type, asked.seq, sent))
        (reply,) = await client.receive()
        assert isinstance(reply, ReplyReceived)
        assert reply.reply == sent
        await client.close()
        assert await server.receive() == []
        await server.wait_closed()


async def test_queued_data_arrives_before_a_tls_connection_closes(certificate: Path) -> None:
    async with listening(LIMITS, tls=server_side(certificate)) as (port, streams):
        client: FrameStream[ReceivedByClient] = await open_stream(
            "127.0.0.1", port, ClientConnection(), limits=LIMITS, ssl=client_side(certificate)
        )
        server = await streams.get()
        assert isinstance(server.connection, ServerConnection)
        server.send(server.connection.send_text("we are closing"))
        closing = asyncio.create_task(server.close())
        assert await client.receive() == [TextReceived(text="we are closing")]
        assert await client.receive() == []
        await client.close()
        await closing


async def test_a_tls_client_hello_on_a_port_without_tls_is_refused_with_a_reason(
    certificate: Path,
) -> None:
    async with listening(LIMITS) as (port, streams):
        opening = asyncio.create_task(
            open_stream(
                "127.0.0.1", port, ClientConnection(), limits=LIMITS, ssl=client_side(certificate)
            )
        )
        server = await streams.get()
        (refused,) = await server.receive()
        assert isinstance(refused, ConnectionRefused)
        assert refused.reason == "This port speaks NPLT without TLS, and what came is a TLS hello."
        server.abort()
        with pytest.raises(OSError):  # noqa: PT011 (which one is the system's choice)
            await opening
