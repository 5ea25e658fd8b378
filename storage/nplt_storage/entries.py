"""The facts a conversation consists of. An entry is never changed.

    model_input         user        what someone asked; begins a turn
    model_output        assistant   what a model answered, and which tools it wants
    tool_results        system      what the tools gave, all calls of one output
    fault               system      a turn ended without (further) output
    system_instruction  system      what every call is told from here on
    notebook            system      the memory notebook's text from here on
    epoch               system      context is compiled anew from here on
    clear               system      what ended before is no longer shown to models
    debug               system      a remark for whoever looks for a mistake
    renamed             system      the conversation's name from here on
    model_switched      system      the model of the turns from here on
    attachment          system      a file was stored beside the conversation

A draft carries no number, id or time; the history stamps it. A kind this
version does not know is an `UnknownEntry`: kept whole, shown to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar, Final, Literal, TypeAlias

from nplt_storage.json_values import JsonValue
from nplt_storage.tool_calls import ToolCallRequest, ToolCallResult

Role: TypeAlias = Literal["user", "assistant", "system"]
OutputState: TypeAlias = Literal["completed", "interrupted", "failed"]
FaultState: TypeAlias = Literal["interrupted", "failed"]

UNSTAMPED: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInvocationDescriptor:
    provider: str
    specification: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """The fields all kinds share."""

    role: ClassVar[Role] = "system"

    seq: int = 0
    id: str = ""
    timestamp: datetime = UNSTAMPED
    turn_id: str | None = None
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputEntry(HistoryEntry):
    kind: ClassVar[str] = "model_input"
    role: ClassVar[Role] = "user"

    content: str
    message_id: str | None = None
    model: str | None = None
    attachments: tuple[str, ...] = ()
    options: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutputEntry(HistoryEntry):
    kind: ClassVar[str] = "model_output"
    role: ClassVar[Role] = "assistant"

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCallRequest, ...] = ()
    invocation: ModelInvocationDescriptor | None = None
    usage: Mapping[str, JsonValue] | None = None
    call: int = 0
    state: OutputState = "completed"
    stop_reason: str | None = None
    error: Mapping[str, JsonValue] | None = None

    @property
    def ends_turn(self) -> bool:
        return self.state != "completed" or not self.tool_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultsEntry(HistoryEntry):
    kind: ClassVar[str] = "tool_results"

    results: tuple[ToolCallResult, ...]
    call: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEntry(HistoryEntry):
    kind: ClassVar[str] = "fault"

    content: str
    code: str
    state: FaultState


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemInstructionEntry(HistoryEntry):
    kind: ClassVar[str] = "system_instruction"

    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookEntry(HistoryEntry):
    kind: ClassVar[str] = "notebook"

    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEntry(HistoryEntry):
    kind: ClassVar[str] = "epoch"

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearEntry(HistoryEntry):
    kind: ClassVar[str] = "clear"


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugEntry(HistoryEntry):
    kind: ClassVar[str] = "debug"

    category: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamedEntry(HistoryEntry):
    kind: ClassVar[str] = "renamed"

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSwitchedEntry(HistoryEntry):
    kind: ClassVar[str] = "model_switched"

    model: str
    previous_model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentEntry(HistoryEntry):
    kind: ClassVar[str] = "attachment"

    file_id: str
    filename: str
    size: int
    sha256: str
    content_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEntry(HistoryEntry):
    """`fields` holds everything of the line beside the shared ones, in its order."""

    kind: str
    fields: Mapping[str, JsonValue]


Entry: TypeAlias = (
    ModelInputEntry
    | ModelOutputEntry
    | ToolResultsEntry
    | FaultEntry
    | SystemInstructionEntry
    | NotebookEntry
    | EpochEntry
    | ClearEntry
    | DebugEntry
    | RenamedEntry
    | ModelSwitchedEntry
    | AttachmentEntry
    | UnknownEntry
)
