"""A conversation's row in lists, made from its entries and nothing else.

`fold` is all there is to a row: the same function keeps it up to date while a
conversation grows and builds it anew from the record. Whoever keeps rows can
throw them away at any time; only last-access times are their own.

A row also holds the landmarks one needs to open a long conversation at its end:
where the instruction, the notebook and the widgets' states stand, which ranges a
rollback has hidden, which turns have not ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from nplt_storage.conversation.billing import Billed, billed_together, billed_with, read_billed
from nplt_storage.conversation.landmarks import landmarks_of, marks, with_widget
from nplt_storage.facts.entries import (
    ArchivedEntry,
    CheckpointEntry,
    ClearEntry,
    CompactionEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ModelSwitchedEntry,
    NotebookEntry,
    PinnedEntry,
    RenamedEntry,
    RollbackEntry,
    SystemInstructionEntry,
    WidgetEntry,
)

NEW_NAME = "new conversation"
NAME_CHARACTERS_MAX = 40
PREVIEW_CHARACTERS_MAX = 80

_LOOKED_AT_MAX = 1000
"""Characters of a message that are looked at: a name or a preview needs no more."""
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRow:
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
    """Whether the name is settled: someone gave it, or the first prompt did."""
    unfinished: tuple[tuple[str, int], ...] = ()
    """Turns that were prompted and have no end yet, each with its prompt's number."""
    hidden: tuple[tuple[int, int], ...] = ()
    """Ranges of entries (first, last) that a rollback took back, in order."""
    system_seq: int = 0
    notebook_seq: int = 0
    compaction_seq: int = 0
    """The entries that hold the instruction, the notebook and the newest compaction;
    0: none."""
    widget_seqs: tuple[tuple[str, int], ...] = ()
    """And each widget's state, by its name."""
    epoch_seq: int = 0
    """The newest epoch since the last rollback, which tells how far back models see;
    0: there is none, or nobody knows."""
    billed: Billed = ()
    first_seq: int = 1
    """The oldest entry there is, where a backend trims."""


_NAMES = tuple(field.name for field in fields(ConversationRow))
_values_of = attrgetter(*_NAMES)
_NUMBERED = {
    SystemInstructionEntry.kind: "system_seq",
    NotebookEntry.kind: "notebook_seq",
    ClearEntry.kind: "compaction_seq",
    EpochEntry.kind: "epoch_seq",
}


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
    """Whoever changes what it makes of an entry raises `ROWS_VERSION` in
    `catalogue.database`, so that rows made before are made anew."""
    # A row that can't be changed costs more to make than an entry to take in:
    # one is made at the end.
    values: dict[str, Any] = dict(zip(_NAMES, _values_of(row), strict=True))
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
        case FaultEntry():
            values["unfinished"] = _without(values["unfinished"], entry.turn_id)
            values["billed"] = billed_with(values["billed"], entry)
        case RenamedEntry():
            values |= {"name": entry.name, "named": True}
        case ModelSwitchedEntry():
            values["model"] = entry.model
        case PinnedEntry() | ArchivedEntry():
            values[entry.kind] = getattr(entry, entry.kind)
        case SystemInstructionEntry() | NotebookEntry() | EpochEntry() | ClearEntry():
            values[_NUMBERED[entry.kind]] = entry.seq
        case CompactionEntry():
            values["compaction_seq"] = entry.seq
            values["billed"] = billed_with(values["billed"], entry)
        case WidgetEntry():
            values["widget_seqs"] = with_widget(values["widget_seqs"], entry)
        case RollbackEntry():
            values |= _after_rollback(values["hidden"], entry)
        case ForkedEntry():
            is_import = entry.from_session_id == values["session_id"]
            values |= {"unfinished": (), "billed": values["billed"] if is_import else ()}
        case CheckpointEntry() if "billed" in entry.state:
            more = read_billed(entry.state["billed"])
            values["billed"] = billed_together(values["billed"], more)
        case _:
            pass


def _take_in_message(values: dict[str, Any], entry: ModelInputEntry | ModelOutputEntry) -> None:
    values["message_count"] += 1
    # An answer that only calls tools says nothing: the words before it stay.
    if preview := preview_of(entry.content):
        values["preview"] = preview
    if isinstance(entry, ModelInputEntry):
        if not values["named"]:
            values |= {"name": name_from(entry.content), "named": True}
        if entry.turn_id is not None:
            others = _without(values["unfinished"], entry.turn_id)
            values["unfinished"] = (*others, (entry.turn_id, entry.seq))
        return
    if entry.usage is not None:
        values["billed"] = billed_with(values["billed"], entry)
    if entry.ends_turn:
        values["unfinished"] = _without(values["unfinished"], entry.turn_id)


def _after_rollback(hidden: tuple[tuple[int, int], ...], entry: RollbackEntry) -> dict[str, Any]:
    return {
        "message_count": entry.message_count,
        "preview": entry.preview,
        **marks(landmarks_of(entry)),
        "epoch_seq": 0,
        "hidden": hidden_after(hidden, entry),
        "unfinished": (),
    }


def hidden_after(
    hidden: tuple[tuple[int, int], ...], rollback: RollbackEntry
) -> tuple[tuple[int, int], ...]:
    """The ranges that do not stand once this rollback is there; it hides itself too."""
    if rollback.hidden is not None:
        before = rollback.hidden
    else:
        before = tuple(range_ for range_ in hidden if range_[1] <= rollback.to_seq)
    return (*before, (rollback.to_seq + 1, rollback.seq))


def _without(
    unfinished: tuple[tuple[str, int], ...], turn_id: str | None
) -> tuple[tuple[str, int], ...]:
    return tuple(turn for turn in unfinished if turn[0] != turn_id)


def name_from(prompt: str) -> str:
    lines = prompt[:_LOOKED_AT_MAX].splitlines()
    line = next((line for line in map(_single_line, lines) if line), "")
    if len(line) <= NAME_CHARACTERS_MAX:
        return line or NEW_NAME
    cut = line[: NAME_CHARACTERS_MAX - 1]
    if line[NAME_CHARACTERS_MAX - 1] != " " and " " in cut:
        cut = cut[: cut.rindex(" ")]
    return cut.rstrip() + "…"


def preview_of(content: str) -> str:
    return _single_line(content[:_LOOKED_AT_MAX])[:PREVIEW_CHARACTERS_MAX]


def _single_line(text: str) -> str:
    line = " ".join(text.split())
    return line if line.isprintable() else _BLANKS.sub(" ", line).strip()
