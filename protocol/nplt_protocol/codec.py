"""Messages: the payload of a whole message to a value, and a value to bytes.

Requests of the structured dialect, replies, events and errors; the plain
dialect's requests are in `plain`. Reading is strict for requests (the sender
is told which field is wrong) and lenient for what a server sends, which may
be newer than this code. Writing too long a message is this side's mistake and
is refused: cutting it is for those who know what may be cut.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from nplt_protocol import replies as say
from nplt_protocol.codes import ErrorCode, MessageType
from nplt_protocol.errors import LocalProtocolError, RequestError
from nplt_protocol.events import EVENT_TYPES, ErrorReport, Event
from nplt_protocol.fragments import encode_message
from nplt_protocol.json_text import decode_text, dump_json, load_json
from nplt_protocol.json_values import JsonObject
from nplt_protocol.limits import WireLimits
from nplt_protocol.replies import Reply
from nplt_protocol.requests import REQUEST_TYPES, FileData, Hello, Ping, Prompt, Request
from nplt_protocol.rules import check_rules
from nplt_protocol.shapes import read, write

MESSAGE_BYTES_MAX = WireLimits().message_bytes_max

FROM_SERVER = WireLimits(json_depth_max=128, json_keys_max=1_000_000)
"""For reading replies and events: a long page has more keys than any request."""


class ReplyForm(NamedTuple):
    code: MessageType
    shape: type[Reply] | None
    """None: a JSON object whose fields are not fixed here."""


REPLY_TYPES: dict[MessageType, ReplyForm] = {
    MessageType.CHAT_TEXT: ReplyForm(MessageType.PROMPT, say.Receipt),
    MessageType.HELLO: ReplyForm(MessageType.HELLO, say.Welcome),
    MessageType.PING: ReplyForm(MessageType.PONG, say.Pong),
    MessageType.CANCEL: ReplyForm(MessageType.CANCEL, say.Cancelled),
    MessageType.PROMPT: ReplyForm(MessageType.PROMPT, say.Receipt),
    MessageType.ATTACH: ReplyForm(MessageType.ATTACH, say.Attached),
    MessageType.DETACH: ReplyForm(MessageType.DETACH, say.Detached),
    MessageType.FILE_METADATA: ReplyForm(MessageType.FILE_METADATA, say.FileStored),
    MessageType.MODEL_SWITCH: ReplyForm(MessageType.MODEL_SWITCH, say.ModelChoice),
    # A request with `seq` is answered by a MessageRange instead.
    MessageType.HISTORY_REQUEST: ReplyForm(MessageType.HISTORY_REQUEST, say.HistoryPage),
    MessageType.CLEAR_REQUEST: ReplyForm(MessageType.CLEAR_REQUEST, say.Cleared),
    MessageType.SESSION_LIST: ReplyForm(MessageType.SESSION_LIST, say.SessionRows),
    MessageType.SESSION_SWITCH: ReplyForm(MessageType.SESSION_SWITCH, say.Attached),
    MessageType.SESSION_NEW: ReplyForm(MessageType.SESSION_NEW, say.SessionCreated),
    MessageType.SESSION_DELETE: ReplyForm(MessageType.SESSION_DELETE, say.SessionDeleted),
    MessageType.SESSION_UPDATE: ReplyForm(MessageType.SESSION_UPDATE, say.SessionRow),
    MessageType.SESSION_FORK: ReplyForm(MessageType.SESSION_FORK, say.SessionCreated),
    MessageType.SEARCH: ReplyForm(MessageType.SEARCH, say.SearchHits),
    MessageType.CONTEXT_REQUEST: ReplyForm(MessageType.CONTEXT_REQUEST, say.ContextAccount),
    MessageType.APPROVAL: ReplyForm(MessageType.APPROVAL, say.ApprovalDecided),
    MessageType.STATUS: ReplyForm(MessageType.STATUS, say.Status),
    MessageType.COMPACT: ReplyForm(MessageType.COMPACT, say.EpochBegun),
    MessageType.TOOLS: ReplyForm(MessageType.TOOLS, say.ToolList),
    MessageType.USAGE: ReplyForm(MessageType.USAGE, say.UsageAccount),
    MessageType.FILE_GET: ReplyForm(MessageType.FILE_GET, say.FilePiece),
    MessageType.IMPORT: ReplyForm(MessageType.IMPORT, say.Imported),
    MessageType.ROLLBACK: ReplyForm(MessageType.ROLLBACK, say.RolledBack),
    MessageType.REDACT: ReplyForm(MessageType.REDACT, say.Redacted),
}

MESSAGE_TYPES: dict[int, MessageType] = {int(code): code for code in MessageType}
"""An enum call costs a microsecond; a dict doesn't."""

