"""Which entries a context shows, by looking at all of them: no bookkeeping, no budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from nplt_storage.entries import (
    ClearEntry,
    CompactionEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    QuarantineEntry,
    ToolResultsEntry,
)
from nplt_storage.history import ConversationHistory

_E = TypeVar("_E", bound=Entry)
Said = ModelInputEntry | ModelOutputEntry | ToolResultsEntry


def naive_context(history: ConversationHistory, turn_id: str | None) -> list[tuple[int, str]]:
    """Number and level of each entry that is shown, in order."""
    standing = list(history.active)
    refused = _refused(standing)
    own = _shown_entries(standing, turn_id)
    before = own[0].seq if own else history.head_seq + 1
    cleared = max((entry.seq for entry in standing if isinstance(entry, ClearEntry)), default=0)
    ids = dict.fromkeys(entry.turn_id for entry in standing if isinstance(entry, ModelInputEntry))
    seen = [
        other
        for other in ids
        if other != turn_id
        and _shown_entries(standing, other)[0].seq < before
        and (end := _end(standing, other)) is not None
        and end > cleared
    ]
    if history.turns_max is not None:
        seen = seen[-history.turns_max :]
    shown = [
        (seq, level)
        for other in seen
        if (level := _level(standing, other, cleared)) is not None
        for seq in _whole(_shown_entries(standing, other), refused)
    ]
    return [*shown, *((seq, "live") for seq in _whole(own, refused))]


def _refused(standing: list[Entry]) -> set[int]:
    quarantines = [entry for entry in standing if isinstance(entry, QuarantineEntry)]
    latest = {entry.target_seq: entry.lifted for entry in quarantines}
    return {seq for seq, lifted in latest.items() if not lifted}


def _shown_entries(standing: list[Entry], turn_id: str | None) -> list[Said]:
    return [entry for entry in standing if isinstance(entry, Said) and entry.turn_id == turn_id]


def _end(standing: list[Entry], turn_id: str | None) -> int | None:
    for entry in standing:
        if entry.turn_id == turn_id and (
            (isinstance(entry, FaultEntry) and not entry.never_began)
            or (isinstance(entry, ModelOutputEntry) and entry.ends_turn)
        ):
            return entry.seq
    return None


def _level(standing: list[Entry], turn_id: str | None, cleared: int) -> str | None:
    epoch = _last(standing, EpochEntry)
    if epoch is None:
        return "live"
    number, end = _shown_entries(standing, turn_id)[0].seq, _end(standing, turn_id) or 0
    refused = _refused(standing)
    earlier = [e for e in standing if e.seq < epoch.seq and e.seq not in refused]
    summary = _last(earlier, CompactionEntry)
    is_summarized = (
        summary is not None and summary.from_seq <= number and end <= summary.through_seq
    )
    if number <= epoch.omitted_through or (is_summarized and summary and summary.seq > cleared):
        return None
    if number <= epoch.gist_through:
        return "gist"
    return "summary" if number <= epoch.summary_through else "live"


def _last(entries: list[Entry], kind: type[_E]) -> _E | None:
    found = [entry for entry in entries if isinstance(entry, kind)]
    return found[-1] if found else None


def _whole(shown_entries: list[Said], refused: set[int]) -> Iterator[int]:
    """Calls with their results or not at all; that a tool ran is never hidden."""
    for place, entry in enumerate(shown_entries):
        is_call = isinstance(entry, ModelOutputEntry) and bool(entry.tool_calls)
        if is_call and place + 1 == len(shown_entries):
            return
        if is_call or isinstance(entry, ToolResultsEntry) or entry.seq not in refused:
            yield entry.seq
