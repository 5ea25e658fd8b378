"""A conversation thought of without any bookkeeping: every answer by looking at all of it."""

from __future__ import annotations

from typing import Any, Final

from nplt_storage import ConversationRow
from nplt_storage.entries import (
    CheckpointEntry,
    ClearEntry,
    CompactionEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    QuarantineEntry,
    RenamedEntry,
    RollbackEntry,
    ToolCallRequest,
    ToolResultsEntry,
)
from nplt_storage.rows import state_seqs_of

TURNS: Final = ["t1", "t2", "t3", "t4", "t5"]
LEFT: Final = None
"""The moment at which whatever was under way was left: a fork, or a rollback."""


def moments(entries: list[Entry], through: int) -> list[Entry | None]:
    """What stands after so many entries, word for word as FORMAT.md defines it."""
    if through == 0:
        return []
    entry = entries[through - 1]
    if isinstance(entry, RollbackEntry) and entry.turns:
        return [*without_turns(moments(entries, through - 1), entry.turns), LEFT]
    if isinstance(entry, RollbackEntry):
        return [*moments(entries, entry.to_seq), LEFT]
    if isinstance(entry, ForkedEntry):
        return [*moments(entries, through - 1), entry, LEFT]
    return [*moments(entries, through - 1), entry]


def without_turns(moments: list[Entry | None], turns: tuple[str, ...]) -> list[Entry | None]:
    """Without their entries, the summaries that cover any of them, and epochs since."""
    prompts = [e.seq for e in moments if isinstance(e, ModelInputEntry) and e.turn_id in turns]
    own = [e.seq for e in moments if e and e.turn_id in turns and e.seq >= min(prompts)]

    def is_left(entry: Entry | None) -> bool:
        match entry:
            case CompactionEntry() if entry.seq not in own:
                return not any(entry.from_seq <= seq <= entry.through_seq for seq in own)
            case EpochEntry():
                return entry.seq < min(prompts)
            case None:
                return True
            case _:
                return entry.seq not in own

    return [entry for entry in moments if is_left(entry)]


class Naive:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.moments: list[Entry | None] = []

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.moments = moments(self.entries, len(self.entries))

    @property
    def active(self) -> list[Entry]:
        return [entry for entry in self.moments if entry is not None]

    @property
    def prompts(self) -> list[ModelInputEntry]:
        return [entry for entry in self.entries if isinstance(entry, ModelInputEntry)]

    @property
    def spoken(self) -> list[Entry]:
        return [e for e in self.active if isinstance(e, ModelInputEntry | ModelOutputEntry)]

    def last(self, entries: list[Entry], kind: type[Entry], field: str) -> Any:
        found = [getattr(entry, field) for entry in entries if isinstance(entry, kind)]
        return found[-1] if found else None

    def name(self) -> str | None:
        given = self.last(self.entries, RenamedEntry, "name")
        return given or (self.prompts[0].content if self.prompts else None)

    def of_turn(self, turn_id: str, through: int | None = None) -> list[Any]:
        kinds = (ModelInputEntry, ModelOutputEntry, ToolResultsEntry, FaultEntry)
        return [
            entry
            for entry in self.moments[:through]
            if isinstance(entry, kinds) and entry.turn_id == turn_id
        ]

    def end(self, turn_id: str, through: int | None = None) -> Any:
        for entry in self.of_turn(turn_id, through):
            if isinstance(entry, FaultEntry):
                return entry
            if isinstance(entry, ModelOutputEntry) and (
                entry.state != "completed" or not entry.tool_calls
            ):
                return entry
        return None

    def was_left(self, turn_id: str) -> bool:
        mine = self.of_turn(turn_id)
        if not mine or self.end(turn_id) is not None:
            return False
        return LEFT in self.moments[self.moments.index(mine[0]) :]

    def is_over(self, turn_id: str) -> bool:
        return self.end(turn_id) is not None or self.was_left(turn_id)

    def unfinished(self) -> list[Entry]:
        prompts = [entry for entry in self.active if isinstance(entry, ModelInputEntry)]
        return [entry for entry in prompts if not self.is_over(str(entry.turn_id))]

    def state(self, turn_id: str) -> str | None:
        mine = self.of_turn(turn_id)
        if not mine:
            return None
        end = self.end(turn_id)
        if end is not None:
            return str(end.state)
        if self.was_left(turn_id):
            return "interrupted"
        return "running" if len(mine) > 1 else "waiting"

    def open_tool_calls(self, turn_id: str) -> tuple[ToolCallRequest, ...]:
        mine = self.of_turn(turn_id)
        if not self.is_over(turn_id) and mine and isinstance(mine[-1], ModelOutputEntry):
            return mine[-1].tool_calls
        return ()

    def number(self, turn_id: str) -> int:
        return int(self.of_turn(turn_id)[0].seq)

    def shown(self) -> list[str]:
        """Turns that ended since the last clear, in the order they were asked for."""
        clears = [p for p, moment in enumerate(self.moments) if isinstance(moment, ClearEntry)]
        since = self.moments[clears[-1] + 1 :] if clears else self.moments
        return sorted((t for t in TURNS if self.end(t) and self.end(t) in since), key=self.number)

    def context(self, turn_id: str) -> list[Entry]:
        is_there = bool(self.of_turn(turn_id))
        seen = [t for t in self.shown() if not is_there or self.number(t) < self.number(turn_id)]
        turns = [*seen, turn_id]
        return [e for turn in turns for e in self.of_turn(turn) if not isinstance(e, FaultEntry)]

    def takes(self, draft: Any) -> bool:
        head = len(self.entries)
        turn_id = str(draft.turn_id)
        match draft:
            case RollbackEntry(turns=turns) if turns:
                return all(map(self.of_turn, turns)) and not self.unfinished()
            case RollbackEntry():
                return 0 <= draft.to_seq < head and not self.unfinished()
            case EpochEntry():
                reach = (0, draft.omitted_through, draft.gist_through, draft.summary_through, head)
                return list(reach) == sorted(reach)
            case CompactionEntry():
                return 1 <= draft.from_seq <= draft.through_seq <= head
            case QuarantineEntry():
                return 1 <= draft.target_seq <= head
            case ForkedEntry():
                return 1 <= draft.at_seq <= head
            case ModelInputEntry():
                return bool(draft.content.strip()) and not self.of_turn(turn_id)
            case ModelOutputEntry() | ToolResultsEntry() | FaultEntry():
                return self._continues_its_turn(draft, turn_id)
            case _:
                return not self.is_over(turn_id)

    def _continues_its_turn(self, draft: Any, turn_id: str) -> bool:
        if not self.of_turn(turn_id) or self.is_over(turn_id):
            return False
        if isinstance(draft, ModelOutputEntry):
            outputs = [e.call for e in self.of_turn(turn_id) if isinstance(e, ModelOutputEntry)]
            says = bool(draft.content or draft.tool_calls or draft.state != "completed")
            return (
                says and not self.open_tool_calls(turn_id) and draft.call > max(outputs, default=-1)
            )
        if isinstance(draft, ToolResultsEntry):
            asked = [c.tool_call_id for c in self.open_tool_calls(turn_id)]
            return bool(asked) and asked == [r.tool_call_id for r in draft.results]
        return True


