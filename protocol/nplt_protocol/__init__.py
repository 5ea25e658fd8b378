"""NPLT: the protocol between clients and servers, without I/O.

Import from here, from `messages` (the requests, replies and events) and from
`stream` (a connection on asyncio). `stream` is not imported here, because an
event loop takes longer to load than everything else. The other modules may move.
Names are loaded when they are first used: a server that starts needs few of them.
The specification is `protocol/SPEC.md`. This package knows nothing of providers,
storage and users.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nplt_protocol import messages
    from nplt_protocol.client_connection import ClientConnection
    from nplt_protocol.codec import (
        HEARTBEAT,
        REPLY_CODES,
        decode_event,
        decode_plain_request,
        decode_reply,
        decode_request,
        dump_json,
        encode_error,
        encode_event,
        encode_plain_request,
        encode_reply,
        encode_request,
        from_object,
        to_object,
    )
    from nplt_protocol.codes import (
        MORE,
        PLAIN_REPLIES,
        PLAIN_REQUESTS,
        RETRYABLE,
        ErrorCode,
        MessageType,
    )
    from nplt_protocol.connection import (
        ConnectionRefused,
        Dialect,
        ErrorReceived,
        EventReceived,
        Received,
        ReceivedByClient,
        ReplyReceived,
        RequestReceived,
        RequestRefused,
        State,
        TextReceived,
        ThoughtReceived,
    )
    from nplt_protocol.errors import (
        LocalProtocolError,
        ProtocolError,
        RemoteProtocolError,
        RequestError,
    )
    from nplt_protocol.frames import (
        FRAME_PAYLOAD_BYTES_MAX,
        HEADER,
        BrokenMessage,
        FragmentJoiner,
        Frame,
        FrameDecoder,
        Joined,
        WireLimits,
        encode_frame,
        encode_message,
    )
    from nplt_protocol.json_text import JsonObject, JsonValue
    from nplt_protocol.messages import REPLY_TYPES
    from nplt_protocol.payloads import load_json
    from nplt_protocol.server_connection import ServerConnection

PROTOCOL_VERSION = 3
SPEC_VERSION = "3.2"

__all__ = [
    "FRAME_PAYLOAD_BYTES_MAX",
    "HEADER",
    "HEARTBEAT",
    "MORE",
    "PLAIN_REPLIES",
    "PLAIN_REQUESTS",
    "PROTOCOL_VERSION",
    "REPLY_CODES",
    "REPLY_TYPES",
    "RETRYABLE",
    "SPEC_VERSION",
    "BrokenMessage",
    "ClientConnection",
    "ConnectionRefused",
    "Dialect",
    "ErrorCode",
    "ErrorReceived",
    "EventReceived",
    "FragmentJoiner",
    "Frame",
    "FrameDecoder",
    "Joined",
    "JsonObject",
    "JsonValue",
    "LocalProtocolError",
    "MessageType",
    "ProtocolError",
    "Received",
    "ReceivedByClient",
    "RemoteProtocolError",
    "ReplyReceived",
    "RequestError",
    "RequestReceived",
    "RequestRefused",
    "ServerConnection",
    "State",
    "TextReceived",
    "ThoughtReceived",
    "WireLimits",
    "decode_event",
    "decode_plain_request",
    "decode_reply",
    "decode_request",
    "dump_json",
    "encode_error",
    "encode_event",
    "encode_frame",
    "encode_message",
    "encode_plain_request",
    "encode_reply",
    "encode_request",
    "from_object",
    "load_json",
    "messages",
    "to_object",
]

_NAMES_OF = {
    "nplt_protocol.client_connection": ("ClientConnection",),
    "nplt_protocol.codec": (
        "HEARTBEAT",
        "REPLY_CODES",
        "decode_event",
        "decode_plain_request",
        "decode_reply",
        "decode_request",
        "dump_json",
        "encode_error",
        "encode_event",
        "encode_plain_request",
        "encode_reply",
        "encode_request",
        "from_object",
        "to_object",
    ),
    "nplt_protocol.codes": (
        "ErrorCode",
        "MORE",
        "MessageType",
        "PLAIN_REPLIES",
        "PLAIN_REQUESTS",
        "RETRYABLE",
    ),
    "nplt_protocol.connection": (
        "ConnectionRefused",
        "Dialect",
        "ErrorReceived",
        "EventReceived",
        "Received",
        "ReceivedByClient",
        "ReplyReceived",
        "RequestReceived",
        "RequestRefused",
        "State",
        "TextReceived",
        "ThoughtReceived",
    ),
    "nplt_protocol.errors": (
        "LocalProtocolError",
        "ProtocolError",
        "RemoteProtocolError",
        "RequestError",
    ),
    "nplt_protocol.frames": (
        "BrokenMessage",
        "FRAME_PAYLOAD_BYTES_MAX",
        "FragmentJoiner",
        "Frame",
        "FrameDecoder",
        "HEADER",
        "Joined",
        "WireLimits",
        "encode_frame",
        "encode_message",
    ),
    "nplt_protocol.json_text": ("JsonObject", "JsonValue"),
    "nplt_protocol.messages": ("REPLY_TYPES",),
    "nplt_protocol.payloads": ("load_json",),
    "nplt_protocol.server_connection": ("ServerConnection",),
}
"""The module that defines each name; it is imported when the name is first used."""
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "messages":
        return import_module("nplt_protocol.messages")
    if (module := _MODULE_OF.get(name)) is not None:
        value: object = getattr(import_module(module), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
