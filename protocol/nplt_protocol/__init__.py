"""NPLT on the wire: what may be said between a client and a server.

Values for requests, replies and events; bytes to frames, frames to messages,
messages to values, and back; two connections without I/O. The one door to
I/O, `nplt_protocol.stream`, is imported by those who need it: an event loop
takes longer to load than all the rest. The normative text is
`protocol/SPEC.md`. Nothing here knows providers, storage, users or what a
conversation is.
"""

from nplt_protocol.client_connection import ClientConnection
from nplt_protocol.codec import (
    REPLY_TYPES,
    ReplyForm,
    decode_event,
    decode_reply,
    decode_request,
    encode_error,
    encode_event,
    encode_reply,
    encode_request,
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
from nplt_protocol.fragments import FragmentJoiner, encode_message
from nplt_protocol.frames import HEADER, Frame, FrameDecoder, encode_frame
from nplt_protocol.json_text import dump_json, load_json
from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_protocol.limits import FRAME_PAYLOAD_BYTES_MAX, WireLimits
from nplt_protocol.plain import HEARTBEAT, decode_plain_request, encode_plain_request
from nplt_protocol.server_connection import ServerConnection
from nplt_protocol.shapes import read, write

PROTOCOL_VERSION = 3
SPEC_VERSION = "3.0"

__all__ = [
    "FRAME_PAYLOAD_BYTES_MAX",
    "HEADER",
    "HEARTBEAT",
    "MORE",
    "PLAIN_ANSWERS",
    "PLAIN_REQUESTS",
    "PROTOCOL_VERSION",
    "REPLY_TYPES",
    "RETRYABLE",
    "SPEC_VERSION",
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
    "JsonObject",
    "JsonValue",
    "LocalProtocolError",
    "MessageType",
    "ProtocolError",
    "Received",
    "RemoteProtocolError",
    "ReplyForm",
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
    "load_json",
    "read",
    "write",
]