def end_of(entries: list[Entry], first_seq: int) -> list[Entry]:
    return [entry for entry in entries if entry.seq >= first_seq]


def window_on(entries: list[Entry], row: ConversationRow, enough: int) -> list[Entry]:
    """What a store reads to open a conversation at its end: back along what stands
    until there is enough, a clear, or all an epoch shows, and on until every turn
    met is whole."""
    met: list[Entry] = []
    due = {seq for _, seq in row.unfinished}
    whole: set[str | None] = {None}
    epoch = next((e for e in entries if e.seq == row.epoch_seq), None)
    all_shown = False
    for entry in reversed(entries):
        if any(first <= entry.seq <= last for first, last in row.hidden):
            continue
        headless = {other.turn_id for other in met} - whole
        if (len(met) >= enough or all_shown) and not headless and not due:
            break
        met.append(entry)
        due.discard(entry.seq)
        omitted = epoch.omitted_through if isinstance(epoch, EpochEntry) else 0
        all_shown = all_shown or isinstance(entry, ClearEntry) or entry.seq <= omitted + 1
        if isinstance(entry, ModelInputEntry):
            whole.add(entry.turn_id)
    held = {entry.seq for entry in met} | {*state_seqs_of(row).values(), row.epoch_seq}
    return [entry for entry in entries if entry.seq in held]


def what_came_after_checkpoint(naive: Naive, pick: int) -> list[Entry]:
    """What is left when a store has trimmed: from some place before the newest
    checkpoint on, with no turn and no rollback across the cut."""
    entries = naive.entries
    checkpoint = max(e.seq for e in entries if isinstance(e, CheckpointEntry))
    running = {entry.turn_id for entry in naive.unfinished()}
    cuts = [
        seq
        for seq in range(checkpoint)
        if not any(isinstance(e, RollbackEntry) and e.to_seq < seq for e in entries[seq:])
        and not _turns(entries[:seq]) & (_turns(entries[seq:]) | running)
    ]
    return entries[cuts[pick % len(cuts)] :]


def _turns(entries: list[Entry]) -> set[str | None]:
    return {entry.turn_id for entry in entries} - {None}
