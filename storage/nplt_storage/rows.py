"""A conversation's row in lists, computed from its entries alone.

`fold` keeps a row up to date while the conversation grows, and rebuilds it from the
record. Rows can be discarded at any time; only last-access times are stored nowhere
else. A row also has what is needed to open a long conversation at its end: the numbers
of the state entries, the hidden ranges and the unfinished turns.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import orjson
from msgspec import Struct, convert, field, to_builtins
from msgspec.json import Decoder
from msgspec.structs import asdict, replace

from nplt_storage.entries import (
    ApprovalEntry,
    ArchivedEntry,
    CheckpointEntry,
    ClearEntry,
    CompactionEntry,
    Door,
    Entry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
    LaterChangeEntry,
    LaterPromptEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ModelSwitchedEntry,
    NotebookEntry,
    PinnedEntry,
    RenamedEntry,
    RollbackEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.json_values import JsonObject, JsonValue
from nplt_storage.messages import model_name

# ------------------------------------------------------------------------------
# State entries: instruction, notebook, widgets' states, newest compaction
#
# Each holds until the next of its kind (a compaction until a clear), and may be far
# before the loaded entries. So their numbers are kept in the row, and in each rollback,
# which makes older ones valid again.

StateEntry: TypeAlias = (
    SystemInstructionEntry | NotebookEntry | CompactionEntry | ClearEntry | WidgetEntry
)
StateKey: TypeAlias = tuple[str, str]
"""A kind, and a name if there are several of that kind."""
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of entry numbers, first and last, in order and not adjacent."""

INSTRUCTION: Final[StateKey] = (SystemInstructionEntry.kind, "")
NOTEBOOK: Final[StateKey] = (NotebookEntry.kind, "")
COMPACTION: Final[StateKey] = (CompactionEntry.kind, "")


def widget_key(name: str) -> StateKey:
    return WidgetEntry.kind, name


def state_key_of(entry: StateEntry) -> StateKey:
    if isinstance(entry, ClearEntry):
        return COMPACTION
    return entry.kind, entry.widget if isinstance(entry, WidgetEntry) else ""


def state_seqs_of(marked: ConversationRow | RollbackEntry) -> dict[StateKey, int]:
    """The numbers of the state entries, by key; a key without an entry is left out."""
    state_seqs = {
        INSTRUCTION: marked.system_seq,
        NOTEBOOK: marked.notebook_seq,
        COMPACTION: marked.compaction_seq,
    }
    state_seqs |= {widget_key(name): seq for name, seq in marked.widget_seqs}
    return {key: seq for key, seq in state_seqs.items() if seq}


# ------------------------------------------------------------------------------
# Usage billed by model
#
# Counted from outputs, compactions and faults that state their usage. A rollback does not
# reduce it. A fork begins at zero, because the original conversation was billed; an
# import continues.

Billed: TypeAlias = tuple[tuple[str, int, int, int, int], ...]
"""The model as provider/model, its calls, its input and output tokens, and the input tokens that
came from the provider's cache."""
BilledDetails: TypeAlias = tuple[tuple[str, int, int], ...]
"""The model, its input tokens that were written to the provider's cache, and its calls whose counts
are estimates; only models that have any are listed."""

MODELS_MAX: Final = 64
OTHERS: Final = "other"
"""The name under which further models are counted once there are too many; no model has it."""
_COUNTED_MAX: Final = 2**53 - 1
"""Providers may report any number, but a row must stay readable by every program."""
_COUNTED: Final = ("input_tokens", "output_tokens", "cached_tokens")
_BILLS: Final = (("billed", 5), ("billed_details", 3))
"""The fields of a row, and the number of values each has per model."""


def _bill(values: dict[str, Any], entry: ModelOutputEntry | CompactionEntry | FaultEntry) -> None:
    if (usage := entry.usage) is None:
        return
    model = "" if entry.invocation is None else model_name(entry.invocation)
    _add_billed(values, "billed", model, [1, *(_count(usage.get(name)) for name in _COUNTED)])
    details = [_count(usage.get("cache_write_tokens")), int(usage.get("estimated") is True)]
    if any(details):
        _add_billed(values, "billed_details", model, details)


