"""The facts a conversation consists of. An entry is never changed.

    model_input         user        what someone asked; begins a turn
    model_output        assistant   what a model answered, and which tools it wants
    tool_results        system      what the tools gave, all calls of one output
    fault               system      a turn ended without (further) output
    system_instruction  system      what every call is told from here on
    notebook            system      the memory notebook's text from here on
    widget              system      the state of another widget from here on
    epoch               system      context is compiled anew from here on
    compaction          system      a summary that may stand for a range of entries
    clear               system      what ended before is no longer shown to models
    rollback            system      what stood after an earlier entry stands no longer
    quarantine          system      one entry is not shown to models, or again
    checkpoint          system      the state here, for when what is older is trimmed
    forked              system      the entries so far are another conversation's
    debug               system      a remark for whoever looks for a mistake
    renamed             system      the conversation's name from here on
    pinned              system      whether it stands on top of lists
    archived            system      whether it is kept out of everyday lists
    model_switched      system      the model of the turns from here on
    attachment          system      a file was stored beside the conversation
    approval            system      people were asked about a tool call, or have answered

A draft carries no number, id or time; the history stamps it. A kind this
version does not know is an `UnknownEntry`: kept whole, shown to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar, Final, Literal, TypeAlias

from nplt_storage.facts.json_values import JsonValue
from nplt_storage.facts.sections import LevelOfDetailSections
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult

Role: TypeAlias = Literal["user", "assistant", "system"]
OutputState: TypeAlias = Literal["completed", "interrupted", "failed"]
PartKind: TypeAlias = Literal["text", "reasoning", "call", "opaque"]
FaultState: TypeAlias = Literal["interrupted", "failed"]
ApprovalState: TypeAlias = Literal["asked", "allowed", "denied"]

UNSTAMPED: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInvocationDescriptor:
    provider: str
    specification: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentContext:
    """What one call to a model was shown, in figures."""

    tokens: int
    """By our own count: instruction, messages and tools."""
    budget_tokens: int
    tools_digest: str
    epoch_seq: int = 0
    """The epoch it was compiled in; 0: before the first."""
    head_seq: int = 0
    """The newest entry there was when it was compiled: what has a higher number came
    while the model was answering. 0: nobody knows."""
    trimmed: bool = False
    """Made to fit for the moment, so that it need not begin with what was sent before,
    nor what is sent next with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPart:
    """One piece of an output in the order it came in: so many characters of its text
    or its reasoning, one of its calls, or something only its provider understands (a
    signature of the reasoning before it), which goes back to that provider alone."""

    kind: PartKind
    size: int = 0
    """Characters; of a call its place among the calls."""
    data: Mapping[str, JsonValue] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """The fields all kinds share."""

    role: ClassVar[Role] = "system"

    seq: int = 0
    id: str = ""
    timestamp: datetime = UNSTAMPED
    turn_id: str | None = None
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    redacted_at: datetime | None = None
    """When its content was erased for good; what is left is a tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputEntry(HistoryEntry):
    kind: ClassVar[str] = "model_input"
    role: ClassVar[Role] = "user"

    content: str
    message_id: str | None = None
    model: str | None = None
    attachments: tuple[str, ...] = ()
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    sections: LevelOfDetailSections | None = None
    """`None`: the content is all there is, at every level of detail."""


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
    sections: LevelOfDetailSections | None = None
    sent: SentContext | None = None
    parts: tuple[OutputPart, ...] = ()
    """In their order; empty where that says nothing, for lack of an opaque one."""

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
    invocation: ModelInvocationDescriptor | None = None
    """Who was called and gave nothing to remember, and what that was billed for."""
    usage: Mapping[str, JsonValue] | None = None
    of_request: bool = False
    """The provider did not take what it was sent, and named no part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemInstructionEntry(HistoryEntry):
    kind: ClassVar[str] = "system_instruction"

    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookEntry(HistoryEntry):
    kind: ClassVar[str] = "notebook"

    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WidgetEntry(HistoryEntry):
    """The notebook is a widget too, but has a kind of its own."""

    kind: ClassVar[str] = "widget"

    widget: str
    state: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEntry(HistoryEntry):
    """Until the next one, what models are shown only grows at its end."""

    kind: ClassVar[str] = "epoch"

    reason: str
    omitted_through: int = 0
    """How older turns are shown, by the number of their prompt: not at all up to
    this one, as gist up to the next, as summary up to the last; live after it."""
    gist_through: int = 0
    summary_through: int = 0
    budget_tokens: int = 0
    """What it was made to fit."""
    screen: str = ""
    """The live screen as it was when the epoch began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionEntry(HistoryEntry):
    kind: ClassVar[str] = "compaction"

    content: str
    from_seq: int
    through_seq: int
    invocation: ModelInvocationDescriptor | None = None
    """Who wrote it, and what that was billed for."""
    usage: Mapping[str, JsonValue] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearEntry(HistoryEntry):
    kind: ClassVar[str] = "clear"


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackEntry(HistoryEntry):
    """From here on the conversation stands as it did after entry `to_seq`: what
    models see, that is. Names, models and pins are people's choices and stay."""

    kind: ClassVar[str] = "rollback"

    to_seq: int
    message_count: int = 0
    """How the conversation stands now, known when this is written, so that neither
    a list nor opening it needs to go back: messages, the last words among them,
    the entries that hold the instruction, the notebook, the newest compaction (0:
    none) and each widget's state, by its name."""
    preview: str = ""
    system_seq: int = 0
    notebook_seq: int = 0
    compaction_seq: int = 0
    widget_seqs: tuple[tuple[str, int], ...] = ()
    hidden: tuple[tuple[int, int], ...] | None = None
    """The ranges (first, last) that did not stand at `to_seq`, where that can't be
    told from the ranges hidden now: when a rollback is itself taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineEntry(HistoryEntry):
    kind: ClassVar[str] = "quarantine"

    target_seq: int
    code: str
    content: str
    lifted: bool = False
    """Models are shown it again: without it they were refused all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry(HistoryEntry):
    kind: ClassVar[str] = "checkpoint"

    state: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedEntry(HistoryEntry):
    """Turns that had not ended there are not taken up here, and what was decided there
    about further calls of tools does not hold. Of a conversation that came in as a
    document `from_session_id` is its own."""

    kind: ClassVar[str] = "forked"

    from_session_id: str
    at_seq: int


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
class PinnedEntry(HistoryEntry):
    kind: ClassVar[str] = "pinned"

    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedEntry(HistoryEntry):
    kind: ClassVar[str] = "archived"

    archived: bool


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
class ApprovalEntry(HistoryEntry):
    """One when people are asked, one when it is decided, under the same `approval_id`."""

    kind: ClassVar[str] = "approval"

    approval_id: str
    tool_call_id: str
    tool_name: str
    state: ApprovalState
    expires_at: datetime | None = None
    """Until when they may answer."""
    decided_by: str | None = None
    """The user; `None`: nobody did, and `reason` says what happened instead."""
    reason: str | None = None
    remember: bool = False
    """The decision holds for further calls of that tool in this conversation."""


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
    | WidgetEntry
    | EpochEntry
    | CompactionEntry
    | ClearEntry
    | RollbackEntry
    | QuarantineEntry
    | CheckpointEntry
    | ForkedEntry
    | DebugEntry
    | RenamedEntry
    | PinnedEntry
    | ArchivedEntry
    | ModelSwitchedEntry
    | AttachmentEntry
    | ApprovalEntry
    | UnknownEntry
)
