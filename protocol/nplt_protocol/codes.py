"""The one-byte message types and the error codes.

Other people's programs depend on these codes. A code never gets a second
meaning; a retired code keeps its name here.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class MessageType(IntEnum):
    # Requests and their replies.
    CHAT_TEXT = 0x01
    HELLO = 0x02
    ERROR = 0x03
    PING = 0x04
    PONG = 0x05
    CANCEL = 0x06
    PROMPT = 0x07
    ATTACH = 0x08
    DETACH = 0x09
    AGENT_THOUGHT = 0x0A
    DOWNLOAD_OFFER = 0x0C
    FILE_DATA = 0x0D
    FILE_METADATA = 0x0E
    MODEL_SWITCH = 0x0F
    HISTORY_REQUEST = 0x10
    CLEAR_REQUEST = 0x11
    SESSION_LIST = 0x14
    SESSION_SWITCH = 0x15
    SESSION_NEW = 0x16
    SESSION_DELETE = 0x17
    CLIENT_NOTE = 0x18
    SESSION_UPDATE = 0x19
    SESSION_FORK = 0x1A
    SEARCH = 0x1B
    CONTEXT_REQUEST = 0x1C
    APPROVAL = 0x1D
    STATUS = 0x1E

    # Events.
    TURN_STARTED = 0x20
    TEXT_DELTA = 0x21
    TOOL_STARTED = 0x23
    TOOL_FINISHED = 0x24
    TURN_FINISHED = 0x25
    SESSION_EVENT = 0x26
    APPROVAL_REQUEST = 0x27
    ENTRY = 0x28
    SESSION_CHANGED = 0x29

    # Requests and their replies.
    COMPACT = 0x30
    TOOLS = 0x31
    USAGE = 0x32
    FILE_GET = 0x33
    IMPORT = 0x34
    ROLLBACK = 0x35
    REDACT = 0x36
    REPAIR = 0x37
    WATCH = 0x38
    SEEN = 0x39


MORE = 0x80
"""The bit of the type byte that means: another frame of this message follows."""

PLAIN_REQUESTS = frozenset(
    {
        MessageType.CHAT_TEXT,
        MessageType.FILE_DATA,
        MessageType.FILE_METADATA,
        MessageType.MODEL_SWITCH,
        MessageType.HISTORY_REQUEST,
        MessageType.CLEAR_REQUEST,
        MessageType.SESSION_LIST,
        MessageType.SESSION_SWITCH,
        MessageType.SESSION_NEW,
        MessageType.SESSION_DELETE,
        MessageType.CLIENT_NOTE,
    }
)
"""All types that a version 2 client sends."""

PLAIN_REPLIES = frozenset(
    {MessageType.CHAT_TEXT, MessageType.AGENT_THOUGHT, MessageType.DOWNLOAD_OFFER}
)
"""All types that may be sent to a version 2 client, which disconnects at any other."""


class ErrorCode(StrEnum):
    MALFORMED = "malformed"
    UNSUPPORTED = "unsupported"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    AMBIGUOUS = "ambiguous"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    BUSY = "busy"
    RATE_LIMITED = "rate_limited"
    PROVIDER_REFUSED = "provider_refused"
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    SCHEMA_MISMATCH = "schema_mismatch"
    UNAVAILABLE = "unavailable"
    SHUTTING_DOWN = "shutting_down"
    READ_ONLY = "read_only"
    INTERNAL = "internal"


RETRYABLE = frozenset(
    {
        ErrorCode.BUSY,
        ErrorCode.RATE_LIMITED,
        ErrorCode.PROVIDER_UNAVAILABLE,
        ErrorCode.UNAVAILABLE,
        ErrorCode.SHUTTING_DOWN,
    }
)
"""The same request may succeed later, unchanged."""