def _bill_again(values: dict[str, Any], state: Mapping[str, JsonValue]) -> None:
    """Adds the bills recorded in a checkpoint; malformed ones are ignored."""
    for name, length in _BILLS:
        bills = state.get(name)
        for bill in bills if isinstance(bills, list) else ():
            if isinstance(bill, list) and len(bill) == length and isinstance(bill[0], str):
                _add_billed(values, name, bill[0], [_count(value) for value in bill[1:]])


def _add_billed(values: dict[str, Any], name: str, model: str, counts: list[int]) -> None:
    known = {before: state_entries for before, *state_entries in values[name]}
    if model not in known and len(known) >= MODELS_MAX:
        model = OTHERS
    sums = map(sum, zip(known.get(model, [0] * len(counts)), counts, strict=True))
    known[model] = [min(count, _COUNTED_MAX) for count in sums]
    values[name] = tuple((before, *state_entries) for before, state_entries in known.items())


def _count(value: object) -> int:
    # A truth value is no count, though it is an `int`.
    return min(value, _COUNTED_MAX) if type(value) is int and value >= 0 else 0


UNREAD_MAX: Final = 100
"""More unread answers are not counted."""

NEW_NAME = "new conversation"
NAME_CHARACTERS_MAX = 40
PREVIEW_CHARACTERS_MAX = 80

_LOOKED_AT_MAX = 1000
"""The number of characters used for a name or a preview."""
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")


class LaterPrompt(Struct, frozen=True, kw_only=True, array_like=True):
    """A prompt whose time has not come."""

    turn_id: str
    seq: int
    due_at: datetime
    held: bool = False
    """The conversation was copied: a person must release the prompt first."""
    message_id: str | None = None
    preview: str = ""
    limited: bool = False
    """It waits because its model was rate-limited."""


class ConversationRow(Struct, frozen=True, kw_only=True):
    session_id: str
    user: str
    name: str = NEW_NAME
    message_count: int = 0
    created_at: datetime
    updated_at: datetime
    last_accessed: datetime
    model: str | None = None
    preview: str = ""
    pinned: bool = False
    archived: bool = False
    damaged: bool = False
    head_seq: int = 0
    named: bool = False
    """Whether the name is settled, by a user or by the first prompt."""
    unfinished: tuple[tuple[str, int], ...] = ()
    """Turns that have a prompt and no end yet, each with its prompt's number."""
    hidden: Ranges = ()
    """The ranges that rollbacks took back."""
    system_seq: int = 0
    notebook_seq: int = 0
    compaction_seq: int = 0
    """The entries that hold the instruction, the notebook and the newest compaction;
    0: none."""
    widget_seqs: tuple[tuple[str, int], ...] = ()
    """The entries that hold each widget's state, by name."""
    epoch_seq: int = 0
    """The newest epoch since the last rollback, which tells how far back models see; 0 if there is
    none or it is unknown."""
    billed: Billed = ()
    billed_details: BilledDetails = ()
    options: tuple[tuple[str, str | int | float], ...] = ()
    """The options of prompts that give none: effort, temperature, length."""
    door: Door | None = None
    """How the last prompt came; `None` in records of older versions."""
    first_seq: int = 1
    """The oldest stored entry, in a backend that trims."""
    answers: tuple[int, ...] = ()
    """The numbers of the newest answers, for counting unread ones; at most `UNREAD_MAX`."""
    failed_seq: int = 0
    """The entry that ended the last turn, if the turn failed and no prompt has followed; else 0."""
    asking: tuple[str, ...] = ()
    """The approvals that the running turn waits for."""
    running_since: datetime | None = None
    """The time when the first unfinished turn could begin: when its prompt arrived, or the turn
    before it ended."""
    later: tuple[LaterPrompt, ...] = ()
    """The prompts whose time has not come."""
    lost: tuple[int, int] | None = None
    """Entries (first, last) that the file no longer has because an older copy was restored. Only
    the index knows this, until a repair."""

    @property
    def due_at(self) -> datetime | None:
        """The time when the first of the prompts for later is due; `None` if there is none, or all
        are held."""
        return min((each.due_at for each in self.later if not each.held), default=None)


