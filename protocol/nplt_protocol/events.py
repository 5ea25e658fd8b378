"""What the server pushes, one frozen value per event.

The same bytes go to every attached client: seq 0, `session_id` inside. Events
of a conversation have one order, the same for everyone.
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
class ErrorReport:
    """A reply when its seq is not 0, an event otherwise."""

    code: str
    message: str
    field: str | None = None
    retryable: bool = False
    retry_after: float | None = None
    session_id: str | None = None
    details: JsonObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentThought:
    session_id: str
    turn_id: str
    type: str
    content: str | None = None
    call: int | None = None
    offset: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    session_id: str
    turn_id: str
    seq: int
    model: str
    message_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    session_id: str
    turn_id: str
    call: int
    offset: int
    text: str
    replay_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    session_id: str
    turn_id: str
    call: int
    tool_call_id: str
    tool_name: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished:
    session_id: str
    turn_id: str
    call: int
    tool_call_id: str
    tool_name: str
    status: str
    duration: float
    result: str
    truncated: bool | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    session_id: str
    turn_id: str
    state: Literal["completed", "interrupted", "failed"]
    seq: int
    usage: JsonObject = field(default_factory=dict)
    error: JsonObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvent:
    session_id: str
    event: str
    details: JsonObject = field(default_factory=dict)
    """Further fields of this event; they stand beside `event` on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    session_id: str
    approval_id: str
    turn_id: str
    tool_name: str
    arguments: JsonObject
    expires_at: str
    tool_call_id: str | None = None
    truncated: bool | None = None
    """Long arguments are cut; `size` is how many characters they had."""
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryAdded:
    session_id: str
    entry: JsonObject
    turn_id: str | None = None
    call: int | None = None


Event: TypeAlias = (
    ErrorReport
    | AgentThought
    | TurnStarted
    | TextDelta
    | ToolStarted
    | ToolFinished
    | TurnFinished
    | SessionEvent
    | ApprovalRequest
    | EntryAdded
)

EVENT_TYPES: dict[MessageType, type[Event]] = {
    MessageType.ERROR: ErrorReport,
    MessageType.AGENT_THOUGHT: AgentThought,
    MessageType.TURN_STARTED: TurnStarted,
    MessageType.TEXT_DELTA: TextDelta,
    MessageType.TOOL_STARTED: ToolStarted,
    MessageType.TOOL_FINISHED: ToolFinished,
    MessageType.TURN_FINISHED: TurnFinished,
    MessageType.SESSION_EVENT: SessionEvent,
    MessageType.APPROVAL_REQUEST: ApprovalRequest,
    MessageType.ENTRY: EntryAdded,
}
