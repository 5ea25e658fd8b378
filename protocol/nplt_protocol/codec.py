"""Messages to bytes, and the payload of a whole message back to a value.

Requests are decoded strictly: an error names the field and says what is wrong
with it. Messages from a server may be newer than this code, so unknown fields,
events and enum values are accepted. Encoding a message that is longer than the
limit is a bug on this side (LocalProtocolError); a caller that knows what may
be truncated does it beforehand. The connections, not this module, match replies
to requests and check the order of messages.

An ErrorReport and a SessionEvent keep in `details` all keys that are not fields
of theirs. In the JSON, `details` is flattened into the object.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import msgspec

from nplt_protocol import messages
from nplt_protocol.codes import PLAIN_REQUESTS, ErrorCode, MessageType
from nplt_protocol.errors import LocalProtocolError, RequestError
from nplt_protocol.frames import (
    FRAME_PAYLOAD_BYTES_MAX,
    HEADER,
    WireLimits,
    encode_frame,
    encode_message,
)
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    EVENT_TYPES,
    NOT_BLANK,
    REPLY_TYPES,
    REQUEST_TYPES,
    ClientNote,
    ErrorReport,
    Event,
    FileData,
    HistoryRequest,
    Import,
    Message,
    ModelSwitch,
    Ping,
    Prompt,
    Reply,
    Request,
    SessionEvent,
    SessionUpdate,
)
from nplt_protocol.payloads import decode_text, load_json

M = TypeVar("M", bound=Message)

MESSAGE_BYTES_MAX = WireLimits().message_bytes_max
METADATA_BYTES_MAX = 2_048

_encode_json = msgspec.json.Encoder().encode

FROM_SERVER = WireLimits(json_depth_max=128, json_keys_max=1_000_000)
"""The limits for replies and events: a long page has more keys than any request."""

_DIGITS_MAX = 9

HEARTBEAT = b"HEARTBEAT"
"""The keepalive text of the plain dialect. It gets no reply."""


REPLY_CODES = {
    MessageType.CHAT_TEXT: MessageType.PROMPT,
    MessageType.PING: MessageType.PONG,
}
"""A reply has the type of its request, except for these."""

MESSAGE_TYPES: dict[int, MessageType] = {int(code): code for code in MessageType}
"""A lookup here takes a tenth of the time of `MessageType(code)`."""

_JSON_REQUESTS: dict[int, type[Request]] = {
    int(code): shape
    for code, shape in REQUEST_TYPES.items()
    if shape not in (Ping, FileData, ClientNote)
}
_EVENTS: dict[int, type[Event]] = {int(code): shape for code, shape in EVENT_TYPES.items()}
REQUEST_CODES = {shape: code for code, shape in REQUEST_TYPES.items()}
_CODES_OF_EVENTS: dict[type[Event], MessageType] = {
    **{shape: code for code, shape in EVENT_TYPES.items()},
    messages.EncodedEntryAdded: MessageType.ENTRY,
}


# Encoding.


def encode_request(
    request: Request, seq: int, *, message_bytes_max: int = MESSAGE_BYTES_MAX
) -> bytes:
    return _encode(REQUEST_CODES[type(request)], seq, _request(request), message_bytes_max)


def encode_plain_request(request: Request, seq: int) -> bytes:
    if isinstance(request, Prompt):
        text = request.text.encode()
        if text == HEARTBEAT or not text.strip():
            raise LocalProtocolError("this text has another meaning in the plain dialect")
        return encode_frame(MessageType.CHAT_TEXT, seq, text)
    code = REQUEST_CODES[type(request)]
    if code not in PLAIN_REQUESTS:
        raise LocalProtocolError(f"the plain dialect has no {type(request).__name__}")
    return encode_frame(code, seq, _request(request))


def encode_reply(
    type: MessageType,  # noqa: A002
    seq: int,
    reply: Reply | JsonObject,
    *,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
) -> bytes:
    """`type` is the type of the request; `REPLY_CODES` gives that of the reply."""
    payload = _ENCODERS.get(reply.__class__, dump_json)(reply)
    return _encode(REPLY_CODES.get(type, type), seq, payload, message_bytes_max)


def encode_event(event: Event, *, message_bytes_max: int = MESSAGE_BYTES_MAX) -> bytes:
    kind = type(event)
    payload = _ENCODERS.get(kind, dump_json)(event)
    return _encode(_CODES_OF_EVENTS[kind], 0, payload, message_bytes_max)


def encode_error(seq: int, error: RequestError, session_id: str | None = None) -> bytes:
    report = ErrorReport(
        code=error.code,
        message=error.message,
        field=error.field,
        retryable=error.retryable,
        retry_after=error.retry_after,
        session_id=session_id,
        details=dict(error.details) or None,
    )
    return _encode(MessageType.ERROR, seq, _payload(report), MESSAGE_BYTES_MAX)


def dump_json(value: JsonObject | msgspec.Struct) -> bytes:
    try:
        return _encode_json(value)
    except (TypeError, ValueError, OverflowError) as error:
        # The value holds a lone surrogate, or an object that JSON can't represent.
        raise LocalProtocolError(f"a value can't be written as JSON: {error}") from None


def _encode(code: MessageType, seq: int, payload: bytes, message_bytes_max: int) -> bytes:
    size = len(payload)
    if size > message_bytes_max:
        raise LocalProtocolError(
            f"{code.name} of {size:,} bytes: a message holds at most {message_bytes_max:,}"
        )
    if size <= FRAME_PAYLOAD_BYTES_MAX:
        return HEADER.pack(code, seq, size) + payload
    return encode_message(code, seq, payload)


def _request(request: Request) -> bytes:
    """A request without fields has no payload."""
    payload = _payload(request)
    return b"" if payload == b"{}" and type(request) not in _ENCODERS else payload


def _payload(message: Message | JsonObject) -> bytes:
    return _ENCODERS.get(type(message), dump_json)(message)


def _raw(message: Ping | FileData | messages.Pong | messages.FilePiece) -> bytes:
    return message.data


def _with_details(message: ErrorReport | SessionEvent) -> bytes:
    fields: JsonObject = msgspec.to_builtins(message)
    fields.pop("details", None)
    for name, value in (message.details or {}).items():
        fields.setdefault(name, value)  # a detail never overwrites a field
    return dump_json(fields)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Ping: _raw,
    FileData: _raw,
    messages.Pong: _raw,
    messages.FilePiece: _raw,
    ErrorReport: _with_details,
    SessionEvent: _with_details,
}
"""Encoders of the messages whose payload is not simply their fields as JSON."""


# Decoding.


def decode_request(type: int, payload: bytes, limits: WireLimits) -> Request:  # noqa: A002
    """Decodes a request of the structured dialect."""
    if type == MessageType.FILE_DATA:
        return FileData(data=payload)
    _check_size(payload, limits)
    shape = _JSON_REQUESTS.get(type)
    if shape is not None:
        keys_max = limits.prompt_json_keys_max if shape is Prompt else limits.json_keys_max
        return _read_request(shape, load_json(payload, limits, keys_max=keys_max))
    match type:
        case MessageType.CHAT_TEXT:
            return _read_request(Prompt, {"text": decode_text(payload)})
        case MessageType.PING:
            return Ping(data=payload)
        case _:
            raise _unsupported(type)


def decode_plain_request(type: int, payload: bytes, limits: WireLimits) -> Request:  # noqa: A002
    """Decodes a request of version 2 into the same value as a structured one. `/model NAME`
    as a prompt, or CLIENT_NOTE with a model, is a model switch; a HISTORY_REQUEST that is
    just a number gives the limit."""
    if type not in PLAIN_REQUESTS:
        raise _unsupported(type)
    if type == MessageType.FILE_DATA:
        return FileData(data=payload)
    _check_size(payload, limits)
    if type == MessageType.CHAT_TEXT:
        text = decode_text(payload)
        command = re.fullmatch(r"\s*/model\s+(\S+)\s*", text)
        if command:
            return from_object(ModelSwitch, {"model": command[1]})
        return _read_request(Prompt, {"text": text})
    digits = payload.strip()
    if type == MessageType.HISTORY_REQUEST and digits.isdigit() and len(digits) <= _DIGITS_MAX:
        return _read_request(HistoryRequest, {"limit": int(digits)})
    data = load_json(payload, limits)
    if type == MessageType.CLIENT_NOTE:
        shape = ClientNote if data.get("model") is None else ModelSwitch
        return _read_request(shape, data)
    return _read_request(_JSON_REQUESTS[type], data)


def decode_reply(
    request_type: MessageType,
    type: int,  # noqa: A002
    payload: bytes,
) -> Reply | ErrorReport:
    shape = REPLY_TYPES[request_type]
    if type == MessageType.ERROR:
        return from_object(ErrorReport, load_json(payload, FROM_SERVER))
    if type != REPLY_CODES.get(request_type, request_type):
        raise RequestError(
            ErrorCode.MALFORMED,
            f"A reply of type 0x{type:02X} is no reply to {request_type.name}.",
        )
    if shape is messages.Pong:
        return messages.Pong(data=payload)
    if shape is messages.FilePiece:
        return messages.FilePiece(data=payload)
    data = load_json(payload, FROM_SERVER)
    if shape is messages.HistoryPage and "page" not in data:
        return from_object(messages.MessageRange, data)
    return from_object(shape, data)


def decode_event(type: int, payload: bytes) -> Event | None:  # noqa: A002
    """Returns None for an unknown event, which a newer server may send."""
    shape = _EVENTS.get(type)
    return None if shape is None else from_object(shape, load_json(payload, FROM_SERVER))


def _unsupported(type: int) -> RequestError:  # noqa: A002
    code = MESSAGE_TYPES.get(type)
    name = f"0x{type:02X}" + (f" ({code.name})" if code is not None else "")
    return RequestError(ErrorCode.UNSUPPORTED, f"Message type {name} is not a request here.")


def _check_size(payload: bytes, limits: WireLimits) -> None:
    if len(payload) > limits.message_bytes_max:
        raise RequestError(
            ErrorCode.TOO_LARGE, f"A message holds at most {limits.message_bytes_max:,} bytes."
        )


# Messages from and to JSON objects.


def from_object(cls: type[M], data: JsonObject) -> M:
    """Raises RequestError (`malformed`), which names the field."""
    if cls is SessionEvent or cls is ErrorReport:
        data = _details_apart(cls, data)
    if None in data.values():
        data = {name: value for name, value in data.items() if value is not None}
    try:
        return msgspec.convert(data, cls)
    except msgspec.ValidationError as error:
        raise _refusal(cls, str(error)) from None


def to_object(message: Message) -> JsonObject:
    """Returns the message as a JSON object, as it would be encoded."""
    value: JsonObject = msgspec.json.decode(_payload(message))
    return value


def _details_apart(cls: type[Message], data: JsonObject) -> JsonObject:
    known = cls.__struct_fields__
    fields = {name: value for name, value in data.items() if name in known and name != "details"}
    if len(fields) < len(data):
        fields["details"] = {name: data[name] for name in data if name not in fields}
    return fields


def _read_request(cls: type[Request], data: JsonObject) -> Request:
    request = from_object(cls, data)
    check = _CHECKS.get(cls)
    if check is not None:
        check(request)
    return request


def _check_prompt(prompt: Prompt) -> None:
    may_be_blank = prompt.continues or prompt.results or prompt.messages
    if not may_be_blank and not re.search(NOT_BLANK, prompt.text):
        raise _misfit("text", _COMPLAINTS[_BLANK])
    if prompt.continues and prompt.replace_from is not None:
        raise _misfit("replace_from", "can't be combined with `continue`")
    if prompt.messages and (
        prompt.text
        or prompt.results
        or prompt.attachments
        or prompt.continues
        or prompt.replace_from is not None
    ):
        raise _misfit(
            "messages",
            "can't be combined with `text`, `results`, `attachments`, `continue`, `replace_from`",
        )
    if prompt.results and (prompt.continues or prompt.replace_from is not None):
        raise _misfit("results", "can't be combined with `continue` or `replace_from`")
    if prompt.not_before is not None and (
        prompt.messages
        or prompt.results
        or prompt.tools
        or prompt.continues
        or prompt.replace_from is not None
        or prompt.system is not None
    ):
        raise _misfit(
            "not_before",
            "can't be combined with `messages`, `results`, `tools`, `continue`, `replace_from`, "
            "`system`",
        )
    if prompt.metadata and len(dump_json(prompt.metadata)) > METADATA_BYTES_MAX:
        raise _misfit("metadata", f"is larger than {METADATA_BYTES_MAX:,} bytes as JSON")


def _check_update(update: SessionUpdate) -> None:
    if update.deleted:
        raise _misfit("deleted", "can only be taken back (false); SESSION_DELETE deletes")


def _one_at_most(*names: str) -> Callable[[Request], None]:
    def check(request: Request) -> None:
        given = [name for name in names if getattr(request, name) is not None]
        if len(given) > 1:
            raise _misfit(given[1], f"can't be combined with `{given[0]}`")

    return check


_CHECKS: dict[type[Request], Callable[[Any], None]] = {
    Prompt: _check_prompt,
    HistoryRequest: _one_at_most("before", "after", "around"),
    Import: _one_at_most("file_id", "document"),
    SessionUpdate: _check_update,
}
"""Checks that the types of a request's fields can't express."""


# These translate msgspec's error messages: which field is wrong, and what it must be.
# The patterns are compiled when a request is refused, not when a command starts.

_WHERE = r"(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?"
_MISSING = r"Object missing required field `(\w+)`"
_WRONG_TYPE = r"Expected `(.+?)(?: \| null)?`, got `(\w+)`"
_TOO_SMALL = r"Expected `(?:int|float)` >= (\d+).*"
_TOO_LONG = r"Expected `str` of length <= (\d+)"
_TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number with a fraction",
    "int | float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_BLANK = f"Expected `str` matching regex {NOT_BLANK!r}"
_COMPLAINTS = {
    f"Expected `int` <= {messages.INT64_MAX}": "is too large a number",
    _BLANK: "must not be blank",
}


def _refusal(cls: type[Message], complaint: str) -> RequestError:
    found = re.fullmatch(_WHERE, complaint, re.DOTALL)
    what, path = (found["what"], found["path"] or "") if found else (complaint, "")
    path = re.sub(r"\[[^]]*\]", "", path)
    if missing := re.fullmatch(_MISSING, what):
        return _misfit(f"{path}.{missing[1]}".lstrip("."), "is needed")
    if wrong := re.fullmatch(_WRONG_TYPE, what):
        wanted, got = (_TYPES.get(word, word) for word in wrong.groups())
        return _misfit(path, f"must be {wanted}, not {got}")
    if small := re.fullmatch(_TOO_SMALL, what):
        return _misfit(path, f"must be at least {small[1]}")
    if long := re.fullmatch(_TOO_LONG, what):
        return _misfit(path, f"has more than {int(long[1]):,} characters")
    if what.startswith("Invalid enum value"):
        words = next(get_args(f.type) for f in msgspec.structs.fields(cls) if f.name == path)
        return _misfit(path, "must be " + " or ".join(f'"{word}"' for word in words))
    return _misfit(path, _COMPLAINTS.get(what, f"is refused: {what}"))


def _misfit(path: str, complaint: str) -> RequestError:
    return RequestError(ErrorCode.MALFORMED, f"`{path}` {complaint}.", field=path)