_NUMBERED = {
    SystemInstructionEntry.kind: "system_seq",
    NotebookEntry.kind: "notebook_seq",
    ClearEntry.kind: "compaction_seq",
    EpochEntry.kind: "epoch_seq",
}
_FROM_ROLLBACKS = (
    *("message_count", "preview", "system_seq", "notebook_seq", "compaction_seq", "widget_seqs"),
)
_AT_REST: Final[Mapping[str, Any]] = {"unfinished": (), "asking": (), "running_since": None}
_ELSEWHERE: Final[Mapping[str, Any]] = {**_AT_REST, "billed": (), "billed_details": ()}


INTERRUPTED: Final = "interrupted"
"""The code of a turn that ended because its server was stopped."""
UNKNOWN_USER: Final = ""
"""The user of conversations without a known owner; no user has that name."""


def new_row(session_id: str, *, user: str, created_at: datetime) -> ConversationRow:
    return ConversationRow(
        session_id=session_id,
        user=user,
        created_at=created_at,
        updated_at=created_at,
        last_accessed=created_at,
    )


def fold(row: ConversationRow, entry: Entry) -> ConversationRow:
    return fold_all(row, (entry,))


def fold_all(row: ConversationRow, entries: Iterable[Entry]) -> ConversationRow:
    """The row after these entries. A change in the result must raise `ROWS_VERSION` in
    `index.database`, so that existing rows are rebuilt."""
    values: dict[str, Any] = asdict(row)
    for entry in entries:
        _take_in(values, entry)
    return ConversationRow(**values)


def _take_in(values: dict[str, Any], entry: Entry) -> None:
    values["head_seq"] = entry.seq
    values["updated_at"] = entry.timestamp
    values["last_accessed"] = max(values["last_accessed"], entry.timestamp)
    match entry:
        case ModelInputEntry() | ModelOutputEntry():
            _take_in_message(values, entry)
        case FaultEntry() | ApprovalEntry() | ToolResultsEntry():
            _take_in_progress(values, entry)
        case RenamedEntry():
            values |= {"name": entry.name, "named": True}
        case ModelSwitchedEntry():
            values["model"] = entry.model or values["model"]
            options = values["options"] if entry.options is None else entry.options.items()
            values["options"] = tuple(sorted(options))
        case PinnedEntry() | ArchivedEntry():
            values[entry.kind] = getattr(entry, entry.kind)
        case WidgetEntry():
            widgets = dict(values["widget_seqs"]) | {entry.widget: entry.seq}
            values["widget_seqs"] = tuple(sorted(widgets.items()))
        case RollbackEntry():
            values |= {name: getattr(entry, name) for name in _FROM_ROLLBACKS}
            values |= {"hidden": hidden_after(values["hidden"], entry)}
            values |= {"epoch_seq": 0, **_AT_REST}
        case ForkedEntry():
            is_import = entry.from_session_id == values["session_id"]
            values |= _AT_REST if is_import else _ELSEWHERE
            values["later"] = tuple(replace(each, held=True) for each in values["later"])
        case CheckpointEntry():
            _bill_again(values, entry.state)
        case SystemInstructionEntry() | NotebookEntry() | ClearEntry() | EpochEntry():
            values[_NUMBERED[entry.kind]] = entry.seq
        case CompactionEntry():
            values["compaction_seq"] = entry.seq
            _bill(values, entry)
        case _:
            _take_in_later(values, entry)


