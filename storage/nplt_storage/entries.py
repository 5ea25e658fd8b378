"""The types of entries a conversation consists of. An entry never changes.

    model_input         user        a prompt; begins a turn
    later_prompt        system      a prompt that is not run before its time
    later_change        system      such a prompt was cancelled, or released in a copy
    model_output        assistant   a model's answer, with the tool calls it asks for
    tool_results        system      the results of all tool calls of one output
    fault               system      a turn ended without (further) output
    system_instruction  system      the instruction for every call from here on
    notebook            system      the text of the memory notebook from here on
    widget              system      the state of another widget from here on
    epoch               system      the context is compiled anew from here on
    compaction          system      a summary that may stand for a range of entries
    clear               system      models no longer see turns that ended before
    rollback            system      the conversation goes back to an earlier entry
    quarantine          system      one entry is hidden from models, or shown again
    checkpoint          system      the state here, for when older entries are trimmed
    forked              system      the entries so far were copied from elsewhere
    debug               system      a remark for debugging
    renamed             system      the conversation's name from here on
    pinned              system      whether it stands on top of lists
    archived            system      whether it is left out of everyday lists
    model_switched      system      the model of the turns from here on
    attachment          system      a file was stored beside the conversation
    approval            system      a tool call needs approval, or was decided

A draft has no number, id or time; `ConversationHistory.stamp` gives it these. An
entry of a kind this version does not know is an `UnknownEntry`, which keeps every
field and is shown only in raw views.

The types are msgspec Structs: the codec reads them from a line's bytes directly.
Their own fields stand here in the order in which they are written; a field that
holds its default is left out of the line, but for those made with `always`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, ClassVar, Final, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from nplt_storage.json_values import JsonValue

_T = TypeVar("_T")

Role: TypeAlias = Literal["user", "assistant", "system"]
OutputState: TypeAlias = Literal["completed", "interrupted", "failed"]
PartKind: TypeAlias = Literal["text", "reasoning", "call", "opaque"]
FaultState: TypeAlias = Literal["interrupted", "failed"]
ApprovalState: TypeAlias = Literal["asked", "allowed", "denied"]
ToolExecutionStatus: TypeAlias = Literal["success", "failed", "skipped", "pending"]
ToolOffering: TypeAlias = Literal["client", "server", "both"]
Door: TypeAlias = Literal["nplt", "plain", "http", "web"]
LevelOfDetail: TypeAlias = Literal["live", "summary", "gist"]

Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]
"""A time with a time zone."""
UNSTAMPED: Final = datetime.min.replace(tzinfo=UTC)


def always(value: _T) -> _T:
    """A default that is written to the line even so."""
    written: _T = field(default_factory=lambda: value)
    return written


LIVE_SCREEN: Final = "[LiveScreen]"
"""The name of the live section that holds the widgets' state at that time."""

Section: TypeAlias = tuple[str, ...]
"""A name, which may be empty, and a text. A stored line leaves out a text that repeats the
entry's content."""
Sections: TypeAlias = tuple[Section, ...]


