"""A client and a server joined in memory; bytes cross in pieces of any size."""

from __future__ import annotations

from dataclasses import dataclass, field

from nplt_protocol import ClientConnection, Dialect, Received, ReceivedByClient, ServerConnection
from nplt_protocol.messages import Hello, Welcome

WELCOME = Welcome(
    version=3,
    server="nplt/0.1",
    user="ada",
    session_id="s1",
    model="offline/echo",
    models=("offline/echo",),
    limits={"message_bytes_max": 1024 * 1024},
)


@dataclass
class FakeLink:
    client: ClientConnection = field(default_factory=ClientConnection)
    server: ServerConnection = field(default_factory=ServerConnection)
    piece_bytes: int = 1 << 30

    def to_server(self, data: bytes) -> list[Received]:
        """What the server hears; what it answers by itself reaches the client."""
        received: list[Received] = []
        for piece in self._pieces(data):
            received += self.server.receive_data(piece)
        return received

    def to_client(self, data: bytes) -> list[ReceivedByClient]:
        received: list[ReceivedByClient] = []
        for piece in self._pieces(data):
            received += self.client.receive_data(piece)
        return received

    def _pieces(self, data: bytes) -> list[bytes]:
        return [data[at : at + self.piece_bytes] for at in range(0, len(data), self.piece_bytes)]


def welcomed(piece_bytes: int = 1 << 30) -> FakeLink:
    """Both sides STRUCTURED, the greeting heard."""
    link = FakeLink(piece_bytes=piece_bytes)
    link.to_client(link.server.send_text("welcome to nplt"))
    (hello,) = link.to_server(link.client.send_hello(Hello(client="test/1.0")))
    link.to_client(link.server.send_welcome(getattr(hello, "seq"), WELCOME))  # noqa: B009
    return link


def plain(piece_bytes: int = 1 << 30) -> FakeLink:
    return FakeLink(client=ClientConnection(Dialect.PLAIN), piece_bytes=piece_bytes)
