"""What the server answers, one frozen value per kind of reply.

A reply goes out under the request's seq and, unless `codec.REPLY_TYPES` names
another, under the request's own type. Fields that are `None` stay out of the JSON, except
where a reader must be able to tell "nothing" from "not said" (`NULLABLE`).
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from nplt_protocol.json_values import JsonObject

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from nplt_protocol.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    version: int
    server: str
    user: str
    session_id: str
    model: str
    models: tuple[str, ...]
    limits: JsonObject
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    cancelled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The prompt is on disk. `position` 0 runs now; n waits behind n turns."""

    turn_id: str
    session_id: str
    seq: int
    message_id: str | None
    position: int
    state: str
    duplicate: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveTurn:
    turn_id: str
    call: int
    offset: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    session_id: str
    name: str
    model: str
    head_seq: int
    active_turn: ActiveTurn | None
    queue: tuple[str, ...]
    pending_approvals: tuple[JsonObject, ...] = ()
    clients: tuple[JsonObject, ...] = ()
    resync: bool | None = None
    """The entries asked for don't come: read them from the record, up to `head_seq`."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset({"active_turn"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStored:
    file_id: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePiece:
    """The bytes FILE_GET asked for; raw on the wire."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    model: str
    previous_model: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageEdges:
    has_more_before: bool
    has_more_after: bool
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    session_id: str
    name: str
    message_count: int
    head_seq: int
    messages: tuple[JsonObject, ...]
    page: PageEdges


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRange:
    """A part of one message's text: `offset` and `size` count code points."""

    session_id: str
    seq: int
    offset: int
    content: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    session_id: str
    cleared_through_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    session_id: str
    name: str
    message_count: int
    created_at: str
    updated_at: str
    last_accessed: str
    is_current: bool
    model: str
    state: str
    preview: str
    pinned: bool = False
    archived: bool = False
    damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRows:
    sessions: tuple[SessionRow, ...]
    next_cursor: str | None

    NULLABLE: ClassVar[frozenset[str]] = frozenset({"next_cursor"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCreated:
    session_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDeleted:
    session_id: str
    current_session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    server: str
    uptime: float
    connections: int
    conversations: JsonObject
    turns: JsonObject
    storage: JsonObject
    versions: JsonObject = field(default_factory=dict)
    providers: JsonObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A message that was found; or a conversation by its name: role `name`, seq 0, and
    its preview as snippet."""

    session_id: str
    name: str
    seq: int
    role: str
    snippet: str
    timestamp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHits:
    hits: tuple[SearchHit, ...]
    next_cursor: str | None

    NULLABLE: ClassVar[frozenset[str]] = frozenset({"next_cursor"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextAccount:
    """What a call would be shown, entry by entry."""

    session_id: str
    model: str
    epoch: int
    budget_tokens: int
    entries: tuple[JsonObject, ...]
    totals: JsonObject
    begins_epoch: str | None = None
    """Why a new epoch would begin with this call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecided:
    """What holds: the first answer, whoever gave it; nobody's where it expired."""

    approval_id: str
    decision: str
    decided_by: str | None

    NULLABLE: ClassVar[frozenset[str]] = frozenset({"decided_by"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolList:
    session_id: str
    tools: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageAccount:
    session_id: str
    model: str
    billed: JsonObject
    occupancy: JsonObject
    estimate: JsonObject
    cost: JsonObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegun:
    session_id: str
    epoch: int
    reason: str
    tokens_before: int
    tokens_after: int
    compaction: int | None = None
    """The entry that holds a model's summary, if one was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    session_id: str
    head_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    session_id: str
    messages: int


Reply: TypeAlias = (
    Welcome
    | Pong
    | Cancelled
    | Receipt
    | Attached
    | Detached
    | FileStored
    | FilePiece
    | ModelChoice
    | HistoryPage
    | MessageRange
    | Cleared
    | SessionRow
    | SessionRows
    | SessionCreated
    | SessionDeleted
    | Status
    | SearchHits
    | ContextAccount
    | ApprovalDecided
    | ToolList
    | UsageAccount
    | EpochBegun
    | RolledBack
    | Redacted
    | Imported
)