class LevelOfDetailSections(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry's text at three levels of detail: *live* is all of it, *summary* and *gist*
    are shorter.

    Each level is a sequence of named sections, made when the entry is written, so that a
    context that fits can be built at any time without calling a model. In place of an empty
    level the next more detailed one is given.
    """

    live: Sections = ()
    summary: Sections = ()
    gist: Sections = ()

    @classmethod
    def create_uniform(cls, sections: Sections) -> LevelOfDetailSections:
        """The same sections at every level: nothing shorter is made of them by rule."""
        return cls(live=sections, summary=sections, gist=sections)

    def get_sections(self, level: LevelOfDetail) -> Sections:
        if level == "gist" and self.gist:
            return self.gist
        return self.summary if level != "live" and self.summary else self.live

    def try_get_section(self, name: str, level: LevelOfDetail = "live") -> str | None:
        """The text of the section of that name, or `None`."""
        return next(
            (section[1] for section in self.get_sections(level) if section[0] == name), None
        )

    def holds(self, level: LevelOfDetail) -> bool:
        """Whether the level is given, or replaced by another one shorter than live."""
        return bool(self.summary or (level == "gist" and self.gist))

    def to_plain_text(self, level: LevelOfDetail) -> str:
        """The sections under their names; one without a name is only its text."""
        return "\n\n".join(
            f"## {name}\n{text}" if name else text for name, text in self.get_sections(level)
        )

    def with_live_section(self, name: str, text: str) -> LevelOfDetailSections:
        """Replaces the live section of that name, or adds one at the end."""
        names = [section[0] for section in self.live]
        place = names.index(name) if name in names else len(names)
        return replace(self, live=(*self.live[:place], (name, text), *self.live[place + 1 :]))

    def without_live_screen(self) -> tuple[LevelOfDetailSections, str | None]:
        screens = [text for name, text in self.live if name == LIVE_SCREEN]
        if not screens:
            return self, None
        rest = tuple(section for section in self.live if section[0] != LIVE_SCREEN)
        return replace(self, live=rest), screens[0]


class ToolCallRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call. The raw arguments are kept as the model wrote them, next to the parsed ones."""

    tool_name: str
    arguments: Mapping[str, JsonValue] | None
    """`None` when the raw text is not a JSON object; `parse_error` says why."""
    tool_call_id: str
    raw_arguments: str
    parse_error: str | None = None
    parse_warning: str | None = None
    by_client: bool = False
    """Whether the client that sent the prompt runs it, and brings the result with a later
    prompt."""


class BlobReference(Struct, frozen=True, kw_only=True):
    """Refers to the blob that holds a whole text of which the entry has only the beginning."""

    blob_id: str
    size: int
    """The size in bytes; text is counted as UTF-8."""
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> BlobReference:
        """The reference to this data. A blob is named by its digest, so equal blobs are stored
        once."""
        digest = hashlib.sha256(data).hexdigest()
        return cls(blob_id=digest, size=len(data), sha256=digest)


class ToolCallResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool result. It is paired with its request by position; the id is a check. While the client
    has not brought the result of a call that it runs, the status is `pending`."""

    tool_name: str
    result: str
    status: ToolExecutionStatus
    duration: int | float
    timestamp: Moment
    tool_call_id: str
    blob: BlobReference | None = None
    """The whole result, if `result` is only its beginning."""
    attachments: tuple[str, ...] = ()
    """The file ids of the pictures that came with the result."""
    sections: LevelOfDetailSections | None = None


class ModelInvocationDescriptor(Struct, frozen=True, kw_only=True):
    provider: str
    specification: str
    model: str


class SentContext(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The size and make-up of the context that was sent with one model call."""

    tokens: int
    """The tokens of instruction, messages and tools, counted by us."""
    budget_tokens: int
    tools_digest: str
    epoch_seq: int = 0
    """The epoch it was compiled in; 0 if before the first."""
    head_seq: int = 0
    """The newest entry when it was compiled; later entries came while the model was answering. 0 if
    unknown."""
    trimmed: bool = False
    """Whether it was trimmed for this call only: it need not extend the context sent before, and
    the next one need not extend it."""


class OutputPart(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """One piece of an output, in the order it came in: so many characters of text or
    reasoning, one of the calls, or opaque data (a signature of the reasoning before
    it) that is sent back to its own provider only."""

    kind: PartKind
    size: int = 0
    """The number of characters; for a call, its index among the calls."""
    data: Mapping[str, JsonValue] | None = None


class HistoryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The fields all kinds share."""

    role: ClassVar[Role] = "system"

    seq: int = 0
    id: str = ""
    timestamp: Moment = UNSTAMPED
    turn_id: str | None = None
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    redacted_at: Moment | None = None
    """The time at which the content was erased for good; the rest of the entry is a tombstone."""


def _kind_of(class_name: str) -> str:
    words: list[str] = re.findall("[A-Z][a-z]+", class_name.removesuffix("Entry"))
    return "_".join(words).lower()


class KnownEntry(HistoryEntry, frozen=True, kw_only=True, tag_field="kind", tag=_kind_of):
    """Each kind's tag, and so its `kind`, is its class's name in snake_case."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.kind = _kind_of(cls.__name__)


class ClientTool(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that the client offers with a prompt and runs itself."""

    name: str
    description: str = ""
    parameters: Mapping[str, JsonValue] = field(default_factory=dict)
    """JSON Schema of the arguments."""


class ModelInputEntry(KnownEntry, frozen=True, kw_only=True):
    role: ClassVar[Role] = "user"

    content: str
    """Blank only if the prompt does nothing but bring tool results (`results_seq`)."""
    message_id: str | None = None
    model: str | None = None
    attachments: tuple[str, ...] = ()
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    sections: LevelOfDetailSections | None = None
    """`None` if the content is the text at every level of detail."""
    continues: int | None = None
    """The seq of the answer that the model is asked to go on with."""
    results_seq: int | None = None
    """The entry with the tool results that came with the prompt."""
    tools: tuple[ClientTool, ...] = ()
    """The tools that the client runs."""
    tools_seq: int | None = None
    """An earlier prompt that brought the same tools; `tools` is empty then."""
    offer: ToolOffering | None = None
    """The tools that the model is offered; `None`: the server's, and those in `tools`."""
    door: Door | None = None
    """How the prompt came: by the structured or the plain dialect, by HTTP, or from the page in the
    browser."""
    client: str | None = None
    """The name that the client gave itself."""
    body_sha256: str | None = None
    """The digest of the HTTP request that brought it. A request that is sent again with the same
    key must have the same."""
    later_seq: int | None = None
    """The entry that stored the prompt before its time."""
    late: bool = False
    """Whether its time passed while no server could run it."""

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing in it to show to a model."""
        has_more = self.attachments or self.sections or "schema" in self.options
        return not has_more and not self.content.strip()


class LaterPromptEntry(KnownEntry, frozen=True, kw_only=True):
    """A prompt that is not run before a certain time. Its turn begins with a `ModelInputEntry` that
    repeats it and names this entry. Until then models are not shown it, and neither a clear nor a
    rollback affects it."""

    content: str
    not_before: Moment
    message_id: str | None = None
    model: str | None = None
    attachments: tuple[str, ...] = ()
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    offer: ToolOffering | None = None
    door: Door | None = None
    client: str | None = None
    body_sha256: str | None = None
    limited_seq: int | None = None
    """The prompt that this one repeats, because its model was rate-limited."""
    limited_count: int = 0
    """How many times in a row that happened."""


class LaterChangeEntry(KnownEntry, frozen=True, kw_only=True):
    """Cancels the prompt for later whose turn it names, holds it, or releases it. In a copy of a
    conversation it is held until a person releases it, so that it does not run in both."""

    change: Literal["cancelled", "held", "released"]
    content: str = ""
    """Why it was cancelled."""


class ModelOutputEntry(KnownEntry, frozen=True, kw_only=True):
    role: ClassVar[Role] = "assistant"

    content: str
    tool_calls: tuple[ToolCallRequest, ...] = ()
    call: int = always(0)
    state: OutputState = always("completed")
    reasoning: str = ""
    invocation: ModelInvocationDescriptor | None = None
    usage: Mapping[str, JsonValue] | None = None
    stop_reason: str | None = None
    """`end length window filter refusal tool_calls pause cancelled`, or the provider's word."""
    error: Mapping[str, JsonValue] | None = None
    sections: LevelOfDetailSections | None = None
    sent: SentContext | None = None
    parts: tuple[OutputPart, ...] = ()
    """The parts in order; empty if none of them is opaque, because the order then carries no
    information."""
    rejected: str | None = None
    """Why it does not fit the schema of the prompt: the model was asked for another one."""
    fallback_from: Mapping[str, JsonValue] | None = None
    """The `model` that was to answer, and why it did not: `reason`, `message`."""

    @property
    def ends_turn(self) -> bool:
        if self.tool_calls:
            return self.state != "completed" or self.awaits_client
        return self.state != "completed" or not self.rejected

    @property
    def awaits_client(self) -> bool:
        """Whether it calls tools, all of which its client runs."""
        return (
            self.state == "completed"
            and bool(self.tool_calls)
            and all(call.by_client for call in self.tool_calls)
        )


class ToolResultsEntry(KnownEntry, frozen=True, kw_only=True):
    results: tuple[ToolCallResult, ...] = field(name="tool_calls")
    call: int = always(0)
    execute_error: str | None = None
    """The reason why the calls could not be executed as a whole (the turn was cancelled, the server
    stopped); calls that had not finished have it as their result too."""

    @property
    def awaits_client(self) -> bool:
        """Whether it ends the turn, because its client has yet to bring the other results. An entry
        with all of them, of the same turn and call, replaces it."""
        return any(result.status == "pending" for result in self.results)

    @property
    def state(self) -> OutputState:
        """The state of the turn that it ends."""
        return "completed"


class FaultEntry(KnownEntry, frozen=True, kw_only=True):
    content: str
    code: str
    state: FaultState
    invocation: ModelInvocationDescriptor | None = None
    """The model that was called without an answer, and its usage."""
    usage: Mapping[str, JsonValue] | None = None
    of_request: bool = False
    """Whether the provider refused the request as a whole, without naming a part of it."""
    never_began: bool = False
    """Whether the prompt was cancelled while it waited; models are not shown it."""
    vendor: Mapping[str, JsonValue] | None = None
    """The provider's own error fields: `code`, `param`, `message`."""


class SystemInstructionEntry(KnownEntry, frozen=True, kw_only=True):
    content: str


class NotebookEntry(KnownEntry, frozen=True, kw_only=True):
    content: str


class WidgetEntry(KnownEntry, frozen=True, kw_only=True):
    """The notebook is a widget too, but has a kind of its own."""

    widget: str
    state: Mapping[str, JsonValue]


class EpochEntry(KnownEntry, frozen=True, kw_only=True):
    """Begins an epoch: until the next one, the context sent to models only grows at its end."""

    reason: str
    omitted_through: int = 0
    """How older turns are shown, by the number of their prompt: omitted up to this one, as gist up
    to the next, as summary up to the last, live after it."""
    gist_through: int = 0
    summary_through: int = 0
    budget_tokens: int = 0
    """The budget the epoch was compiled for."""
    screen: str = ""
    """The live screen as it was when the epoch began."""
    omitted_turns: int = 0
    """The number of turns that are not shown, without those that a clear hides or a summary
    replaces."""


class CompactionEntry(KnownEntry, frozen=True, kw_only=True):
    content: str
    from_seq: int
    through_seq: int
    invocation: ModelInvocationDescriptor | None = None
    """The model that wrote the summary, and its usage."""
    usage: Mapping[str, JsonValue] | None = None


class ClearEntry(KnownEntry, frozen=True, kw_only=True):
    pass


class RollbackEntry(KnownEntry, frozen=True, kw_only=True):
    """Takes back what came after entry `to_seq`, or, with `turns`, the entries of those
    turns and nothing else: then `to_seq` and `hidden` say the same in numbers. Names,
    models and pins are set by people and stay.

    The fields after `to_seq` describe the conversation after the rollback, so that
    neither a list nor opening it needs to read further back: the number of messages,
    the last words, and the entries that hold the instruction, the notebook, the
    newest compaction (0: none) and each widget's state.
    """

    to_seq: int
    message_count: int = 0
    preview: str = ""
    system_seq: int = 0
    notebook_seq: int = 0
    compaction_seq: int = 0
    widget_seqs: tuple[tuple[str, int], ...] = ()
    hidden: tuple[tuple[int, int], ...] | None = None
    """The ranges (first, last) up to `to_seq` that are hidden from here on, where they
    are not simply those hidden before: when a rollback is itself taken back, and when
    turns are taken back from between others."""
    turns: tuple[str, ...] = ()
    redo: bool = False
    """Whether it takes back the rollback before it."""


class QuarantineEntry(KnownEntry, frozen=True, kw_only=True):
    content: str
    target_seq: int
    code: str
    lifted: bool = False
    """Whether the entry is shown to models again: leaving it out did not help, or a person wants
    it."""
    provider: str = ""
    """The provider whose models are not shown the entry; empty for all."""
    part: Literal["", "pictures"] = ""
    """The part of the entry that is hidden; empty for all of it."""


class CheckpointEntry(KnownEntry, frozen=True, kw_only=True):
    state: Mapping[str, JsonValue]


class ForkedEntry(KnownEntry, frozen=True, kw_only=True):
    """Turns that had not ended at `at_seq` are not resumed here, and approvals given
    before do not hold. In an imported conversation `from_session_id` is its own id."""

    from_session_id: str
    at_seq: int


class DebugEntry(KnownEntry, frozen=True, kw_only=True):
    content: str
    category: str


class RenamedEntry(KnownEntry, frozen=True, kw_only=True):
    name: str


class PinnedEntry(KnownEntry, frozen=True, kw_only=True):
    pinned: bool


class ArchivedEntry(KnownEntry, frozen=True, kw_only=True):
    archived: bool


class ModelSwitchedEntry(KnownEntry, frozen=True, kw_only=True):
    model: str
    """The new model; empty keeps the current one."""
    previous_model: str | None = None
    options: Mapping[str, str | int | float] | None = None
    """The options of later prompts that give none; `None` keeps the current ones."""


class AttachmentEntry(KnownEntry, frozen=True, kw_only=True):
    file_id: str
    filename: str
    size: int
    sha256: str
    content_type: str | None = None


class ApprovalEntry(KnownEntry, frozen=True, kw_only=True):
    """A request for approval, or the decision on one, which has the same `approval_id`."""

    approval_id: str
    tool_call_id: str
    tool_name: str
    state: ApprovalState
    expires_at: Moment | None = None
    """The deadline for the decision."""
    decided_by: str | None = None
    """The user who decided; `None` if no one did, and `reason` says what happened instead."""
    reason: str | None = None
    remember: bool = False
    """Whether the decision also holds for later calls of that tool in this conversation."""


class UnknownEntry(HistoryEntry, frozen=True, kw_only=True):
    """An entry of a kind that this version does not know. `fields` holds the line's own fields in
    their order."""

    kind: str
    fields: Mapping[str, JsonValue]


Entry: TypeAlias = (
    ModelInputEntry
    | LaterPromptEntry
    | LaterChangeEntry
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


# Entries that name other entries by number. The numbers are checked before an entry is
# written and after one is read, so that code which follows them can rely on them.
_REFERRING = (RollbackEntry, EpochEntry, CompactionEntry, QuarantineEntry, ForkedEntry)


def ends_turn(entry: Entry) -> bool:
    match entry:
        case ModelOutputEntry():
            return entry.ends_turn
        case ToolResultsEntry():
            return entry.awaits_client
        case _:
            return isinstance(entry, FaultEntry)


def wrong_reference(entry: Entry) -> str | None:
    """The reason why the numbers an entry names are wrong, or `None`. A draft has no number yet, so
    its numbers are only compared with each other."""
    if not isinstance(entry, _REFERRING):
        return None
    match entry:
        case RollbackEntry():
            # 0: to before the first entry.
            wrong = _wrong(entry, entry.to_seq) if entry.to_seq else None
            return wrong or _wrong_state(entry)
        case EpochEntry():
            return _wrong_reach(entry)
        case CompactionEntry():
            if entry.from_seq > entry.through_seq:
                return f"a compaction from {entry.from_seq} through {entry.through_seq} is empty"
            return _wrong(entry, entry.from_seq) or _wrong(entry, entry.through_seq)
        case QuarantineEntry():
            return _wrong(entry, entry.target_seq)
        case ForkedEntry():
            return _wrong(entry, entry.at_seq)


def _wrong(entry: Entry, seq: int) -> str | None:
    if seq >= 1 and (entry.seq == 0 or seq < entry.seq):
        return None
    return f"a {entry.kind} names entry {seq}, which is not there before it"


def _wrong_reach(entry: EpochEntry) -> str | None:
    reach = (entry.omitted_through, entry.gist_through, entry.summary_through)
    if not 0 <= reach[0] <= reach[1] <= reach[2]:
        return f"an epoch shows turns less the older they are: not so through {reach}"
    return _wrong(entry, reach[2]) if reach[2] else None


def _wrong_state(entry: RollbackEntry) -> str | None:
    state_seqs = (entry.system_seq, entry.notebook_seq, entry.compaction_seq)
    landmarks = (entry.message_count, *state_seqs, *(seq for _, seq in entry.widget_seqs))
    if min(landmarks) < 0 or max(landmarks) > entry.to_seq:
        return f"entry {entry.to_seq} can't have been left with {landmarks} before it"
    through = 0
    for first, last in entry.hidden or ():
        if not through < first <= last <= entry.to_seq:
            return f"the hidden ranges {entry.hidden} are not in order below {entry.to_seq}"
        through = last
    return None
