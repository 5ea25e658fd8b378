"""What a client may ask, one frozen value per request.

Both dialects are read into these same values, so that everything behind the
protocol is written once. A field without a default is needed; unknown fields
are ignored (`shapes.read` does both). `None` means "not said".
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeAlias

from nplt_protocol.codes import MessageType
from nplt_protocol.json_values import JsonObject

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from nplt_protocol.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    versions: tuple[int, ...] = (3,)
    client: str | None = None
    token: str | None = None
    keepalive: float | None = None
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    turn_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    text: str
    message_id: str | None = None
    session_id: str | None = None
    model: str | None = None
    role: str | None = None
    metadata: JsonObject = field(default_factory=dict)
    attachments: tuple[str, ...] = ()
    options: JsonObject = field(default_factory=dict)
    replace_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    session_id: str
    after_seq: int | None = None
    turn_id: str | None = None
    call: int | None = None
    offset: int | None = None
    observer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetadata:
    filename: str
    size: int
    content_type: str | None = None
    purpose: Literal["attachment", "import"] = "attachment"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileData:
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSwitch:
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRequest:
    session_id: str | None = None
    before: int | None = None
    after: int | None = None
    around: int | None = None
    limit: int = 20
    max_bytes: int | None = None
    view: Literal["messages", "entries"] = "messages"
    detail: Literal["live", "summary", "gist"] = "live"
    roles: tuple[str, ...] | None = None
    seq: int | None = None
    offset: int = 0
    length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearRequest:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionList:
    limit: int = 50
    cursor: str | None = None
    query: str | None = None
    archived: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSwitch:
    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNew:
    name: str | None = None
    system: str | None = None
    model: str | None = None
    history: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDelete:
    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientNote:
    """0x18 of version 2: a client's UDP port. Taken, and not answered."""

    udp_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUpdate:
    session_id: str | None = None
    name: str | None = None
    system: str | None = None
    archived: bool | None = None
    pinned: bool | None = None
    deleted: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFork:
    session_id: str | None = None
    at_seq: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    query: str
    limit: int = 20
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    session_id: str | None = None
    model: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    approval_id: str
    decision: Literal["allow", "deny"]
    remember: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRequest:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact:
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGet:
    file_id: str
    session_id: str | None = None
    offset: int = 0
    length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    file_id: str | None = None
    document: JsonObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    to_seq: int
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redact:
    seq: int
    session_id: str | None = None


Request: TypeAlias = (
    Hello
    | Ping
    | Cancel
    | Prompt
    | Attach
    | Detach
    | FileMetadata
    | FileData
    | ModelSwitch
    | HistoryRequest
    | ClearRequest
    | SessionList
    | SessionSwitch
    | SessionNew
    | SessionDelete
    | ClientNote
    | SessionUpdate
    | SessionFork
    | Search
    | ContextRequest
    | Approval
    | StatusRequest
    | Compact
    | Tools
    | Usage
    | FileGet
    | Import
    | Rollback
    | Redact
)

REQUEST_TYPES: dict[MessageType, type[Request]] = {
    MessageType.HELLO: Hello,
    MessageType.PING: Ping,
    MessageType.CANCEL: Cancel,
    MessageType.PROMPT: Prompt,
    MessageType.ATTACH: Attach,
    MessageType.DETACH: Detach,
    MessageType.FILE_DATA: FileData,
    MessageType.FILE_METADATA: FileMetadata,
    MessageType.MODEL_SWITCH: ModelSwitch,
    MessageType.HISTORY_REQUEST: HistoryRequest,
    MessageType.CLEAR_REQUEST: ClearRequest,
    MessageType.SESSION_LIST: SessionList,
    MessageType.SESSION_SWITCH: SessionSwitch,
    MessageType.SESSION_NEW: SessionNew,
    MessageType.SESSION_DELETE: SessionDelete,
    MessageType.CLIENT_NOTE: ClientNote,
    MessageType.SESSION_UPDATE: SessionUpdate,
    MessageType.SESSION_FORK: SessionFork,
    MessageType.SEARCH: Search,
    MessageType.CONTEXT_REQUEST: ContextRequest,
    MessageType.APPROVAL: Approval,
    MessageType.STATUS: StatusRequest,
    MessageType.COMPACT: Compact,
    MessageType.TOOLS: Tools,
    MessageType.USAGE: Usage,
    MessageType.FILE_GET: FileGet,
    MessageType.IMPORT: Import,
    MessageType.ROLLBACK: Rollback,
    MessageType.REDACT: Redact,
}
