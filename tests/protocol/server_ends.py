"""The server's end of a connection, brought into a state by what it heard."""

from __future__ import annotations

from tests.protocol.fake_link import WELCOME

from nplt_protocol import (
    ErrorCode,
    Received,
    RequestError,
    RequestRefused,
    ServerConnection,
    WireLimits,
    encode_frame,
)

BUSY = RequestError(ErrorCode.BUSY, "Later.")


def structured(limits: WireLimits = WireLimits()) -> ServerConnection:  # noqa: B008 (frozen)
    connection = ServerConnection(limits)
    connection.receive_data(encode_frame(0x02, 1))
    connection.send_welcome(1, WELCOME)
    return connection


def only(received: list[Received]) -> Received:
    (item,) = received
    return item


def refused(received: list[Received]) -> RequestRefused:
    item = only(received)
    assert isinstance(item, RequestRefused)
    return item