_CODES_OF_REQUESTS = {shape: code for code, shape in REQUEST_TYPES.items()}
_CODES_OF_EVENTS = {shape: code for code, shape in EVENT_TYPES.items()}


def decode_request(type: int, payload: bytes, limits: WireLimits) -> Request:  # noqa: A002
    """A request of the structured dialect."""
    if type == MessageType.FILE_DATA:
        return FileData(data=payload)
    if len(payload) > limits.message_bytes_max:
        raise too_large(limits)
    match type:
        case MessageType.PING:
            return Ping(data=payload)
        case MessageType.CHAT_TEXT:
            return checked(Prompt(text=decode_text(payload)))
        case MessageType.CLIENT_NOTE:
            raise unsupported(type)
    shape = REQUEST_TYPES.get(cast(MessageType, type))
    if shape is None:
        raise unsupported(type)
    return checked(read(shape, load_json(payload, limits)))


def encode_request(
    request: Request, seq: int, *, message_bytes_max: int = MESSAGE_BYTES_MAX
) -> bytes:
    code = _CODES_OF_REQUESTS[type(request)]
    if isinstance(request, Ping | FileData):
        payload = request.data
    else:
        # A field that says what its absence says is left out; but a client says
        # what it speaks, for one day there will be more.
        said = write(request, leave_out_defaults=True)
        if isinstance(request, Hello):
            said = {"versions": list(request.versions), **said}
        payload = dump_json(said) if said else b""
    return _encode(code, seq, payload, message_bytes_max)


def encode_reply(
    type: MessageType,  # noqa: A002
    seq: int,
    reply: Reply | JsonObject,
    *,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
) -> bytes:
    """`type` is the request's; the reply's own follows from `REPLY_TYPES`."""
    form = REPLY_TYPES.get(type)
    if isinstance(reply, say.Pong | say.FilePiece):
        payload = reply.data
    else:
        payload = dump_json(reply if isinstance(reply, dict) else write(reply))
    return _encode(form.code if form else type, seq, payload, message_bytes_max)


def encode_event(event: Event, *, message_bytes_max: int = MESSAGE_BYTES_MAX) -> bytes:
    return _encode(_CODES_OF_EVENTS[type(event)], 0, dump_json(write(event)), message_bytes_max)


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
    return _encode(MessageType.ERROR, seq, dump_json(write(report)), MESSAGE_BYTES_MAX)


def decode_reply(
    request_type: MessageType,
    type: int,  # noqa: A002
    payload: bytes,
) -> Reply | JsonObject | ErrorReport:
    form = REPLY_TYPES[request_type]
    if type == MessageType.ERROR:
        return read(ErrorReport, load_json(payload, FROM_SERVER), lenient=True)
    if type != form.code:
        raise RequestError(
            ErrorCode.MALFORMED,
            f"A reply of type 0x{type:02X} can't answer {request_type.name}.",
        )
    if form.shape is say.Pong:
        return say.Pong(data=payload)
    if form.shape is say.FilePiece:
        return say.FilePiece(data=payload)
    data = load_json(payload, FROM_SERVER)
    if form.shape is None:
        return data
    if form.shape is say.HistoryPage and "page" not in data:
        return read(say.MessageRange, data, lenient=True)
    return read(form.shape, data, lenient=True)


def decode_event(type: int, payload: bytes) -> Event | None:  # noqa: A002
    """None for an event this code doesn't know: a newer server may send some."""
    shape = EVENT_TYPES.get(cast(MessageType, type))
    if shape is None:
        return None
    return read(shape, load_json(payload, FROM_SERVER), lenient=True)


def checked(request: Request) -> Request:
    check_rules(request)
    return request


def unsupported(type: int) -> RequestError:  # noqa: A002
    code = MESSAGE_TYPES.get(type)
    name = f"0x{type:02X}" + (f" ({code.name})" if code is not None else "")
    return RequestError(ErrorCode.UNSUPPORTED, f"Message type {name} is not a request here.")


def too_large(limits: WireLimits) -> RequestError:
    return RequestError(
        ErrorCode.TOO_LARGE, f"A message holds at most {limits.message_bytes_max:,} bytes."
    )


def _encode(code: MessageType, seq: int, payload: bytes, message_bytes_max: int) -> bytes:
    if len(payload) > message_bytes_max:
        raise LocalProtocolError(
            f"{code.name} of {len(payload):,} bytes: a message holds at most {message_bytes_max:,}"
        )
    return encode_message(code, seq, payload)