def _take_in_message(values: dict[str, Any], entry: ModelInputEntry | ModelOutputEntry) -> None:
    values["message_count"] += 1
    # An answer that only calls tools says nothing: the words before it stay.
    goes_on = isinstance(entry, ModelInputEntry) and entry.continues is not None
    if not goes_on and (preview := preview_of(entry.content)):
        values["preview"] = preview
    if isinstance(entry, ModelInputEntry):
        if entry.later_seq is not None:
            values["later"] = _without_later(values["later"], entry.turn_id)
        if not values["named"] and entry.content.strip():
            values |= {"name": name_from(entry.content), "named": True}
        if entry.turn_id is not None:
            others = values["unfinished"] and _without(values["unfinished"], entry.turn_id)
            values["unfinished"] = (*others, (entry.turn_id, entry.seq))
            values["running_since"] = values["running_since"] or entry.timestamp
        values["failed_seq"] = 0
        values["door"] = entry.door or values["door"]
        return
    _bill(values, entry)
    if entry.ends_turn and not entry.tool_calls:
        values["answers"] = (*values["answers"][1 - UNREAD_MAX :], entry.seq)
    if entry.ends_turn:
        _end_turn(values, entry)


def _take_in_later(values: dict[str, Any], entry: Entry) -> None:
    later = values["later"]
    match entry:
        case LaterPromptEntry(turn_id=str(turn_id), redacted_at=None):
            added = LaterPrompt(
                turn_id=turn_id,
                seq=entry.seq,
                due_at=entry.not_before,
                message_id=entry.message_id,
                preview=preview_of(entry.content),
                limited=entry.limited_seq is not None,
            )
            values["later"] = (*later, added)
            if not values["named"]:
                values |= {"name": name_from(entry.content), "named": True}
        case LaterChangeEntry(change="cancelled"):
            values["later"] = _without_later(later, entry.turn_id)
        case LaterChangeEntry():
            values["later"] = tuple(
                replace(each, held=entry.change == "held")
                if each.turn_id == entry.turn_id
                else each
                for each in later
            )
        case _:
            pass


def _without_later(later: tuple[LaterPrompt, ...], turn_id: str | None) -> tuple[LaterPrompt, ...]:
    return tuple(each for each in later if each.turn_id != turn_id)


def _take_in_progress(
    values: dict[str, Any], entry: FaultEntry | ApprovalEntry | ToolResultsEntry
) -> None:
    if isinstance(entry, ToolResultsEntry):
        if entry.awaits_client:
            _end_turn(values, entry)
        return
    if isinstance(entry, ApprovalEntry):
        others = tuple(one for one in values["asking"] if one != entry.approval_id)
        values["asking"] = (*others, entry.approval_id) if entry.state == "asked" else others
        return
    _end_turn(values, entry)
    _bill(values, entry)


def _end_turn(
    values: dict[str, Any], entry: ModelOutputEntry | FaultEntry | ToolResultsEntry
) -> None:
    unfinished = values["unfinished"] = _without(values["unfinished"], entry.turn_id)
    values["running_since"] = entry.timestamp if unfinished else None
    values["asking"] = ()
    if _is_failure(entry):
        values["failed_seq"] = entry.seq
    elif entry.state == "completed":
        values["failed_seq"] = 0


def _is_failure(end: ModelOutputEntry | FaultEntry | ToolResultsEntry) -> bool:
    """Whether the turn failed, or its server stopped before it could end."""
    if isinstance(end, ToolResultsEntry):
        return False
    code = end.code if isinstance(end, FaultEntry) else (end.error or {}).get("code")
    return end.state == "failed" or code == INTERRUPTED


def unread_answers(row: ConversationRow, seen_seq: int | None) -> int:
    """The number of answers after `seen_seq`, at most `UNREAD_MAX`. `None`: there is no mark, and
    all of them count as seen."""
    if seen_seq is None:
        return 0
    return sum(seq > seen_seq and not _is_hidden(row, seq) for seq in row.answers)


def has_failed(row: ConversationRow, seen_seq: int | None) -> bool:
    """Whether the last turn failed, and the user has not seen that yet."""
    is_new = seen_seq is not None and row.failed_seq > seen_seq
    return is_new and not _is_hidden(row, row.failed_seq)


