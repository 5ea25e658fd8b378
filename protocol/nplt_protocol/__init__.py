"""NPLT: the protocol between clients and servers, without I/O.

Import from here, from `messages` (the requests, replies and events) and from
`stream` (a connection on asyncio). `stream` is not imported here: an event
loop takes longer to load than everything else. The other modules may move.
The normative text is `protocol/SPEC.md`. Providers, storage and users are not
known in this package.
"""

from nplt_protocol import messages
from nplt_protocol.client_connection import ClientConnection
from nplt_protocol.codec import (
    HEARTBEAT,
    REPLY_CODES,
    REPLY_TYPES,
    decode_event,
    decode_plain_request,
    decode_reply,
    decode_request,
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
    PLAIN_ANSWERS,
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
    Heard,
    Received,
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
    HEADER,
    BrokenMessage,
    FragmentJoiner,
    Frame,
    FrameDecoder,
    Joined,
    encode_frame,
    encode_message,
)
from nplt_protocol.json_text import JsonObject, JsonValue, dump_json, load_json
from nplt_protocol.limits import FRAME_PAYLOAD_BYTES_MAX, WireLimits
from nplt_protocol.server_connection import ServerConnection

PROTOCOL_VERSION = 3
SPEC_VERSION = "3.2"

__all__ = [
    "FRAME_PAYLOAD_BYTES_MAX",
    "HEADER",
    "HEARTBEAT",
    "MORE",
    "PLAIN_ANSWERS",
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
    "Heard",
    "Joined",
    "JsonObject",
    "JsonValue",
    "LocalProtocolError",
    "MessageType",
    "ProtocolError",
    "Received",
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