def needs_attention(row: ConversationRow, seen_seq: int | None) -> bool:
    """Whether the conversation is not at rest, has a prompt for later, or has something that its
    user has not seen."""
    return is_busy(row) or bool(unread_answers(row, seen_seq) or has_failed(row, seen_seq))


def is_busy(row: ConversationRow) -> bool:
    """Whether the conversation has a turn that has not ended, or a prompt for later."""
    return bool(row.unfinished) or row.due_at is not None


def _is_hidden(row: ConversationRow, seq: int) -> bool:
    return any(first <= seq <= last for first, last in row.hidden)


def hidden_after(hidden: Ranges, rollback: RollbackEntry) -> Ranges:
    """The hidden ranges after this rollback, which hides itself too."""
    before = through(hidden, rollback.to_seq) if rollback.hidden is None else rollback.hidden
    return (*before, (rollback.to_seq + 1, rollback.seq))


def through(ranges: Ranges, seq: int) -> Ranges:
    """The ranges that end at `seq` or before."""
    return tuple(range_ for range_ in ranges if range_[1] <= seq)


def _without(
    unfinished: tuple[tuple[str, int], ...], turn_id: str | None
) -> tuple[tuple[str, int], ...]:
    if len(unfinished) == 1:  # nearly always
        return () if unfinished[0][0] == turn_id else unfinished
    return tuple(turn for turn in unfinished if turn[0] != turn_id)


_MARK_BEFORE: Final = re.compile(r"\s*(?:(?:#{1,6}|>|[-*+]|\d+[.)])\s+)+|\s*(?:```|~~~).*")
"""The Markdown that makes a line a heading, a quote, an item or the border of code."""
_MARKS_AROUND: Final = re.compile(
    r"(\*\*|~~|`+)(?=\S)(?P<marked>.+?)(?<=\S)\1|!?\[(?P<linked>[^][]+)\]\([^()\s]*\)"
)
"""Emphasis, inline code and links. Underscores and single stars are left: code has them too."""


def name_from(prompt: str) -> str:
    """Names a conversation by the first line of its first prompt, without Markdown."""
    lines = prompt[:_LOOKED_AT_MAX].splitlines()
    plain = (single_line(_without_marks(line)) for line in lines)
    line = next(filter(None, plain), "")
    if len(line) <= NAME_CHARACTERS_MAX:
        return line or NEW_NAME
    cut = line[: NAME_CHARACTERS_MAX - 1]
    if line[NAME_CHARACTERS_MAX - 1] != " " and " " in cut:
        cut = cut[: cut.rindex(" ")]
    return cut.rstrip() + "…"


def _without_marks(line: str) -> str:
    if mark := _MARK_BEFORE.match(line):
        line = line[mark.end() :]
    return _MARKS_AROUND.sub(lambda found: found["marked"] or found["linked"], line)


def preview_of(content: str) -> str:
    # The first few words are enough, unless there are many blanks among them.
    line = single_line(content[: 2 * PREVIEW_CHARACTERS_MAX])
    if len(line) <= PREVIEW_CHARACTERS_MAX and len(content) > 2 * PREVIEW_CHARACTERS_MAX:
        line = single_line(content[:_LOOKED_AT_MAX])
    return line[:PREVIEW_CHARACTERS_MAX]


def single_line(text: str) -> str:
    line = " ".join(text.split())
    return line if line.isprintable() else _BLANKS.sub(" ", line).strip()


# Rows as bytes
#
# Servers of an older version refuse a row with fields that they do not know. Where both versions
# share a store during an upgrade, a row therefore has two lines: the second one has these fields.
# An older server changes the first line only, so the second one says for which head it was made.

_ADDED: Final = ("answers", "failed_seq", "asking", "running_since", "later", "door")
_LEFT_OUT_IF_EMPTY: Final = ("lost", "billed_details", "options", *_ADDED)
_ROW_DECODER: Final = Decoder(ConversationRow)


class _AddedFields(Struct, frozen=True, kw_only=True):
    """The fields of `_ADDED`, as in a row."""

    head_seq: int
    answers: tuple[int, ...] = ()
    failed_seq: int = 0
    asking: tuple[str, ...] = ()
    running_since: datetime | None = None
    later: tuple[LaterPrompt, ...] = ()
    door: Door | None = None


_ADDED_DECODER: Final = Decoder(_AddedFields)


def row_as_bytes(row: ConversationRow) -> bytes:
    return orjson.dumps(_as_builtins(row))


def row_as_lines(row: ConversationRow) -> bytes:
    source = _as_builtins(row)
    added = {name: source.pop(name) for name in _ADDED if name in source}
    if not added:
        return orjson.dumps(source) + b"\n"
    return orjson.dumps(source) + b"\n" + orjson.dumps({"head_seq": row.head_seq, **added})


def _as_builtins(row: ConversationRow) -> dict[str, Any]:
    source: dict[str, Any] = to_builtins(row, builtin_types=(datetime,))
    for name in _LEFT_OUT_IF_EMPTY:
        if not source[name]:
            del source[name]
    return source


def row_from_bytes(data: bytes, *, last_accessed: datetime | None = None) -> ConversationRow:
    """Raises `ValueError` for bytes that `row_as_bytes` did not make."""
    row = _ROW_DECODER.decode(data)
    return row if last_accessed is None else replace(row, last_accessed=last_accessed)


def row_from_lines(first: bytes, second: bytes | None) -> ConversationRow:
    """Raises `ValueError` for bytes that `row_as_lines` did not make."""
    row = _ROW_DECODER.decode(first)
    if not second:
        return row
    added = _ADDED_DECODER.decode(second)
    row = replace(row, **{name: getattr(added, name) for name in _ADDED})
    return row if row.unfinished else replace(row, **_AT_REST)


def unknown_since(row: ConversationRow, second: bytes | None) -> int:
    """The head for which the second line of the row was made. It is lower than the row's if a
    server of an older version has written since."""
    return _ADDED_DECODER.decode(second).head_seq if second else row.head_seq


def with_added_fields(row: ConversationRow, entries: Iterable[Entry]) -> ConversationRow:
    """The row with the fields that an older server did not keep up to date: `entries` are those
    that it wrote."""
    made = fold_all(row, entries)
    return replace(row, **{name: getattr(made, name) for name in _ADDED})


# ------------------------------------------------------------------------------
# Lists of conversations
#
# Pinned ones first, then the newest. A cursor is the place of a page's last row, so that
# a list can be paged while conversations move in it: one that was used meanwhile is at
# the top, and no other appears twice or is left out.

RowPlace: TypeAlias = tuple[bool, datetime, str]


class BadCursor(ValueError):
    """The cursor does not belong to this list."""


class RowQuery(Struct, frozen=True, kw_only=True):
    """All given conditions must hold; `archived=None` matches both kinds."""

    limit: int = 50
    cursor: str | None = None
    archived: bool | None = None
    name_has: str | None = None
    name_is: str | None = None
    id_prefix: str | None = None
    unfinished: bool = False
    attention: bool = False
    """Matches only conversations that need attention; the store knows what its users have seen."""
    troubled: bool = False
    """Matches only conversations that are damaged or have lost entries."""
    due: bool = False
    """Matches only conversations with prompts for later that are not held."""


class RowPage(Struct, frozen=True, kw_only=True):
    rows: tuple[ConversationRow, ...]
    next_cursor: str | None = None
    incomplete: bool = False
    """Whether the store does not know all of its conversations yet."""


def place_of(row: ConversationRow) -> RowPlace:
    return (row.pinned, row.updated_at, row.session_id)


def is_troubled(row: ConversationRow) -> bool:
    return row.damaged or row.lost is not None


def matches(row: ConversationRow, query: RowQuery) -> bool:
    return (
        (query.archived is None or row.archived == query.archived)
        and (query.name_has is None or query.name_has.casefold() in row.name.casefold())
        and (query.name_is is None or row.name == query.name_is)
        and (query.id_prefix is None or row.session_id.startswith(query.id_prefix))
        and (bool(row.unfinished) or not query.unfinished)
        and (is_troubled(row) or not query.troubled)
        and (row.due_at is not None or not query.due)
    )


def page_of(rows: Iterable[ConversationRow], query: RowQuery) -> RowPage:
    """A page of rows that are in any order."""
    wanted = sorted((row for row in rows if matches(row, query)), key=place_of, reverse=True)
    if query.cursor is not None:
        last = read_cursor(query.cursor)
        wanted = [row for row in wanted if place_of(row) < last]
    return cut_page(wanted, query.limit)


def cut_page(rows: list[ConversationRow], limit: int) -> RowPage:
    """A page of rows in order; there is one row more than `limit` if there are further pages."""
    page = tuple(rows[:limit])
    more = len(rows) > limit and page
    return RowPage(rows=page, next_cursor=write_cursor(page[-1]) if more else None)


def write_cursor(row: ConversationRow) -> str:
    pinned, updated_at, session_id = place_of(row)
    place = orjson.dumps([pinned, updated_at.isoformat(), session_id])
    return base64.urlsafe_b64encode(place).decode()


def read_cursor(cursor: str) -> RowPlace:
    try:
        pinned, updated_at, session_id = orjson.loads(base64.urlsafe_b64decode(cursor))
        return bool(pinned), datetime.fromisoformat(updated_at).astimezone(UTC), str(session_id)
    except (binascii.Error, ValueError, TypeError):
        raise BadCursor("a cursor is the next_cursor of this list") from None


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The state at an entry, for when older entries are trimmed."""

    row: ConversationRow
    state_entries: tuple[StateEntry, ...] = ()
    """The state entries in force at the checkpoint, with their seqs; only their content is
    kept."""


def checkpoint_state(checkpoint: Checkpoint) -> JsonObject:
    first, second = row_as_lines(checkpoint.row).split(b"\n")
    state: JsonObject = {"row": orjson.loads(first)}
    if second:
        state["added"] = orjson.loads(second)
    widgets: JsonObject = {}
    for entry in checkpoint.state_entries:
        match entry:
            case SystemInstructionEntry() | NotebookEntry():
                state[entry.kind] = entry.content
            case CompactionEntry():
                span = {"from_seq": entry.from_seq, "through_seq": entry.through_seq}
                state["compaction"] = {"content": entry.content, **span}
            case WidgetEntry():
                widgets[entry.widget] = dict(entry.state)
            case ClearEntry():
                pass  # its number stands in the row, and there is no more to it
    if widgets:
        state["widgets"] = widgets
    return state


class _State(Struct):
    row: ConversationRow
    added: _AddedFields | None = None
    system_instruction: str | None = None
    notebook: str | None = None
    compaction: CompactionEntry | None = None
    widgets: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_checkpoint(entry: CheckpointEntry) -> Checkpoint | None:
    """`None` if it is not in the form that this version writes."""
    try:
        state = convert(entry.state, _State)
    except ValueError:
        return None
    row = state.row
    if state.added is not None:
        row = replace(row, **{name: getattr(state.added, name) for name in _ADDED})
    state_entries: list[StateEntry] = []
    if state.system_instruction is not None:
        state_entries.append(
            SystemInstructionEntry(seq=row.system_seq, content=state.system_instruction)
        )
    if state.notebook is not None:
        state_entries.append(NotebookEntry(seq=row.notebook_seq, content=state.notebook))
    if state.compaction is not None:
        state_entries.append(replace(state.compaction, seq=row.compaction_seq))
    for name, seq in row.widget_seqs:
        if name in state.widgets:
            state_entries.append(WidgetEntry(seq=seq, widget=name, state=state.widgets[name]))
    return Checkpoint(row=row, state_entries=tuple(state_entries))


def row_from_entries(entries: Sequence[Entry]) -> ConversationRow | None:
    """The row at the last of these entries, computed from the newest checkpoint among them."""
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        checkpoint = read_checkpoint(entry) if isinstance(entry, CheckpointEntry) else None
        if checkpoint is not None:
            row = checkpoint.row
            return fold_all(row, (later for later in entries if later.seq > row.head_seq))
    return None
